-- Frees locks that came with claims on handlers, unless somebody took them since.
-- The rows go: fences are counted for all locks together, so nothing is forgotten with them.
DELETE FROM {schema}.locks AS lock USING unnest($1::text[], $2::text[]) AS given (key, token)
WHERE lock.key = given.key AND lock.token = given.token

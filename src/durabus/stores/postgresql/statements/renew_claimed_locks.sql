-- Extends locks that came with claims on handlers, unless somebody took them since.
UPDATE {schema}.locks AS lock SET expires_at = to_timestamp($3)
FROM unnest($1::text[], $2::text[]) AS given (key, token)
WHERE lock.key = given.key AND lock.token = given.token

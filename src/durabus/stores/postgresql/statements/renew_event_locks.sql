-- Extends locks that came with claims, unless somebody took them since, or another of their claims lasts longer.
UPDATE {schema}.locks AS lock SET expires_at = greatest(lock.expires_at, to_timestamp($3))
FROM unnest($1::text[], $2::text[]) AS given (key, token)
WHERE lock.key = given.key AND lock.token = given.token

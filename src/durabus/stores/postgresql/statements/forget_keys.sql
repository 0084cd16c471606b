-- The idempotency keys may be used again. Relies on the primary key of idempotency_keys.
DELETE FROM {schema}.idempotency_keys AS key USING unnest($1::text[], $2::text[], $3::bigint[]) AS gone (bus, name, id)
WHERE key.bus = gone.bus AND key.idempotency_key = gone.name AND key.id = gone.id

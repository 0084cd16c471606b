-- Deletes those of some events that are dead letters. Relies on the primary key of dead_letters.
-- Locked in order of id, as lock_dead_letters.sql does, so that two who purge or requeue cannot wait for each other.
DELETE FROM {schema}.dead_letters WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.dead_letters WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE
)) RETURNING id, event_id::text, bus, idempotency_key, status

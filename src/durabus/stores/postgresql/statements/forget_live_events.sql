-- Events leave the queue. Relies on events_id.
DELETE FROM {schema}.events WHERE id = ANY ($1::bigint[])

-- Holds live events until the end of the transaction, in the order of all who lock more than one. Relies on events_id.
SELECT id FROM {schema}.events WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE

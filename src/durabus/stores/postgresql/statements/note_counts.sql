-- What this transaction changed in the numbers of events, by bus.
INSERT INTO {schema}.event_count_notes (bus, pending, processing, completed, completed_with_errors, failed)
SELECT * FROM unnest($1::text[], $2::integer[], $3::integer[], $4::integer[], $5::integer[], $6::integer[])

-- All other log entries of trimmed events. Relies on event_log_event.
DELETE FROM {schema}.event_log WHERE id = ANY ($1::bigint[]) RETURNING 1

-- The entry stays in the log but is no event any more. Relies on event_log_event.
UPDATE {schema}.event_log SET completed = NULL WHERE id = $1 AND completed RETURNING id

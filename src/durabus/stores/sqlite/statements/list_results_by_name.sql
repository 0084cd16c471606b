-- The results of one event in order of handler_id. Relies on the unique index of event_results.
SELECT {result} FROM event_results WHERE id = ? ORDER BY handler_id

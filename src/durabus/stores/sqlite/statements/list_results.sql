-- The handlers of one event in the order they first appeared. Relies on the unique index of event_results.
SELECT {result} FROM event_results WHERE id = ? ORDER BY result_id

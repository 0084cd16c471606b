-- The results of forgotten events. Relies on the unique index of event_results.
DELETE FROM event_results WHERE id IN (SELECT value FROM json_each(:ids))

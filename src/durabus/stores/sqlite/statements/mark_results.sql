-- The event has rows in event_results from now on: settling must look at them.
UPDATE events SET has_results = 1 WHERE id = ?

-- The event_ids may be published again; the entries stay. Relies on event_log_published.
UPDATE event_log SET known = NULL WHERE known = 1 AND event_id IN (SELECT value FROM json_each(:event_ids))

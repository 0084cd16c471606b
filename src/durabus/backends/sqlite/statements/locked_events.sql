-- The event whose claim took a lock along. Relies on events_token.
SELECT id FROM events WHERE token = ? AND lock_key = ?

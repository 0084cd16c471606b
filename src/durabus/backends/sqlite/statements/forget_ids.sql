-- The event_id may be published again.
DELETE FROM event_ids WHERE event_id = ? AND id = ?

-- The event leaves the queue.
DELETE FROM events WHERE id = ?

-- A live event with the secret of its claim. Relies on the primary key of events.
SELECT {event}, token, lock_key, has_results FROM events WHERE id = ?

-- A PENDING or PROCESSING event. Relies on the primary key of events.
SELECT {event} FROM events WHERE id = ?

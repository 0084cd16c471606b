-- Forgets the handlers of an archived bus. Relies on the primary key of event_handlers.
DELETE FROM event_handlers WHERE bus = ?

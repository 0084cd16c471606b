-- A claimed or removed event cannot be found by its tag any more. Relies on the primary key of event_tags.
DELETE FROM event_tags WHERE bus = ? AND tag = ? AND priority = ? AND id = ?

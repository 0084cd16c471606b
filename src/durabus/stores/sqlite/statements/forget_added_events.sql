-- Takes back what add_events.sql wrote for an id range.
DELETE FROM events WHERE id BETWEEN :first AND :last

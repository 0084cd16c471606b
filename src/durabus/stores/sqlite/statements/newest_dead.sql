-- The newest dead letter below an id, of any bus. Relies on the primary key of dead_letters.
SELECT id FROM dead_letters WHERE id < :before_id ORDER BY id DESC LIMIT 1

-- Dead letters created until an instant, oldest first. Walks dead_letters_created.
SELECT id, event_id, bus, idempotency_key FROM dead_letters
WHERE created_at <= :until ORDER BY created_at, id LIMIT :limit

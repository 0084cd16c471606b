-- Deletes dead letters created until an instant, oldest first. Walks dead_letters_created or dead_letters_bus.
DELETE FROM {schema}.dead_letters WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.dead_letters
    WHERE created_at <= to_timestamp($1) AND ($3::text IS NULL OR bus = $3)
    ORDER BY created_at, id LIMIT $2 FOR UPDATE SKIP LOCKED
)) RETURNING id, event_id::text, bus, idempotency_key, status

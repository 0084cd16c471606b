-- Makes handlers of a node known; known ones keep when they were created.
INSERT INTO {schema}.event_handlers (bus, handler_id, node, pattern, created_at, last_seen_at, kept_until)
SELECT $1, handler_id, $2, pattern, to_timestamp($5), to_timestamp($5), to_timestamp($6)
FROM unnest($3::text[], $4::text[]) AS given (handler_id, pattern) ORDER BY handler_id
ON CONFLICT (bus, handler_id, node) DO UPDATE
SET pattern = excluded.pattern, last_seen_at = excluded.last_seen_at, kept_until = excluded.kept_until

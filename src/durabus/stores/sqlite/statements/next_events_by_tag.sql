-- The first events of a bus with one tag, in queue order. Walks the primary key of event_tags from its beginning.
SELECT priority, id FROM event_tags WHERE bus = :bus AND tag = :tag ORDER BY priority DESC, id LIMIT :limit

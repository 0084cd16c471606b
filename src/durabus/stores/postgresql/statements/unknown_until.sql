-- Ids of events that are neither live, nor dead letters, nor COMPLETED any more, but have entries at or before a
-- position and an instant, oldest first. Walks published_position and event_log_position.
SELECT entry.id FROM (
    SELECT id, tx, position, at FROM {schema}.published
    WHERE (tx, position) <= ($1::text::xid8, $2::bigint)
    UNION ALL
    SELECT id, tx, position, at FROM {schema}.event_log WHERE (tx, position) <= ($1::text::xid8, $2::bigint)
) AS entry
WHERE entry.at <= {schema}.the_time($3) - make_interval(secs => $4)
  AND NOT EXISTS (SELECT FROM {schema}.events WHERE events.id = entry.id)
  AND NOT EXISTS (SELECT FROM {schema}.dead_letters WHERE dead_letters.id = entry.id)
  AND NOT EXISTS (SELECT FROM {schema}.event_log AS ended WHERE ended.id = entry.id AND ended.completed)
GROUP BY entry.id ORDER BY min(ARRAY[tx::text::bigint, position]) LIMIT $5

-- Ids of events that are neither live, nor dead letters, nor COMPLETED any more, but have entries at or before a
-- position and an instant, oldest first. Walks the primary key of event_log; relies on event_log_event.
SELECT entry.id FROM event_log AS entry
WHERE entry.position <= :until AND entry.at <= :before
  AND NOT EXISTS (SELECT 1 FROM events WHERE events.id = entry.id)
  AND NOT EXISTS (SELECT 1 FROM dead_letters WHERE dead_letters.id = entry.id)
  AND NOT EXISTS (
      SELECT 1 FROM event_log AS ended
      WHERE ended.id = entry.id AND ended.action <> 'PUBLISHED' AND ended.completed = 1
  )
GROUP BY entry.id ORDER BY min(entry.position) LIMIT :limit

-- Results of events that are neither live nor dead letters. Walks the unique index of event_results from the oldest id.
DELETE FROM event_results WHERE result_id IN (
    SELECT result.result_id FROM event_results AS result
    WHERE NOT EXISTS (SELECT 1 FROM events WHERE events.id = result.id)
      AND NOT EXISTS (SELECT 1 FROM dead_letters WHERE dead_letters.id = result.id)
    ORDER BY result.id, result.handler_id LIMIT :limit
)

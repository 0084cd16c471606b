-- Results of events that are neither live nor dead letters, from the oldest id. Walks the primary key of event_results.
DELETE FROM {schema}.event_results WHERE (id, handler_id) IN (
    SELECT result.id, result.handler_id FROM {schema}.event_results AS result
    WHERE NOT EXISTS (SELECT FROM {schema}.events WHERE events.id = result.id)
      AND NOT EXISTS (SELECT FROM {schema}.dead_letters WHERE dead_letters.id = result.id)
    ORDER BY result.id, result.handler_id LIMIT $1
) RETURNING 1

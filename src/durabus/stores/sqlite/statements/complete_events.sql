-- COMPLETED entries for plain claims (no results) in the order given (id -> execution time): claims of one
-- token and fence, or with no token claims that were checked in this transaction before. Fewer changes than ids: one
-- of them is not as it should be, and all is taken back.
-- The entry carries everything: from now on it is the event. Relies on the primary key of events.
INSERT INTO event_log (
    id, event_id, bus, type, action, status, attempt, generation, fence, worker_id, token, at, created_at,
    execution_time_ms, completed, priority, max_attempts, due_at, processing_started_at, started_at, idempotency_key,
    parent_id, tags, metadata, errors, payload
)
SELECT
    event.id, event.event_id, event.bus, event.type, 'COMPLETED', 'COMPLETED', event.attempts, event.generation,
    event.fence, event.worker_id, event.token, :now, event.created_at,
    done.value, 1, event.priority, event.max_attempts, event.due_at, event.processing_started_at, event.started_at,
    event.idempotency_key, event.parent_id, event.tags, event.metadata, event.errors, event.payload
FROM json_each(:times) AS done CROSS JOIN events AS event
WHERE event.id = CAST(done.key AS INTEGER)
  AND (
      :token IS NULL
      OR event.token = :token AND event.fence = :fence AND event.status = 'PROCESSING'
      AND event.has_results = 0
  )

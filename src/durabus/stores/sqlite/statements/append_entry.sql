-- One log entry of a transition that the kernel decided. The last columns are set for COMPLETED only: then this row
-- is the event, and get_event is served from it.
INSERT INTO event_log (
    action, id, event_id, bus, type, status, at, created_at, attempt, generation, fence, worker_id, error,
    reason, next_retry_at, execution_time_ms, status_code, tags, metadata, parent_id, payload, errors, results, token,
    completed, priority, max_attempts, due_at, processing_started_at, started_at, idempotency_key
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

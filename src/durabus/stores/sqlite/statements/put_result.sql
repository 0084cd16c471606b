-- Writes a handler's state; an existing one keeps its place in the order. Relies on the unique index of event_results.
INSERT INTO event_results (
    id, handler_id, status, attempts, error, value, execution_time_ms, fence, worker_id, lease_expires_at, token,
    settled_token
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id, handler_id) DO UPDATE SET
    status = excluded.status, attempts = excluded.attempts, error = excluded.error, value = excluded.value,
    execution_time_ms = excluded.execution_time_ms, fence = excluded.fence, worker_id = excluded.worker_id,
    lease_expires_at = excluded.lease_expires_at, token = excluded.token, settled_token = excluded.settled_token

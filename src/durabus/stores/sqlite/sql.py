"""Gives the statements of ``statements/<part>.sql`` by name, and fills in their lists of columns."""

from __future__ import annotations

from durabus.stores.sql.statements import statements

_EVENT_HEAD = (
    "id, event_id, bus, type, payload, metadata, tags, priority, max_attempts, parent_id, idempotency_key, status"
)

COLUMNS = {
    # the order that rows.event_of unpacks
    "{event}": f"{_EVENT_HEAD}, attempts, generation, fence, worker_id, errors, created_at, updated_at, due_at, "
    "processing_started_at, started_at, lease_expires_at",
    "{dead_letter}": f"{_EVENT_HEAD}, attempts, generation, fence, worker_id, errors, created_at, updated_at, due_at, "
    "processing_started_at, started_at, NULL",
    "{completed}": f"{_EVENT_HEAD}, attempt, generation, fence, worker_id, errors, created_at, at, due_at, "
    "processing_started_at, started_at, NULL",
    # the order that rows.entry_of unpacks, and that of LOG_COLUMNS
    "{entry}": (
        "CAST(position AS TEXT), action, id, event_id, bus, type, status, at, created_at, attempt, generation, fence, "
        "worker_id, error, reason, next_retry_at, execution_time_ms, status_code, tags, metadata, parent_id, payload, "
        "errors, results"
    ),
    # the order that rows.handler_of unpacks
    "{result}": "handler_id, status, attempts, error, value, execution_time_ms, fence, worker_id, lease_expires_at, "
    "token, settled_token",
}


def statement(name: str) -> str:
    """Return the statement of this name, with its columns filled in."""
    bare = statements(__package__)[name]
    for placeholder, columns in COLUMNS.items():
        bare = bare.replace(placeholder, columns)
    return bare

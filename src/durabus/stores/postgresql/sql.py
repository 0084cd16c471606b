"""Gives the statements of ``statements/<part>.sql`` by name, and fills in their schema and lists of columns.

A statement names its tables as ``{schema}.events``: the store cannot rely on the search path of a caller's connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from durabus.stores.sql.rows import Row
from durabus.stores.sql.statements import statements


def _instant(column: str) -> str:
    return f"date_part('epoch', {column})"


_EVENT_HEAD = (
    "id, event_id::text, bus, type, payload, metadata, array_to_json(tags)::text, priority, max_attempts, "
    "parent_id::text, idempotency_key, status"
)
_EVENT_REST = (
    f"generation, fence, worker_id, errors, {_instant('created_at')}, {_instant('updated_at')}, {_instant('due_at')}, "
    f"{_instant('processing_started_at')}, {_instant('started_at')}"
)

COLUMNS = {
    # the order that rows.event_of unpacks
    "{event}": f"{_EVENT_HEAD}, attempts, {_EVENT_REST}, {_instant('lease_expires_at')}",
    "{dead_letter}": f"{_EVENT_HEAD}, attempts, {_EVENT_REST}, NULL::double precision",
    "{completed}": (
        "id, event_id::text, bus, type, payload, metadata, tags, priority, max_attempts, parent_id::text, "
        f"idempotency_key, status, attempt, generation, fence, worker_id, errors, {_instant('created_at')}, "
        f"{_instant('at')}, {_instant('due_at')}, {_instant('processing_started_at')}, {_instant('started_at')}, "
        "NULL::double precision"
    ),
    # the order that rows.entry_of unpacks, and that of LOG_COLUMNS
    "{entry}": (
        "to_hex(tx::text::bigint) || '-' || to_hex(position), action, id, event_id::text, bus, type, status, "
        f"{_instant('at')}, {_instant('created_at')}, attempt, generation, fence, worker_id, error, reason, "
        f"{_instant('next_retry_at')}, execution_time_ms, status_code, tags, metadata, parent_id::text, payload, "
        "errors, results"
    ),
    "{log_columns}": (
        "tx, position, action, id, event_id, bus, type, status, at, created_at, attempt, generation, fence, worker_id, "
        "error, reason, next_retry_at, execution_time_ms, status_code, tags, metadata, parent_id, payload, errors, "
        "results"
    ),
    "{published_columns}": (
        "tx, position, 'PUBLISHED' AS action, id, event_id, bus, type, 'PENDING' AS status, at, at AS created_at, "
        "0 AS attempt, 0 AS generation, 0::bigint AS fence, NULL::text AS worker_id, NULL::text AS error, "
        "NULL::text AS reason, "
        "NULL::timestamptz AS next_retry_at, NULL::double precision AS execution_time_ms, "
        "NULL::integer AS status_code, tags, metadata, parent_id, NULL::text AS payload, NULL::text AS errors, "
        "NULL::text AS results"
    ),
    # the order that rows.handler_of unpacks
    "{result}": (
        "handler_id, status, attempts, error, value, execution_time_ms, fence, worker_id, "
        f"{_instant('lease_expires_at')}, token, settled_token"
    ),
}


@cache
def _text(name: str) -> str:
    bare = statements(__package__)[name]
    for placeholder, columns in COLUMNS.items():
        bare = bare.replace(placeholder, columns)
    return bare.replace("{actual_objects}", _text("actual_objects")) if "{actual_objects}" in bare else bare


class Statements:
    """The statements for one schema, by name."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._made: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        """Return the statement of this name for this schema."""
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = _text(name).replace("{schema}", f'"{self.schema}"')
        return made


def columns(rows: Sequence[Row]) -> list[list[Any]]:
    """Return rows as the arrays that ``unnest`` takes."""
    return [list(column) for column in zip(*rows, strict=True)]


def instant(seconds: float) -> float:
    """Return an instant as PostgreSQL will return it: it keeps microseconds."""
    return round(seconds, 6)

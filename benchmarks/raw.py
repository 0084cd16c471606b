"""The ceiling: the same work by hand on the same driver, into the same tables, under the same pragmas.

It has no deduplication, no log of publishing and claiming, no validation, no threads, no event loop.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, time
from typing import Any

import uuid_utils

from benchmarks.bench import sqlite_url
from durabus import EventQueue, open_store
from durabus.stores.sqlite.connection import connect_writer

PAYLOAD = {"order_id": 10_000_001, "customer": "c-48121", "total": "129.90", "currency": "EUR", "lines": [1, 2, 3]}
EVENT_TYPE = "order.placed"

CLAIM = """
UPDATE events SET
    status = 'PROCESSING', ready = 0, attempts = attempts + 1, fence = fence + 1, worker_id = :worker, token = :token,
    updated_at = :now, processing_started_at = :now, lease_expires_at = :now + 30
WHERE id IN (SELECT id FROM events WHERE bus = 'default' AND ready = 1 ORDER BY priority DESC, id LIMIT 100)
RETURNING id, event_id, type, payload, attempts, fence
"""
LOG = """
INSERT INTO event_log (
    id, event_id, bus, type, action, status, attempt, generation, fence, worker_id, token, at, created_at,
    execution_time_ms, completed, priority, due_at, processing_started_at, payload
)
SELECT
    id, event_id, bus, type, 'COMPLETED', 'COMPLETED', attempts, generation, fence, worker_id, token, :now, created_at,
    0.001, 1, priority, due_at, processing_started_at, payload
FROM events WHERE token = :token
"""
DELETE = "DELETE FROM events WHERE token = :token"


def connect(path: Path) -> sqlite3.Connection:
    """Connect with the pragmas of durabus: WAL, synchronous=FULL, its checkpoints and cache."""
    return connect_writer(path, synchronous="full")


def install(path: Path) -> dict[str, Any]:
    """Make the tables of durabus. Returns an event's row as durabus writes it."""

    async def publish_one() -> None:
        store = await open_store(sqlite_url(path))
        await EventQueue(store).publish(EVENT_TYPE, PAYLOAD)
        await store.close()

    asyncio.run(publish_one())
    connection = connect(path)
    cursor = connection.execute("SELECT * FROM events")
    row = dict(zip([column[0] for column in cursor.description], cursor.fetchone(), strict=True))
    connection.execute("DELETE FROM events")
    connection.close()
    return row


def publish_single(path: Path, count: int) -> float:
    """Return events per second, with one insert and one commit each."""
    insert, rows = _rows(path, count)
    connection = connect(path)
    started = perf_counter()
    for row in rows:
        connection.execute(insert, row)  # no BEGIN: the statement is the transaction
    seconds = perf_counter() - started
    _finish(connection, count)
    return count / seconds


def publish_batches(path: Path, count: int, batch: int) -> float:
    """Return events per second, with one transaction for each batch."""
    insert, rows = _rows(path, count)
    connection = connect(path)
    started = perf_counter()
    for first in range(0, count, batch):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(insert, rows[first : first + batch])
        connection.execute("COMMIT")
    seconds = perf_counter() - started
    _finish(connection, count)
    return count / seconds


def drain(path: Path, *, shared: bool) -> int:
    """Complete what was claimed and claim the next 100 in one transaction, until nothing is left. Returns how many."""
    connection = connect(path)
    lock = os.open(path.with_name("raw.lock"), os.O_RDWR | os.O_CREAT)
    worker, token, count = f"raw:{os.getpid()}", "", 0
    while True:
        with _held(lock, shared=shared):
            now = time()
            connection.execute("BEGIN IMMEDIATE")
            if token:
                connection.execute(LOG, {"now": now, "token": token})
                connection.execute(DELETE, {"token": token})
            token = os.urandom(16).hex()
            claimed = connection.execute(CLAIM, {"worker": worker, "token": token, "now": now}).fetchall()
            connection.execute("COMMIT")
        count += len(claimed)
        if not claimed:
            connection.close()
            os.close(lock)
            return count


@contextmanager
def _held(lock: int, *, shared: bool) -> Iterator[None]:
    """Take turns with other processes at a side file, as durabus does: SQLite's own lock starves some of them."""
    if not shared:
        yield
        return
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)


def _rows(path: Path, count: int) -> tuple[str, list[tuple[Any, ...]]]:
    """Return the insert and its rows, made before the clock runs."""
    template = {column: value for column, value in install(path).items() if value is not None and column != "id"}
    columns = list(template)
    insert = f"INSERT INTO events ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608
    rows = [tuple({**template, "event_id": str(uuid_utils.uuid7())}.values()) for _ in range(count)]
    return insert, rows


def _finish(connection: sqlite3.Connection, count: int) -> None:
    assert connection.execute("SELECT count(*) FROM events").fetchone()[0] == count
    connection.close()

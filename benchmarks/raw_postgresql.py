"""The ceiling on PostgreSQL: the same work by hand on asyncpg, into narrow tables with the indexes it needs.

It has no deduplication by key, no log of publishing and claiming, no retries, no validation and no notifications.
"""

from __future__ import annotations

import os
from time import perf_counter
from typing import Any

import asyncpg
import msgspec
import uuid_utils

from benchmarks import raw

TABLES = """
CREATE TABLE raw_events (
    event_id uuid PRIMARY KEY, seq bigint GENERATED ALWAYS AS IDENTITY, bus text NOT NULL, type text NOT NULL,
    status smallint NOT NULL DEFAULT 0, attempts integer NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0,
    token text, worker_id text, created_at timestamptz NOT NULL DEFAULT clock_timestamp(), lease_expires_at timestamptz,
    payload text NOT NULL
);
CREATE INDEX raw_events_ready ON raw_events (bus, seq) WHERE status = 0;
CREATE INDEX raw_events_leased ON raw_events (lease_expires_at) WHERE status = 1;
CREATE TABLE raw_log (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event_id uuid NOT NULL, seq bigint NOT NULL,
    bus text NOT NULL, type text NOT NULL, attempts integer NOT NULL, fence bigint NOT NULL, worker_id text,
    created_at timestamptz NOT NULL, at timestamptz NOT NULL, payload text NOT NULL
);
"""
INSERT = "INSERT INTO raw_events (event_id, bus, type, payload) VALUES ($1, 'default', $2, $3)"
INSERT_MANY = """
INSERT INTO raw_events (event_id, bus, type, payload)
SELECT event_id, 'default', $2, payload FROM unnest($1::uuid[], $3::text[]) AS given (event_id, payload)
"""
COMPLETE_AND_CLAIM = """
WITH done AS (
    DELETE FROM raw_events WHERE event_id = ANY($1::uuid[]) AND token = $2
    RETURNING event_id, seq, bus, type, attempts, fence, worker_id, created_at, payload
), logged AS (
    INSERT INTO raw_log (event_id, seq, bus, type, attempts, fence, worker_id, created_at, at, payload)
    SELECT event_id, seq, bus, type, attempts, fence, worker_id, created_at, clock_timestamp(), payload FROM done
)
UPDATE raw_events SET
    status = 1, attempts = attempts + 1, fence = fence + 1, token = $3, worker_id = $4,
    lease_expires_at = clock_timestamp() + interval '30 seconds'
WHERE event_id = ANY(ARRAY(
    SELECT event_id FROM raw_events WHERE bus = 'default' AND status = 0 ORDER BY seq LIMIT $5 FOR UPDATE SKIP LOCKED
))
RETURNING event_id, seq, type, attempts, fence, payload
"""
PAYLOAD = msgspec.json.encode(raw.PAYLOAD).decode()
CLAIM = 100


async def install(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(TABLES)
    await connection.close()


async def publish_single(url: str, count: int) -> float:
    """Return events per second, with one insert and one commit each."""
    await install(url)
    connection = await asyncpg.connect(url)
    ids = [str(uuid_utils.uuid7()) for _ in range(count)]
    insert = await connection.prepare(INSERT)
    started = perf_counter()
    for event_id in ids:
        await insert.fetch(event_id, raw.EVENT_TYPE, PAYLOAD)
    seconds = perf_counter() - started
    await _finish(connection, count)
    return count / seconds


async def publish_batches(url: str, count: int, batch: int) -> float:
    """Return events per second, with one statement for each batch."""
    await install(url)
    connection = await asyncpg.connect(url)
    batches = [[str(uuid_utils.uuid7()) for _ in range(batch)] for _ in range(count // batch)]
    insert = await connection.prepare(INSERT_MANY)
    started = perf_counter()
    for ids in batches:
        await insert.fetch(ids, raw.EVENT_TYPE, [PAYLOAD] * batch)
    seconds = perf_counter() - started
    await _finish(connection, count)
    return count / seconds


async def fill(url: str, count: int, batch: int = 10_000) -> None:
    await install(url)
    connection = await asyncpg.connect(url)
    for first in range(0, count, batch):
        ids = [str(uuid_utils.uuid7()) for _ in range(min(batch, count - first))]
        await connection.execute(INSERT_MANY, ids, raw.EVENT_TYPE, [PAYLOAD] * len(ids))
    await connection.close()


async def drain(connection: asyncpg.Connection[asyncpg.Record]) -> int:
    """Complete what was claimed and claim the next 100 in one statement, until nothing is left. Returns how many."""
    step = await connection.prepare(COMPLETE_AND_CLAIM)
    worker, count, token, held = f"raw:{os.getpid()}", 0, "", list[Any]()
    while True:
        before, token = token, os.urandom(16).hex()
        claimed = await step.fetch(held, before, token, worker, CLAIM)
        held = [row["event_id"] for row in claimed]
        count += len(claimed)
        if not claimed:
            return count


async def _finish(connection: asyncpg.Connection[asyncpg.Record], count: int) -> None:
    assert await connection.fetchval("SELECT count(*) FROM raw_events") == count
    await connection.close()

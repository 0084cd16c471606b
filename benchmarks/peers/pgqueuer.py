"""PgQueuer on asyncpg."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

import asyncpg
import msgspec
from pgqueuer import AsyncpgDriver, AsyncpgPoolDriver, PgQueuer, Queries

from benchmarks.peers.peer import BATCH, PAYLOAD, SLOTS

NAME = "bench"


class PgQueuerPeer:
    package = "pgqueuer"
    settings = f"uvloop, as its command does; asyncpg pool, batch_size={SLOTS}"
    unfinished = "SELECT EXISTS (SELECT FROM pgqueuer)"
    uvloop = True
    slow = False
    batches = True

    async def install(self, url: str) -> None:
        connection = await asyncpg.connect(url)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def publish_single(self, url: str, count: int) -> float:
        connection = await asyncpg.connect(url)
        queries, payload = Queries(AsyncpgDriver(connection)), msgspec.json.encode(PAYLOAD)
        await queries.enqueue(NAME, payload)
        started = perf_counter()
        for _ in range(count):
            await queries.enqueue(NAME, payload)
        seconds = perf_counter() - started
        await connection.close()
        return seconds

    async def publish_batches(self, url: str, count: int) -> float:
        connection = await asyncpg.connect(url)
        queries, payload = Queries(AsyncpgDriver(connection)), msgspec.json.encode(PAYLOAD)
        started = perf_counter()
        for _ in range(count // BATCH):
            await queries.enqueue([NAME] * BATCH, [payload] * BATCH, [0] * BATCH)
        seconds = perf_counter() - started
        await connection.close()
        return seconds

    async def drain(self, url: str, go: Callable[[], Awaitable[None]], stop: Callable[[], Awaitable[None]]) -> int:
        handled = 0

        async def handler(_job: Any) -> None:
            nonlocal handled
            handled += 1

        async with asyncpg.create_pool(url, min_size=4, max_size=10) as pool:
            queue = PgQueuer(AsyncpgPoolDriver(pool))
            queue.entrypoint(NAME)(handler)
            await go()
            running = asyncio.create_task(queue.run(batch_size=SLOTS))
            await stop()
            queue.shutdown.set()
            await running
        return handled


PEER = PgQueuerPeer()

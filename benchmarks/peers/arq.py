"""arq."""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func

from benchmarks.peers.peer import PAYLOAD, SLOTS, Turn

FILLERS = 50


class Arq:
    package = "arq"
    settings = f"max_jobs={SLOTS}, poll_delay=0.01, keep_result=0; no batch call"
    unfinished = "return redis.call('ZCARD', 'arq:queue') > 0 and 1 or 0"
    uvloop = False
    slow = True
    batches = False

    def __init__(self) -> None:
        self.handled = 0

    async def install(self, url: str) -> None:
        """Do nothing: arq needs no tables."""

    async def publish_single(self, url: str, count: int) -> float:
        pool = await create_pool(RedisSettings.from_dsn(url))
        started = perf_counter()
        for _ in range(count):
            await pool.enqueue_job("bench", **PAYLOAD)
        return perf_counter() - started

    async def publish_batches(self, url: str, count: int) -> float:
        started = perf_counter()
        await asyncio.gather(*(self.publish_single(url, count // FILLERS) for _ in range(FILLERS)))
        return perf_counter() - started

    async def drain(self, url: str, go: Turn, stop: Turn) -> int:
        logging.getLogger("arq").setLevel(logging.ERROR)

        async def handler(_context: dict[Any, Any], **_payload: object) -> None:
            self.handled += 1

        worker = Worker(
            [func(handler, name="bench", keep_result=0)],
            redis_settings=RedisSettings.from_dsn(url),
            max_jobs=SLOTS,
            poll_delay=0.01,
            handle_signals=False,
        )
        await go()
        running = asyncio.create_task(worker.async_run())
        await stop()
        running.cancel()
        await asyncio.wait([running])
        return self.handled


PEER = Arq()

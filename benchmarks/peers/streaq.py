"""streaQ."""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter
from typing import Any

from streaq import Worker

from benchmarks.peers.peer import BATCH, PAYLOAD, SLOTS, Turn


class Streaq:
    package = "streaq"
    settings = f"uvloop, as its documentation advises; concurrency={SLOTS}, ttl=0 (no results kept), silent tasks"
    unfinished = "return redis.call('XLEN', 'streaq:default:queues:normal') > 0 and 1 or 0"
    uvloop = True
    slow = True
    batches = True

    def __init__(self) -> None:
        self.handled = 0

    def _worker(self, url: str) -> tuple[Any, Any]:
        logging.getLogger("streaq").setLevel(logging.ERROR)
        worker: Any = Worker(redis_url=url, concurrency=SLOTS, handle_signals=False)

        async def handler(**_payload: object) -> None:
            self.handled += 1

        return worker, worker.task(name="bench", ttl=0, silent=True)(handler)

    async def install(self, url: str) -> None:
        """Do nothing: the worker of streaQ makes what it needs."""

    async def publish_single(self, url: str, count: int) -> float:
        worker, task = self._worker(url)
        async with worker:
            started = perf_counter()
            for _ in range(count):
                await task.enqueue(**PAYLOAD)
            return perf_counter() - started

    async def publish_batches(self, url: str, count: int) -> float:
        worker, task = self._worker(url)
        async with worker:
            started = perf_counter()
            for _ in range(count // BATCH):
                await worker.enqueue_many([task.enqueue(**PAYLOAD) for _ in range(BATCH)])
            return perf_counter() - started

    async def drain(self, url: str, go: Turn, stop: Turn) -> int:
        worker, _ = self._worker(url)
        await go()
        running = asyncio.create_task(worker.run_async())
        await stop()
        running.cancel()
        await asyncio.wait([running])
        return self.handled


PEER = Streaq()

"""SAQ on Redis."""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter
from typing import Any

from saq import Queue, Worker

from benchmarks.peers.peer import PAYLOAD, SLOTS, Turn

FILLERS = 50


class Saq:
    package = "saq"
    settings = f"concurrency={SLOTS}, ttl=-1 (no results kept), max_concurrent_ops={SLOTS}; no batch call"
    unfinished = "return redis.call('ZCARD', 'saq:default:incomplete') > 0 and 1 or 0"
    uvloop = False
    slow = True
    batches = False

    def __init__(self) -> None:
        self.handled = 0

    async def install(self, url: str) -> None:
        """Do nothing: SAQ needs no tables on Redis."""

    async def publish_single(self, url: str, count: int) -> float:
        queue = Queue.from_url(url)
        await queue.connect()
        started = perf_counter()
        await self._enqueue(queue, count)
        seconds = perf_counter() - started
        await queue.disconnect()
        return seconds

    async def publish_batches(self, url: str, count: int) -> float:
        queue = Queue.from_url(url, max_concurrent_ops=FILLERS)
        await queue.connect()
        started = perf_counter()
        await asyncio.gather(*(self._enqueue(queue, count // FILLERS) for _ in range(FILLERS)))
        seconds = perf_counter() - started
        await queue.disconnect()
        return seconds

    async def _enqueue(self, queue: Queue, count: int) -> None:
        for _ in range(count):
            await queue.enqueue("bench", ttl=-1, **PAYLOAD)

    async def drain(self, url: str, go: Turn, stop: Turn) -> int:
        logging.getLogger("saq").setLevel(logging.ERROR)

        async def handler(_context: Any, **_payload: object) -> None:
            self.handled += 1

        queue = Queue.from_url(url, max_concurrent_ops=SLOTS)
        await queue.connect()
        worker: Any = Worker(queue, [("bench", handler)], concurrency=SLOTS)
        worker.SIGNALS = []
        await go()
        running = asyncio.create_task(worker.start())
        await stop()
        await worker.stop()
        running.cancel()
        await asyncio.wait([running])
        await queue.disconnect()
        return self.handled


PEER = Saq()

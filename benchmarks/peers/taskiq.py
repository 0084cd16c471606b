"""taskiq on Redis streams, its broker with acknowledgements."""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter
from typing import Any

from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from benchmarks.peers.peer import PAYLOAD, SLOTS, Turn

FILLERS = 50


class Taskiq:
    package = "taskiq-redis"
    settings = f"RedisStreamBroker, max_async_tasks={SLOTS}, validate_params=False; no results, no batch call"
    unfinished = (
        "local group = redis.call('XINFO', 'GROUPS', 'taskiq')[1] or {} local left = {} "
        "for n = 1, #group, 2 do left[group[n]] = group[n + 1] end "
        "return (left.pending or 0) + (left.lag or 1) > 0 and 1 or 0"
    )
    uvloop = True
    slow = True
    batches = False

    def __init__(self) -> None:
        self.handled = 0

    def _broker(self, url: str) -> tuple[Any, Any]:
        logging.getLogger("taskiq").setLevel(logging.ERROR)
        broker = RedisStreamBroker(url, consumer_id="0")

        async def handler(**_payload: object) -> None:
            self.handled += 1

        return broker, broker.register_task(handler, task_name="bench")

    async def install(self, url: str) -> None:
        broker, _ = self._broker(url)
        await broker.startup()
        await broker.shutdown()

    async def publish_single(self, url: str, count: int) -> float:
        broker, task = self._broker(url)
        await broker.startup()
        started = perf_counter()
        for _ in range(count):
            await task.kiq(**PAYLOAD)
        seconds = perf_counter() - started
        await broker.shutdown()
        return seconds

    async def publish_batches(self, url: str, count: int) -> float:
        started = perf_counter()
        await asyncio.gather(*(self.publish_single(url, count // FILLERS) for _ in range(FILLERS)))
        return perf_counter() - started

    async def drain(self, url: str, go: Turn, stop: Turn) -> int:
        broker, _ = self._broker(url)
        await broker.startup()
        await go()
        running = asyncio.create_task(
            run_receiver_task(broker, max_async_tasks=SLOTS, max_prefetch=SLOTS, validate_params=False)
        )
        await stop()
        running.cancel()
        await asyncio.wait([running])
        return self.handled


PEER = Taskiq()

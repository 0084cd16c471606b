"""Dramatiq on Redis."""

from __future__ import annotations

import asyncio
import itertools
import logging
from time import perf_counter
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.peer import PAYLOAD, Turn

FILLERS = 8


class Dramatiq:
    package = "dramatiq"
    settings = "8 worker threads, as its command has, plain functions; no batch call"
    unfinished = (
        "if redis.call('LLEN', 'dramatiq:default') > 0 then return 1 end "
        "for _, key in ipairs(redis.call('KEYS', 'dramatiq:__acks__.*.default')) do "
        "if redis.call('SCARD', key) > 0 then return 1 end end return 0"
    )
    uvloop = False
    slow = True
    batches = False

    def __init__(self) -> None:
        self._counter = itertools.count()

    def _actor(self, url: str) -> tuple[Any, Any]:
        logging.getLogger("dramatiq").setLevel(logging.ERROR)
        broker: Any = RedisBroker(url=url)

        def handler(**_payload: object) -> None:
            next(self._counter)

        return broker, dramatiq.actor(handler, actor_name="bench", broker=broker)

    async def install(self, url: str) -> None:
        """Do nothing: Dramatiq needs no tables."""

    async def publish_single(self, url: str, count: int) -> float:
        return await asyncio.to_thread(self._send, url, count)

    def _send(self, url: str, count: int) -> float:
        _, actor = self._actor(url)
        started = perf_counter()
        for _ in range(count):
            actor.send(**PAYLOAD)
        return perf_counter() - started

    async def publish_batches(self, url: str, count: int) -> float:
        started = perf_counter()
        await asyncio.gather(*(asyncio.to_thread(self._send, url, count // FILLERS) for _ in range(FILLERS)))
        return perf_counter() - started

    async def drain(self, url: str, go: Turn, stop: Turn) -> int:
        broker, _ = self._actor(url)
        worker: Any = dramatiq.Worker(broker, worker_threads=8)
        await go()
        worker.start()
        await stop()
        await asyncio.to_thread(worker.stop)
        return next(self._counter)


PEER = Dramatiq()

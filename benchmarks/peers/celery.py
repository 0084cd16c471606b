"""Celery on Redis."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

from celery import Celery
from celery.worker import state

from benchmarks.peers.peer import PAYLOAD, SLOTS, Turn

FILLERS = 8


class CeleryPeer:
    package = "celery"
    settings = (
        f"solo pool, worker_prefetch_multiplier={SLOTS}, results ignored, no gossip, mingle, heartbeat; acknowledges a "
        "job before it runs; no batch call"
    )
    unfinished = "return redis.call('LLEN', 'celery') + redis.call('HLEN', 'unacked') > 0 and 1 or 0"
    uvloop = False
    slow = True
    batches = False

    def __init__(self) -> None:
        self.handled = 0

    def _app(self, url: str) -> tuple[Any, Any]:
        app: Any = Celery("bench", broker=url)
        app.conf.task_ignore_result = True
        app.conf.worker_prefetch_multiplier = SLOTS
        app.conf.worker_hijack_root_logger = False

        def handler(**_payload: object) -> None:
            self.handled += 1

        return app, app.task(handler, name="bench")

    async def install(self, url: str) -> None:
        """Do nothing: Celery needs no tables."""

    async def publish_single(self, url: str, count: int) -> float:
        return await asyncio.to_thread(self._delay, url, count)

    def _delay(self, url: str, count: int) -> float:
        _, task = self._app(url)
        task.delay(**PAYLOAD)
        started = perf_counter()
        for _ in range(count - 1):
            task.delay(**PAYLOAD)
        return perf_counter() - started

    async def publish_batches(self, url: str, count: int) -> float:
        started = perf_counter()
        await asyncio.gather(*(asyncio.to_thread(self._delay, url, count // FILLERS) for _ in range(FILLERS)))
        return perf_counter() - started

    async def drain(self, url: str, go: Turn, stop: Turn) -> int:
        app, _ = self._app(url)
        worker = app.WorkController(
            pool="solo",
            concurrency=1,
            loglevel="ERROR",
            without_gossip=True,
            without_heartbeat=True,
            without_mingle=True,
        )
        await go()
        running = asyncio.create_task(asyncio.to_thread(worker.start))
        await stop()
        state.should_terminate = 0
        await asyncio.wait([running], timeout=10)
        return self.handled


PEER = CeleryPeer()

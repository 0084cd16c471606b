"""Procrastinate on psycopg."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

from procrastinate import App, PsycopgConnector

from benchmarks.peers.peer import BATCH, PAYLOAD, SLOTS


class Procrastinate:
    package = "procrastinate"
    settings = f"concurrency={SLOTS}, pool of 20 connections"
    unfinished = "SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))"
    uvloop = False
    slow = True
    batches = True

    def __init__(self) -> None:
        self.handled = 0

    def _app(self, url: str) -> tuple[App, Any]:
        logging.getLogger("procrastinate").setLevel(logging.ERROR)
        app = App(connector=PsycopgConnector(conninfo=url, min_size=4, max_size=20))

        async def handler(**_payload: object) -> None:
            self.handled += 1

        return app, app.task(name="bench")(handler)

    async def install(self, url: str) -> None:
        app, _ = self._app(url)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def publish_single(self, url: str, count: int) -> float:
        app, task = self._app(url)
        async with app.open_async():
            await task.defer_async(**PAYLOAD)
            started = perf_counter()
            for _ in range(count):
                await task.defer_async(**PAYLOAD)
            return perf_counter() - started

    async def publish_batches(self, url: str, count: int) -> float:
        app, task = self._app(url)
        async with app.open_async():
            started = perf_counter()
            for _ in range(count // BATCH):
                await task.batch_defer_async(*[PAYLOAD] * BATCH)
            return perf_counter() - started

    async def drain(self, url: str, go: Callable[[], Awaitable[None]], stop: Callable[[], Awaitable[None]]) -> int:
        app, _ = self._app(url)
        async with app.open_async():
            await go()
            running = asyncio.create_task(app.run_worker_async(concurrency=SLOTS, install_signal_handlers=False))
            await stop()
            running.cancel()
            await asyncio.wait([running])
        return self.handled


PEER = Procrastinate()

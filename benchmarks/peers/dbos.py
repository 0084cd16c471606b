"""DBOS: a workflow without steps on a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

from dbos import DBOS, DBOSClient

from benchmarks.peers.peer import PAYLOAD, SLOTS

QUEUE, WORKFLOW = "bench", "bench"
FILLERS = 8


class Dbos:
    package = "dbos"
    settings = f"worker_concurrency={SLOTS}, polling_interval_sec=0.01, pool of 20 connections; no batch call"
    unfinished = "SELECT EXISTS (SELECT FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING'))"
    uvloop = False
    slow = True
    batches = False

    def __init__(self) -> None:
        self.handled = 0

    def _launch(self, url: str) -> None:
        config: Any = {
            "name": "bench",
            "application_version": "1",
            "system_database_url": url,
            "sys_db_pool_size": 20,
            "console_log_level": "ERROR",
            "log_level": "ERROR",
        }
        DBOS(config=config)

        async def handler(_payload: object) -> None:
            self.handled += 1

        DBOS.workflow(name=WORKFLOW)(handler)
        DBOS.launch()

    async def install(self, url: str) -> None:
        def launch_once() -> None:
            self._launch(url)
            DBOS.register_queue(QUEUE, worker_concurrency=SLOTS, polling_interval_sec=0.01)
            DBOS.destroy()

        await asyncio.to_thread(launch_once)

    async def publish_single(self, url: str, count: int) -> float:
        return await asyncio.to_thread(self._enqueue, url, count)

    def _enqueue(self, url: str, count: int) -> float:
        client = DBOSClient(system_database_url=url)
        options: Any = {"workflow_name": WORKFLOW, "queue_name": QUEUE, "app_version": "1"}
        client.enqueue(options, PAYLOAD)
        started = perf_counter()
        for _ in range(count - 1):
            client.enqueue(options, PAYLOAD)
        seconds = perf_counter() - started
        client.destroy()
        return seconds

    async def publish_batches(self, url: str, count: int) -> float:
        started = perf_counter()
        fillers = [asyncio.to_thread(self._enqueue, url, count // FILLERS) for _ in range(FILLERS)]
        await asyncio.gather(*fillers)
        return perf_counter() - started

    async def drain(self, url: str, go: Callable[[], Awaitable[None]], stop: Callable[[], Awaitable[None]]) -> int:
        await go()
        await asyncio.to_thread(self._launch, url)
        await stop()
        await asyncio.to_thread(DBOS.destroy)
        return self.handled


PEER = Dbos()

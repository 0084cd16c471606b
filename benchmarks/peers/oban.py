"""Oban for Python, the open edition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

from oban import Oban, job
from oban.schema import install

from benchmarks.peers.peer import BATCH, PAYLOAD, SLOTS

HANDLED = [0]


async def bench(**_payload: object) -> None:
    HANDLED[0] += 1


WORKER: Any = job(queue="default")(bench)


class ObanPeer:
    package = "oban"
    settings = f"uvloop, as its command does; queue limit {SLOTS}, pool of 10 connections"
    unfinished = (
        "SELECT EXISTS (SELECT FROM oban_jobs WHERE state IN ('available', 'executing', 'scheduled', 'retryable'))"
    )
    uvloop = True
    slow = False
    batches = True

    async def install(self, url: str) -> None:
        pool = await Oban.create_pool(url)
        await install(pool)
        await pool.close()

    async def publish_single(self, url: str, count: int) -> float:
        pool = await Oban.create_pool(url)
        oban = Oban(pool=pool)
        await oban.enqueue(WORKER.new(**PAYLOAD))
        started = perf_counter()
        for _ in range(count):
            await oban.enqueue(WORKER.new(**PAYLOAD))
        seconds = perf_counter() - started
        await pool.close()
        return seconds

    async def publish_batches(self, url: str, count: int) -> float:
        pool = await Oban.create_pool(url)
        oban = Oban(pool=pool)
        started = perf_counter()
        for _ in range(count // BATCH):
            await oban.enqueue_many([WORKER.new(**PAYLOAD) for _ in range(BATCH)])
        seconds = perf_counter() - started
        await pool.close()
        return seconds

    async def drain(self, url: str, go: Callable[[], Awaitable[None]], stop: Callable[[], Awaitable[None]]) -> int:
        pool = await Oban.create_pool(url, min_size=4, max_size=10)
        await go()
        async with Oban(pool=pool, queues={"default": SLOTS}):
            await stop()
        await pool.close()
        return HANDLED[0]


PEER = ObanPeer()

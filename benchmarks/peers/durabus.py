"""durabus itself: an EventBus with one handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import perf_counter

from benchmarks.peers.peer import BATCH, PAYLOAD, SLOTS
from durabus import Event, EventBus, EventQueue, new_event, open_store

TYPE = "order.placed"


class Durabus:
    package = "durabus"
    settings = f"concurrency={2 * SLOTS}, which claims {SLOTS} at a time; log of every transition on"
    unfinished = "SELECT EXISTS (SELECT FROM durabus.events)"
    uvloop = False
    slow = False
    batches = True

    async def install(self, url: str) -> None:
        await (await open_store(url)).close()

    async def publish_single(self, url: str, count: int) -> float:
        store = await open_store(url)
        queue = EventQueue(store)
        await queue.publish(TYPE, PAYLOAD)
        started = perf_counter()
        for _ in range(count):
            await queue.publish(TYPE, PAYLOAD)
        seconds = perf_counter() - started
        await store.close()
        return seconds

    async def publish_batches(self, url: str, count: int) -> float:
        store = await open_store(url)
        queue = EventQueue(store)
        started = perf_counter()
        for _ in range(count // BATCH):
            await queue.publish_batch([new_event(TYPE, PAYLOAD) for _ in range(BATCH)])
        seconds = perf_counter() - started
        await store.close()
        return seconds

    async def drain(self, url: str, go: Callable[[], Awaitable[None]], stop: Callable[[], Awaitable[None]]) -> int:
        handled = 0

        async def handler(_event: Event) -> None:
            nonlocal handled
            handled += 1

        store = await open_store(url)
        bus = EventBus(store, concurrency=2 * SLOTS)
        bus.subscribe(TYPE, handler)
        await go()
        async with bus:
            await stop()
        await store.close()
        return handled


PEER = Durabus()

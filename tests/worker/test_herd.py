"""Many idle workers and one event: a hint that all of them hear must not make all of them ask."""

import asyncio
from contextlib import AsyncExitStack
from statistics import median
from types import SimpleNamespace

import pytest
from tests.worker.support import WatchedStore, all_completed, filled, until

from durabus import EventBus
from durabus.worker import appetite, registry

pytestmark = pytest.mark.timeout(60)

WORKERS = 50
EVENTS = 5


async def test_of_fifty_idle_workers_three_at_most_ask_for_one_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "REFRESH", 0.2)
    store = WatchedStore()
    async with AsyncExitStack() as stack:
        buses = [await stack.enter_async_context(_bus(store)) for _ in range(WORKERS)]
        await until(lambda: all(bus._registry.nodes() == WORKERS for bus in buses))
        monkeypatch.setattr(registry, "REFRESH", 60.0)
        await asyncio.sleep(0.3)
        asked: list[int] = []
        for number in range(1, EVENTS + 1):
            store.calls.clear()
            await filled(store)
            await all_completed(store, number)
            await asyncio.sleep(0.4)  # all others have had their turn
            asked.append(store.calls["claim"])
        # Turns are milliseconds long, and a busy machine may stand still for longer: then several come at once.
        assert median(asked) <= 3
        assert max(asked) < WORKERS / 2


async def test_few_workers_ask_at_once() -> None:
    store = WatchedStore()
    async with _bus(store):
        await asyncio.sleep(0.05)
        store.calls.clear()
        await filled(store)
        await all_completed(store, 1)
        assert store.calls["wait"] <= 2  # it did not look twice whether it was meant


class Telling(WatchedStore):
    """Says that there is work, whenever it is asked."""

    async def wait_for_work(self, bus: str, *, timeout: float) -> bool:  # noqa: ASYNC109
        return True


async def test_who_keeps_hearing_of_what_it_may_not_have_asks_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    woken = asyncio.Event()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(appetite, "asyncio", SimpleNamespace(sleep=sleep, Event=asyncio.Event))
    monkeypatch.setattr(appetite, "monotonic", lambda: 0.0)
    hungry = appetite.Appetite(Telling(), "default", poll_interval=1, wake=woken.set, nodes=lambda: 1)
    listening = asyncio.create_task(hungry.listen())
    for _ in range(7):
        woken.clear()
        hungry.ate(0, 1)
        await woken.wait()
    listening.cancel()
    least = [appetite.HINT_PAUSE * factor for factor in (1, 2, 4, 4, 4, 4)]
    assert len(pauses) == len(least)
    assert all(low <= pause <= 2 * low for low, pause in zip(least, pauses, strict=True))


def _bus(store: WatchedStore) -> EventBus:
    async def handler(_event: object) -> None: ...

    bus = EventBus(store, poll_interval=60)
    bus.subscribe("*", handler, id="handler")
    return bus

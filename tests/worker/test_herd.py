"""Many idle workers and one event: all of them get the hint, but few of them may claim."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.places import fresh_url
from tests.worker.support import WatchedStore, all_completed, filled, until

from durabus import EventBus, EventStore, new_event, open_store
from durabus.model.claim import Claim, ClaimRequest
from durabus.worker import poller, registry

pytestmark = pytest.mark.timeout(60)

WORKERS = 50
EVENTS = 5
LONGEST_STAGGER = 2.0
"""Eight times the default: a busy machine can pause for longer than the milliseconds between two workers' turns."""
STORES = {"memory": 1, "sqlite": 5, "postgresql": 5, "redis": 5}
"""How many stores the workers share. Each store gets the hints of its server or file by itself."""


class Claims:
    """Counts how often the workers claim."""

    def __init__(self) -> None:
        self.count = 0

    def watch(self, store: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
        ask = store.claim_next_events

        async def counted(request: ClaimRequest) -> list[Claim]:
            self.count += 1
            return await ask(request)

        monkeypatch.setattr(store, "claim_next_events", counted)


@pytest.mark.parametrize("kind", STORES)
async def test_of_fifty_idle_workers_at_most_three_ask_for_most_events(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "REFRESH", 0.2)
    monkeypatch.setattr(poller, "STAGGER", LONGEST_STAGGER / WORKERS)
    monkeypatch.setattr(poller, "LONGEST_STAGGER", LONGEST_STAGGER)
    url, claims = fresh_url(kind, request, tmp_path), Claims()
    async with AsyncExitStack() as stack:
        stores = [await open_store(url) for _ in range(STORES[kind])]
        for store in stores:
            stack.push_async_callback(store.close)
            claims.watch(store, monkeypatch)
        buses = [await stack.enter_async_context(_bus(stores[n % len(stores)])) for n in range(WORKERS)]
        await until(lambda: all(bus._registry.nodes() == WORKERS for bus in buses))
        monkeypatch.setattr(registry, "REFRESH", 60.0)
        await asyncio.sleep(0.3)
        asked: list[int] = []
        for number in range(1, EVENTS + 1):
            claims.count = 0
            await stores[0].add_events([new_event("user.created")])
            while (await stores[0].counts()).completed < number:  # noqa: ASYNC110  (a store has no event to wait for)
                await asyncio.sleep(0.005)
            await asyncio.sleep(1.1 * LONGEST_STAGGER)  # all others have had their turn
            asked.append(claims.count)
        assert sorted(asked)[-2] <= 3, f"on a busy machine one of {EVENTS} events may cost more: {asked}"
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
    """Gives a hint of work at every wait."""

    async def wait_for_work(self, bus: str, *, timeout: float) -> bool:  # noqa: ASYNC109
        return True


async def test_a_worker_with_hints_but_no_events_claims_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    woken = asyncio.Event()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(poller, "asyncio", SimpleNamespace(sleep=sleep, Event=asyncio.Event))
    monkeypatch.setattr(poller, "monotonic", lambda: 0.0)
    waiting = poller.Poller(Telling(), "default", poll_interval=1, wake=woken.set, nodes=lambda: 1)
    listening = asyncio.create_task(waiting.listen())
    for _ in range(7):
        woken.clear()
        waiting.on_claimed(0, 1)
        await woken.wait()
    listening.cancel()
    least = [poller.HINT_PAUSE * factor for factor in (1, 2, 4, 4, 4, 4)]
    assert len(pauses) == len(least)
    assert all(low <= pause <= 2 * low for low, pause in zip(least, pauses, strict=True))


def _bus(store: EventStore) -> EventBus:
    async def handler(_event: object) -> None: ...

    bus = EventBus(store, poll_interval=60)
    bus.subscribe("*", handler, id="handler")
    return bus

"""A serial worker claims several events under one lock, and still runs one after the other."""

import asyncio

import pytest
from tests.runtime.conftest import MakeBus
from tests.seeds.support import until as comes_true

from durabus import Action, Event, EventBus, EventStatus, EventStore, new_event
from durabus.worker import serial

SERIAL = pytest.mark.parametrize("mode", ["bus-serial", "global-serial"])
COMPLETED, PENDING = EventStatus.COMPLETED, EventStatus.PENDING


class Ledger:
    """The handlers that run, and those that have begun, in order."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.began: list[str] = []

    def begin(self, name: str) -> None:
        assert self.inside == [], f"{name} began inside {self.inside}"
        self.inside.append(name)
        self.began.append(name)

    def end(self, name: str) -> None:
        self.inside.remove(name)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let batches grow and stay large, however busy the machine is."""
    monkeypatch.setattr(serial, "QUICK", 60.0)
    monkeypatch.setattr(serial, "OVERDUE", 60.0)


async def as_one_batch(
    bus: EventBus, store: EventStore, *kinds: str, keys: bool = False, other: EventBus | None = None
) -> list[Event]:
    """Store events that ``bus`` claims together: another holder has the lock while they are stored."""
    held, go_on = asyncio.Event(), asyncio.Event()

    async def hold(event: Event) -> None:
        held.set()
        await go_on.wait()

    bus.subscribe("holds_the_lock", hold)
    await bus.start()
    await store.add_events([new_event("holds_the_lock", bus=bus.name)])
    await held.wait()
    if other is not None:
        await other.start()
    assert bus._worker is not None
    assert bus._worker._serial is not None
    bus._worker._serial.size = len(kinds)
    new = [new_event(kind, n, bus=bus.name, idempotency_key=kind if keys else None) for n, kind in enumerate(kinds)]
    stored = await store.add_events(new)
    go_on.set()
    return stored


async def claimed_together(store: EventStore, events: list[Event]) -> list[list[int]]:
    """Return the payloads of events that were claimed for the first time in one step, in order."""
    steps: dict[float, list[int]] = {}
    for event in events:
        picked = next(entry for entry in await store.read_event_log(event.id) if entry.action is Action.PICKED)
        steps.setdefault(picked.at_ts, []).append(event.payload)
    return list(steps.values())


async def actions(store: EventStore, event: Event) -> list[Action]:
    return [entry.action for entry in await store.read_event_log(event.id)][1:]


async def ended(store: EventStore, events: list[Event]) -> list[EventStatus]:
    found = [await store.get_event(event.id) for event in events]
    return [event.status for event in found if event is not None]


async def finish(store: EventStore, events: list[Event]) -> None:
    async def all_ended() -> bool:
        return await ended(store, events) == [COMPLETED] * len(events)

    async with asyncio.timeout(30):
        await comes_true(all_ended)


@SERIAL
async def test_the_events_of_a_batch_run_one_at_a_time_in_order(
    make_bus: MakeBus, store: EventStore, ledger: Ledger, mode: str
) -> None:
    bus = make_bus(mode=mode, concurrency=8)

    async def job(event: Event) -> None:
        ledger.begin(str(event.payload))
        for _ in range(3):
            await asyncio.sleep(0)
        ledger.end(str(event.payload))

    bus.subscribe("job", job)
    events = await store.add_events([new_event("job", n, bus=bus.name) for n in range(30)])
    await bus.start()
    await finish(store, events)
    assert ledger.began == [str(n) for n in range(30)]
    batches = await claimed_together(store, events)
    assert [len(batch) for batch in batches] == [1, 2, 4, 8, 8, 7], "it grows, and no further than the concurrency"


async def test_long_handlers_get_their_events_one_by_one(
    make_bus: MakeBus, store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serial, "QUICK", 0.0)
    bus = make_bus(mode="bus-serial")
    bus.subscribe("job", lambda event: None)
    events = await store.add_events([new_event("job", n, bus=bus.name) for n in range(5)])
    await bus.start()
    await finish(store, events)
    assert await claimed_together(store, events) == [[0], [1], [2], [3], [4]]


async def test_what_a_batch_that_takes_too_long_has_not_begun_goes_back(
    make_bus: MakeBus, store: EventStore, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = make_bus(mode="bus-serial")

    async def job(event: Event) -> None:
        ledger.begin(str(event.payload))
        if event.payload == 0:
            monkeypatch.setattr(serial, "OVERDUE", 0.0)
        ledger.end(str(event.payload))

    bus.subscribe("job", job)
    events = await as_one_batch(bus, store, "job", "job", "job")
    await finish(store, events)
    assert await claimed_together(store, events) == [[0, 1, 2]]
    assert ledger.began == ["0", "1", "2"]
    assert await actions(store, events[1]) == [Action.PICKED, Action.RELEASED, Action.PICKED, Action.COMPLETED]
    after = await store.get_event(events[1].id)
    assert after is not None
    assert after.attempts == 1


async def test_what_is_done_is_settled_while_the_rest_of_its_batch_runs(make_bus: MakeBus, store: EventStore) -> None:
    bus, seen = make_bus(mode="bus-serial"), asyncio.Event()

    async def slow(event: Event) -> None:
        await finish(store, events[:1])
        seen.set()

    bus.subscribe("quick", lambda event: None)
    bus.subscribe("slow", slow)
    events = await as_one_batch(bus, store, "quick", "slow")
    await finish(store, events)
    assert seen.is_set()
    assert await claimed_together(store, events) == [[0, 1]]


@SERIAL
async def test_a_retry_in_the_middle_of_a_batch_does_not_delay_the_others(
    make_bus: MakeBus, store: EventStore, ledger: Ledger, mode: str
) -> None:
    bus = make_bus(mode=mode, retry={"max_retries": 2, "base_delay": 0.05, "jitter": 0.0})

    async def job(event: Event) -> None:
        ledger.begin(f"{event.payload}.{event.attempts}")
        await asyncio.sleep(0)
        ledger.end(f"{event.payload}.{event.attempts}")
        if event.payload == 1 and event.attempts == 1:
            raise ValueError("once")

    bus.subscribe("job", job)
    events = await as_one_batch(bus, store, "job", "job", "job", "job")
    await finish(store, events)
    assert ledger.began == ["0.1", "1.1", "2.1", "3.1", "1.2"]


@SERIAL
async def test_an_event_of_the_own_batch_may_be_waited_for(
    make_bus: MakeBus, store: EventStore, ledger: Ledger, mode: str
) -> None:
    bus = make_bus(mode=mode)

    async def waits(event: Event) -> None:
        ledger.began.append("waits")
        await bus.publish("awaited", idempotency_key="awaited", parent_id=None)
        assert ledger.inside == []
        ledger.began.append("goes on")

    async def job(event: Event) -> None:
        ledger.begin(event.type)
        await asyncio.sleep(0)
        ledger.end(event.type)

    bus.subscribe("waits", waits)
    bus.subscribe("between", job)
    bus.subscribe("awaited", job)
    events = await as_one_batch(bus, store, "waits", "between", "awaited", keys=True)
    await finish(store, events)
    assert await claimed_together(store, events) == [[0, 1, 2]]
    assert ledger.began == ["waits", "awaited", "goes on", "between"]
    after = await store.get_event(events[2].id)
    assert after is not None
    assert after.attempts == 1


async def test_an_event_of_the_own_batch_may_be_waited_for_though_only_another_node_has_its_handler(
    make_bus: MakeBus, store: EventStore
) -> None:
    here, there, began = make_bus(mode="bus-serial"), make_bus(mode="bus-serial"), []

    async def waits(event: Event) -> None:
        began.append("waits")
        await here.publish("awaited", idempotency_key="awaited", parent_id=None)
        began.append("goes on")

    async def awaited(event: Event) -> None:
        began.append("awaited")
        # A way back to what was claimed together with the one that waits, through another node.
        await there.publish("behind", idempotency_key="behind", parent_id=None)

    here.subscribe("waits", waits)
    here.subscribe("behind", lambda event: began.append("behind"))
    there.subscribe("awaited", awaited)
    events = await as_one_batch(here, store, "waits", "behind", "awaited", keys=True, other=there)
    await finish(store, events)
    assert (await claimed_together(store, events))[0] == [0, 1, 2]
    assert began == ["waits", "awaited", "behind", "goes on"]


async def test_a_shutdown_gives_back_what_has_not_begun(make_bus: MakeBus, store: EventStore) -> None:
    bus, began = make_bus(mode="bus-serial"), asyncio.Event()

    async def job(event: Event) -> None:
        began.set()
        await asyncio.Event().wait()

    bus.subscribe("job", job)
    events = await as_one_batch(bus, store, "job", "job", "job")
    await began.wait()
    await bus.shutdown(0.0)
    for event in events:
        found = await store.get_event(event.id)
        assert found is not None
        assert (found.status, found.attempts) == (PENDING, 0)
        assert await actions(store, event) == [Action.PICKED, Action.RELEASED]
    assert [lock.key for lock in await store.list_locks()] == []


async def test_the_next_event_waits_until_one_that_was_taken_away_has_stopped(
    make_bus: MakeBus, store: EventStore, ledger: Ledger
) -> None:
    bus, began = make_bus(mode="bus-serial", lease=1.1), asyncio.Event()

    async def job(event: Event) -> None:
        ledger.begin(str(event.payload))
        try:
            if event.payload == 0 and event.fence == 1:
                began.set()
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            for _ in range(20):
                await asyncio.sleep(0.001)
            raise
        finally:
            ledger.end(str(event.payload))

    bus.subscribe("job", job)
    events = await as_one_batch(bus, store, "job", "job")
    await began.wait()
    await store.reset_event(events[0].id, reason="taken away")
    await finish(store, events)
    assert ledger.began == ["0", "1", "0"]

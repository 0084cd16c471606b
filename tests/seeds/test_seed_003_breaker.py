"""Seed 003: a handler that keeps failing is not called for a while, then probed once."""

import asyncio

import pytest
from tests.seeds.support import ONCE, Gate, Recorder, status_of, stored, until, until_status

from durabus import Action, Event, EventBus, EventStatus, EventStore, ManualClock, UnrecoverableError

OPEN_FOR = 30.0


class Times:
    """The store's clock and the breaker's, moved together."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.local = 1000.0

    def advance(self, seconds: float) -> None:
        self.local += seconds
        self.clock.advance(seconds)


@pytest.fixture
def times(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Times:
    times = Times(clock)
    monkeypatch.setattr("durabus.worker.breaker.monotonic", lambda: times.local)
    return times


@pytest.fixture
def bus(timed_store: EventStore) -> EventBus:
    return EventBus(timed_store, retry=ONCE, poll_interval=0.01)


async def break_it(bus: EventBus, handler: Recorder, kind: str = "user.created") -> None:
    """Let four events fail, so that the breaker of the handler opens."""
    before = handler.calls
    for _ in range(4):
        await bus.publish(kind)
    assert handler.calls == before + 4


async def put_off(store: EventStore, ref: int | str) -> Event:
    """Wait until the event was given back."""

    async def released() -> bool:
        return Action.RELEASED in [entry.action for entry in await store.read_event_log(ref)]

    await until(released)
    return await stored(store, ref)


async def test_the_breaker_opens_when_more_than_half_of_at_least_four_events_failed(
    bus: EventBus, times: Times
) -> None:
    handler = Recorder(failures=99)
    async with bus:
        bus.subscribe("user.*", handler)
        await break_it(bus, handler)
        waiting = await put_off(bus.store, bus.emit("user.created").event_id)
    assert handler.calls == 4
    assert (waiting.status, waiting.attempts) == (EventStatus.PENDING, 0)
    assert waiting.due_ts == times.clock.now() + OPEN_FOR


async def test_the_breaker_stays_closed_below_four_events(bus: EventBus, times: Times) -> None:
    handler = Recorder(failures=3)
    async with bus:
        bus.subscribe("user.*", handler)
        for _ in range(4):
            await bus.publish("user.created")
    assert handler.calls == 4


async def test_the_breaker_stays_closed_when_half_of_the_events_failed(bus: EventBus, times: Times) -> None:
    handler = Recorder()
    calls = 0

    async def every_other(event: Event) -> None:
        nonlocal calls
        calls += 1
        if calls % 2 == 0:
            raise ValueError("not today")

    async with bus:
        bus.subscribe("user.*", every_other)
        for _ in range(20):
            await bus.publish("user.created")
    assert (calls, handler.calls) == (20, 0)


async def test_failures_of_more_than_a_minute_ago_do_not_count(bus: EventBus, times: Times) -> None:
    handler = Recorder(failures=99)
    async with bus:
        bus.subscribe("user.*", handler)
        for _ in range(3):
            await bus.publish("user.created")
        times.advance(61)
        for _ in range(3):
            await bus.publish("user.created")
    assert handler.calls == 6


async def test_other_handlers_go_on_while_the_breaker_is_open(bus: EventBus, times: Times) -> None:
    broken, healthy = Recorder(failures=99), Recorder()
    async with bus:
        bus.subscribe("user.*", broken)
        bus.subscribe("order.*", healthy)
        await break_it(bus, broken)
        event_id = await bus.publish("order.placed")
        assert await status_of(bus.store, event_id) is EventStatus.COMPLETED
    assert healthy.calls == 1


async def test_an_open_breaker_skips_only_its_own_handler_of_an_event(bus: EventBus, times: Times) -> None:
    broken, healthy = Recorder(failures=4), Recorder()
    async with bus:
        bus.subscribe("user.*", broken)
        await break_it(bus, broken)
        bus.subscribe("user.*", healthy)
        event = await bus.emit("user.created").stored()
        await put_off(bus.store, event.id)
        assert (broken.calls, healthy.calls) == (4, 1)
        times.advance(OPEN_FOR + 0.1)
        await until_status(bus.store, event.id, EventStatus.COMPLETED)
    assert (broken.calls, healthy.calls) == (5, 1)


async def test_a_half_open_breaker_lets_a_single_probe_through(bus: EventBus, times: Times) -> None:
    broken, gate = Recorder(failures=4), Gate()

    async def handler(event: Event) -> None:
        await broken(event)
        await gate(event)

    async with bus:
        bus.subscribe("user.*", handler)
        await break_it(bus, broken)
        handles = [bus.emit("user.created") for _ in range(3)]
        for handle in handles:
            await put_off(bus.store, handle.event_id)
        times.advance(OPEN_FOR + 0.1)
        await gate.entered.wait()

        async def others_were_put_off_again() -> bool:
            trails = [await bus.store.read_event_log(handle.event_id) for handle in handles]
            return sum(entry.action is Action.RELEASED for trail in trails for entry in trail) == 5

        await until(others_were_put_off_again)
        assert gate.calls == 1
        gate.opened.set()
        await until(lambda: _completed(bus, 1))
        times.advance(1.1)
        await until(lambda: _completed(bus, 3))


async def _completed(bus: EventBus, count: int) -> bool:
    return (await bus.store.counts()).completed == count


async def test_the_breaker_closes_when_the_probe_succeeds(bus: EventBus, times: Times) -> None:
    handler = Recorder(failures=4)
    async with bus:
        bus.subscribe("user.*", handler)
        await break_it(bus, handler)
        probe = bus.emit("user.created")
        await put_off(bus.store, probe.event_id)
        times.advance(OPEN_FOR + 0.1)
        await probe
        await asyncio.gather(*(bus.publish("user.created") for _ in range(5)))
    assert handler.calls == 10


async def test_the_breaker_opens_again_when_the_probe_fails(bus: EventBus, times: Times) -> None:
    handler = Recorder(failures=99)
    async with bus:
        bus.subscribe("user.*", handler)
        await break_it(bus, handler)
        probe = bus.emit("user.created")
        await put_off(bus.store, probe.event_id)
        times.advance(OPEN_FOR + 0.1)
        assert (await probe).status is EventStatus.FAILED
        waiting = await put_off(bus.store, bus.emit("user.created").event_id)
    assert handler.calls == 5
    assert waiting.due_ts == times.clock.now() + OPEN_FOR


async def test_the_retries_of_one_poisoned_event_do_not_open_the_breaker(timed_store: EventStore, times: Times) -> None:
    calls: list[str] = []

    async def handler(event: Event) -> None:
        calls.append(event.type)
        if event.type == "user.poisoned":
            raise ValueError("never")

    async with EventBus(timed_store, poll_interval=0.01) as bus:
        bus.subscribe("user.*", handler, retry={"max_retries": 9, "base_delay": 0})
        await bus.publish("user.poisoned")
        await bus.publish("user.created")
    assert calls == ["user.poisoned"] * 10 + ["user.created"]


async def test_events_with_unrecoverable_errors_do_not_open_the_breaker(bus: EventBus, times: Times) -> None:
    async def judge(event: Event) -> None:
        if event.payload["bad"]:
            raise UnrecoverableError("no such customer")

    async with bus:
        bus.subscribe("order.placed", judge)
        for _ in range(8):
            await bus.publish("order.placed", {"bad": True})
        good = await bus.publish("order.placed", {"bad": False})
        assert await status_of(bus.store, good) is EventStatus.COMPLETED


async def test_a_subscription_may_have_a_breaker_of_its_own_or_none(bus: EventBus, times: Times) -> None:
    never, soon = Recorder(failures=99), Recorder(failures=99)
    async with bus:
        bus.subscribe("never.opens", never, breaker=False)
        bus.subscribe("opens.soon", soon, breaker={"minimum_samples": 1})
        for _ in range(9):
            await bus.publish("never.opens")
        await bus.publish("opens.soon")
        await put_off(bus.store, bus.emit("opens.soon").event_id)
    assert (never.calls, soon.calls) == (9, 1)

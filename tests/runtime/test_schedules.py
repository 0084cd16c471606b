"""Schedules: every node of a bus may publish their events, and each slot has one."""

import asyncio
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from tests.runtime.conftest import MakeBus

from durabus import (
    ConfigurationError,
    Event,
    EventBus,
    EventStatus,
    EventStore,
    InvalidEventError,
    ManualClock,
    ScheduleNotFound,
    SyncEventBus,
    new_event,
    open_store,
)
from durabus.bus.sync_schedules import SyncSchedules
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.query import EventQuery
from durabus.schedules.reading import LIVE
from durabus.schedules.schedule import Schedule, ScheduleAction, state_bus, state_event, state_id
from durabus.schedules.scheduler import Scheduler
from durabus.schedules.schedules import Schedules

BUS = "default"
HOUR = 3_600.0
QUIET = 0.2
"""Seconds in which a node would publish what it must not publish."""


async def ticks(store: EventStore) -> list[Event]:
    """The stored ticks, oldest first."""
    return (await store.find(EventQuery(bus=BUS, type="job", limit=1000))).events[::-1]


async def stored(store: EventStore, count: int) -> list[Event]:
    """Wait for so many ticks."""
    for _ in range(1_000):
        found = await ticks(store)
        if len(found) >= count:
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(found)


def slots(events: list[Event]) -> list[float]:
    return [datetime.fromisoformat(one.metadata["schedule_slot"]).timestamp() for one in events]


async def live_states(store: EventStore) -> list[Event]:
    return (await store.find(EventQuery(bus=state_bus(BUS), statuses=LIVE))).events


async def after(schedules: Schedules, name: str, number: int) -> Schedule:
    """Wait until the schedule has a state with at least this number."""
    for _ in range(1_000):
        found = await schedules.get(name)
        if found is not None and found.number >= number:
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(found)


async def test_two_nodes_publish_every_slot_once(make_bus: MakeBus, store: EventStore) -> None:
    seen: Counter[str] = Counter()
    for _ in range(2):
        bus = make_bus()

        @bus.every(0.1, name="beat", type="job", payload={"n": 1}, overlap="parallel", catch_up="all", tags=["t"])
        async def beat(event: Event) -> None:
            seen[event.event_id] += 1

        await bus.start()
    found = slots(await stored(store, 12))
    assert [round((b - a) * 1000) for a, b in pairwise(found)] == [100] * (len(found) - 1)
    first = (await ticks(store))[0]
    assert (first.payload, first.tags, first.metadata["schedule"]) == ({"n": 1}, ("t",), "beat")
    assert await bus.schedules.delete("beat")
    await asyncio.sleep(0.2)
    assert set(seen.values()) == {1}


async def test_a_schedule_is_put_listed_replaced_and_deleted(store: EventStore) -> None:
    schedules = Schedules(store, BUS)
    first = await schedules.put("b", "0 9 * * *", "job", {"x": 1}, tz="Europe/Oslo", actor="ada", reason="try")
    await schedules.put("a", HOUR, "job")
    assert [one.name for one in await schedules.list()] == ["a", "b"]
    assert (first.number, first.action, first.actor, first.reason, first.tz) == (1, "put", "ada", "try", "Europe/Oslo")
    assert first.next_run_at is not None
    assert first.next_run_at > datetime.fromtimestamp(await store.now(), UTC)
    assert await schedules.put("b", "0 9 * * *", "job", {"x": 1}, tz="Europe/Oslo") == first
    second = await schedules.put("b", "0 9 * * *", "job", {"x": 2}, tz="Europe/Oslo")
    assert (second.number, second.payload, second.next_run_at) == (2, {"x": 2}, first.next_run_at)
    assert await schedules.get("b") == second
    assert await schedules.delete("b", actor="bob")
    assert not await schedules.delete("b")
    assert await schedules.get("b") is None
    assert [one.name for one in await schedules.list()] == ["a"]
    trail = [(one.number, one.action.value, one.actor) for one in await schedules.history("b")]
    assert trail == [(3, "delete", "bob"), (2, "put", None), (1, "put", "ada")]
    assert len(await live_states(store)) == 1
    again = await schedules.put("b", HOUR, "job")
    assert (again.number, again.paused) == (4, False)
    await schedules.delete("nobody")


async def test_an_unknown_schedule_is_refused(store: EventStore) -> None:
    schedules = Schedules(store, BUS)
    for verb in (schedules.pause, schedules.resume, schedules.run_now, schedules.next_runs):
        with pytest.raises(ScheduleNotFound, match="no schedule 'x'"):
            await verb("x")
    with pytest.raises(InvalidEventError):
        await schedules.get("")


async def test_a_paused_schedule_publishes_nothing_until_it_is_resumed(make_bus: MakeBus, store: EventStore) -> None:
    bus = make_bus()
    bus.subscribe("job", lambda event: None)
    await bus.start()
    await bus.schedules.put("beat", 0.2, "job")
    await stored(store, 2)
    paused = await bus.schedules.pause("beat", reason="holidays")
    assert (paused.paused, paused.next_run_at, paused.reason) == (True, None, "holidays")
    assert await bus.schedules.pause("beat") == paused
    count = len(await ticks(store))
    await asyncio.sleep(0.5)
    assert len(await ticks(store)) == count
    assert len(await bus.schedules.next_runs("beat", 3)) == 3
    changed = await bus.schedules.put("beat", 0.1, "job")
    assert changed.paused
    resumed = await bus.schedules.resume("beat")
    found = await stored(store, count + 1)
    assert slots(found)[count] >= resumed.changed_ms / 1000
    assert len(await live_states(store)) == 1


async def test_a_tick_can_be_asked_for_at_once(make_bus: MakeBus, store: EventStore) -> None:
    bus = make_bus()
    bus.subscribe("job", lambda event: None)
    await bus.start()
    await bus.schedules.put("yearly", "0 0 1 1 *", "job")
    await bus.schedules.pause("yearly")
    asked = [await bus.schedules.run_now("yearly", actor="ada") for _ in range(3)]
    found = await stored(store, 3)
    assert sorted(one.event_id for one in found) == sorted(asked)
    assert all(one.metadata == {"schedule": "yearly"} for one in found)
    known = await after(bus.schedules, "yearly", 6)
    assert (known.paused, known.runs) == (True, ())
    await asyncio.sleep(0.1)
    assert len(await ticks(store)) == 3


async def test_a_tick_is_skipped_queued_or_published_beside_one_that_runs(make_bus: MakeBus, store: EventStore) -> None:
    bus, go = make_bus(), asyncio.Event()
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    async def job(event: Event) -> None:
        name = event.metadata["schedule"]
        running[name] += 1
        most[name] = max(most[name], running[name])
        await go.wait()
        running[name] -= 1

    bus.subscribe("job", job)
    await bus.start()
    for overlap in ("skip", "queue", "parallel"):
        await bus.schedules.put(overlap, 0.1, "job", overlap=overlap)
    for _ in range(1_000):
        counts = Counter(one.metadata["schedule"] for one in await ticks(store))
        skipped = await bus.schedules.get("skip")
        assert skipped is not None
        if skipped.skipped >= 2 and min(counts["queue"], most["parallel"]) >= 3:
            break
        await asyncio.sleep(0.02)
    assert counts["skip"] == 1
    for overlap in ("skip", "queue", "parallel"):
        await bus.schedules.delete(overlap)
    go.set()
    assert (most["skip"], most["queue"]) == (1, 1)
    assert most["parallel"] >= 3


async def test_slots_that_passed_while_no_node_ran_are_caught_up(url: str) -> None:
    clock = ManualClock()
    store = await open_store(url, clock=clock)
    schedules, scheduler, begun = Schedules(store, BUS), Scheduler(store, BUS), clock.now()
    for catch_up in ("one", "all", "none"):
        await schedules.put(catch_up, 60.0, "job", catch_up=catch_up, overlap="parallel")
    await schedules.put("rare", 200.0, "job", catch_up="none")
    clock.advance(305)
    scheduler.start()
    await stored(store, 7)
    await asyncio.sleep(QUIET)
    found: dict[str, list[int]] = {}
    for one in await ticks(store):
        (slot,) = slots([one])
        found.setdefault(one.metadata["schedule"], []).append(round(slot - begun))
    assert found == {"one": [300], "all": [60, 120, 180, 240, 300], "none": [300]}
    await scheduler.stop(1.0)
    await store.close()


async def test_of_changes_at_the_same_moment_each_is_made_upon_the_other(store: EventStore) -> None:
    schedules = Schedules(store, BUS)
    await schedules.put("s", HOUR, "job")
    await asyncio.gather(*(schedules.run_now("s") for _ in range(8)))
    known = await schedules.get("s")
    assert known is not None
    assert (known.number, len(set(known.runs))) == (9, 8)
    assert len(await live_states(store)) == 1
    states = await asyncio.gather(*(schedules.put("new", HOUR, "job") for _ in range(8)))
    assert {one.number for one in states} == {1}


async def test_a_change_whose_caller_died_half_way_holds(store: EventStore) -> None:
    """It stored the next state and did not end the one before."""
    schedules = Schedules(store, BUS)
    first = await schedules.put("s", 0.3, "job", overlap="parallel")
    now = int(await store.now() * 1000)
    half = Schedule(
        name="s",
        type="job",
        every=0.3,
        overlap=first.overlap,
        number=2,
        action=ScheduleAction.PAUSE,
        paused=True,
        anchor_ms=first.anchor_ms,
        slot_ms=first.slot_ms,
        changed_ms=now,
    )
    await store.add_events([state_event(BUS, half, now)])
    assert len(await live_states(store)) == 2
    assert [one.number for one in await schedules.list()] == [2]
    scheduler = Scheduler(store, BUS)
    scheduler.start()
    before = await store.get_event(state_id(BUS, "s", 1))
    while before is not None and before.status is not EventStatus.CANCELLED:
        await asyncio.sleep(0.02)
        before = await store.get_event(state_id(BUS, "s", 1))
    assert await ticks(store) == []
    resumed = await schedules.resume("s")
    assert resumed.number == 3
    await stored(store, 2)
    await schedules.delete("s")
    await scheduler.stop(1.0)
    found = slots(await ticks(store))
    assert len(found) == len(set(found))


async def test_a_change_ends_what_an_earlier_half_change_left(store: EventStore) -> None:
    schedules = Schedules(store, BUS)
    first = await schedules.put("s", HOUR, "job")
    now = int(await store.now() * 1000)
    half = Schedule(name="s", type="job", every=2.0, number=2, action=ScheduleAction.PUT, anchor_ms=now, changed_ms=now)
    await store.add_events([state_event(BUS, half, now)])
    assert (await schedules.put("s", HOUR, "job")).number == 3
    assert first.number == 1
    assert [one.event_id for one in await live_states(store)] == [state_id(BUS, "s", 3)]


async def test_another_node_publishes_what_a_dead_one_had_claimed(store: EventStore) -> None:
    lease = max(0.5, 1.2 * store.features.minimum_lease)
    schedules = Schedules(store, BUS)
    await schedules.put("s", 0.2, "job", overlap="parallel")
    claimed: list[Any] = []
    while not claimed:
        await asyncio.sleep(0.05)
        claimed = await store.claim_next_events(
            ClaimRequest(bus=state_bus(BUS), worker_id="dead", token=new_token(), lease=lease)
        )
    assert await ticks(store) == []
    scheduler = Scheduler(store, BUS)
    scheduler.start()
    found = slots(await stored(store, 2))
    await schedules.delete("s")
    await scheduler.stop(1.0)
    assert len(found) == len(set(found))


async def test_the_clock_of_the_store_decides_also_if_it_jumps(url: str) -> None:
    clock = ManualClock()
    store = await open_store(url, clock=clock)
    schedules, scheduler = Schedules(store, BUS), Scheduler(store, BUS)
    begun = clock.now()

    async def wait(seconds: float) -> list[float]:
        clock.advance(seconds)
        scheduler.nudge()
        await asyncio.sleep(QUIET)
        return [round(slot - begun) for slot in slots(await ticks(store))]

    await schedules.put("s", 60.0, "job", overlap="parallel")
    scheduler.start()
    assert await wait(59) == []
    assert await wait(1) == [60]
    assert await wait(0) == [60]
    assert await wait(3_600) == [60, 3_660]
    assert await wait(-3_000) == [60, 3_660]
    assert await wait(2_000) == [60, 3_660]
    assert await wait(1_060) == [60, 3_660, 3_720]
    await schedules.put("s", 30.0, "job", overlap="parallel")
    assert await wait(-600) == [60, 3_660, 3_720]
    # A store whose clock never goes back goes on from the latest time that it has seen.
    slot = await store.now() + 20
    assert (await schedules.put("s", 20.0, "job", overlap="parallel")).slot_ms == round(slot * 1000)
    assert await wait(slot - clock.now()) == [60, 3_660, 3_720, round(slot - begun)]
    await scheduler.stop(1.0)
    await store.close()


async def test_declarations_in_code_are_stored_at_the_start_of_a_bus_that_serves(
    make_bus: MakeBus, store: EventStore
) -> None:
    def declared(bus: EventBus, when: float) -> None:
        @bus.every(when, type="job")
        async def nightly(event: Event) -> None: ...

        @bus.every("*/5 * * * *", tz="Europe/Oslo", name="five")
        def five(event: Event) -> None: ...

    schedules = Schedules(store, BUS)
    publisher = make_bus(serve=False)
    declared(publisher, HOUR)
    await publisher.start()
    assert await schedules.list() == []
    first = make_bus()
    declared(first, HOUR)
    await first.start()
    assert [(one.name, one.type, one.number) for one in await schedules.list()] == [
        ("five", "schedule.five", 1),
        ("nightly", "job", 1),
    ]
    await schedules.pause("nightly")
    second = make_bus()
    declared(second, HOUR)
    await second.start()
    assert [one.number for one in await schedules.list()] == [1, 2]
    third = make_bus()
    declared(third, 2 * HOUR)
    await third.start()
    known = await schedules.get("nightly")
    assert known is not None
    assert (known.number, known.every, known.paused, known.actor) == (3, 2 * HOUR, True, "code")


async def test_a_schedule_may_be_declared_on_a_running_bus(make_bus: MakeBus, store: EventStore) -> None:
    bus = make_bus()
    await bus.start()

    @bus.every(0.1, type="job")
    async def beat(event: Event) -> None: ...

    await stored(store, 2)


async def test_a_declaration_with_a_mistake_is_refused_at_once(make_bus: MakeBus) -> None:
    bus = make_bus()
    with pytest.raises(ConfigurationError, match="character 1 is no minute"):
        bus.every("77 * * * *")(lambda event: None)
    with pytest.raises(ConfigurationError, match="is no time zone"):
        bus.every("* * * * *", tz="Mars/Base")(lambda event: None)
    bus.every(5, name="one")(lambda event: None)
    with pytest.raises(ConfigurationError, match="'one' is declared twice"):
        bus.every(6, name="one")(lambda event: None)


async def test_users_cannot_name_the_bus_of_the_states(store: EventStore) -> None:
    with pytest.raises(InvalidEventError, match="belongs to the schedules"):
        EventBus(store, name=state_bus("shop"))
    with pytest.raises(InvalidEventError, match="belongs to the schedules"):
        new_event("a.b", bus=state_bus("shop"))


def block(store: EventStore) -> None:
    with SyncEventBus(store) as bus:

        @bus.every(HOUR, type="job")
        def beat(event: Event) -> None: ...

        schedules = bus.schedules
        assert [one.name for one in schedules.list()] == ["beat"]
        assert schedules.put("s", 60.0, "job", tags=["t"]).tags == ("t",)
        assert schedules.pause("s", reason="no").paused
        assert not schedules.resume("s").paused
        assert schedules.run_now("s")
        assert len(schedules.next_runs("s", 3)) == 3
        assert schedules.history("s")[-1].action is ScheduleAction.PUT
        assert schedules.delete("s")
        assert schedules.get("s") is None


async def test_a_blocking_bus_has_the_same_verbs() -> None:
    await asyncio.to_thread(block, await open_store("memory://"))
    verbs, same = ({name for name in dir(kind) if name[0] != "_"} for kind in (Schedules, SyncSchedules))
    assert verbs - same == {"put_declared", "put_all"}

"""Children belong to the success of their handler: one success, one child, whatever failed before."""

import asyncio
from collections import Counter

import pytest
from msgspec.structs import replace
from tests.runtime.conftest import MakeBus
from tests.seeds.support import until as comes_true
from tests.worker.support import until

from durabus import (
    Action,
    ConfigurationError,
    Context,
    Event,
    EventBus,
    EventNotStored,
    EventQuery,
    EventStatus,
    EventStore,
    SyncContext,
    TransientError,
)
from durabus.clock import monotonic
from durabus.stores.memory.store import MemoryStore
from durabus.worker.children import children as waiting

AT_ONCE = {"max_retries": 5, "base_delay": 0.0}
SOON = 20.0
WAKE_UP = 0.3
"""Seconds from the end of the last child to the next claim on its parent, by the clock of the store."""


async def of_type(store: EventStore, kind: str) -> list[Event]:
    """The events of a type, oldest first."""
    return list(reversed((await store.find(EventQuery(type=kind, limit=100))).events))


async def actions(store: EventStore, event_id: str) -> Counter[str]:
    return Counter(entry.action.value for entry in await store.read_event_log(event_id))


async def test_a_plain_handler_has_the_children_of_an_async_one(make_bus: MakeBus) -> None:
    bus, charged, receipts = make_bus(retry=AT_ONCE), [], []

    def place(event: Event, ctx: SyncContext) -> None:
        receipts.append(ctx.emit("charge", {"order": 7}, key="charge").result())
        ctx.emit("mail", {"order": 7})
        if event.attempts == 1:
            raise TransientError("the printer is off")

    async def charge(event: Event) -> str:
        charged.append(event.parent_id)
        return f"receipt {len(charged)}"

    bus.subscribe("order", place)
    bus.subscribe("charge", charge)
    await bus.start()
    order = await bus.emit("order")
    assert (order.attempts, order.status) == (2, EventStatus.COMPLETED)
    assert (charged, receipts) == ([order.event_id], ["receipt 1", "receipt 1"])
    assert [mail.parent_id for mail in await of_type(bus.store, "mail")] == [order.event_id]


@pytest.mark.parametrize("url", ["memory"], indirect=True)
async def test_one_key_for_two_children_of_an_attempt_is_refused(make_bus: MakeBus) -> None:
    bus, refused = make_bus(), []

    async def place(event: Event, ctx: Context) -> None:
        ctx.emit("charge", 1, key="charge")
        ctx.emit("charge", 1, key="charge")  # the same child
        with pytest.raises(ConfigurationError, match="key='charge' names two children of one attempt: charge with 1"):
            ctx.emit("charge", 2, key="charge")
        refused.append(event.event_id)

    bus.subscribe("order", place)
    await bus.publish("order")
    assert len(refused) == 1
    assert [event.payload for event in await of_type(bus.store, "charge")] == [1]


async def test_an_order_that_ships_after_a_failure_has_one_charge(make_bus: MakeBus) -> None:
    bus, charged, shipped = make_bus(retry=AT_ONCE), [], []

    async def place(event: Event, ctx: Context) -> None:
        receipt = await ctx.emit("charge", {"order": 7}).result()
        if event.attempts == 1:
            raise TransientError("the printer is off")
        shipped.append(receipt)

    async def charge(event: Event) -> str:
        charged.append(event.event_id)
        return f"receipt {len(charged)}"

    bus.subscribe("order", place)
    bus.subscribe("charge", charge)
    await bus.start()
    assert (await bus.emit("order")).attempts == 2
    (event,) = await of_type(bus.store, "charge")
    assert charged == [event.event_id]
    assert shipped == ["receipt 1"]


async def test_what_is_not_awaited_is_stored_with_the_success_and_a_failed_attempt_leaves_none(
    make_bus: MakeBus,
) -> None:
    bus, seen = make_bus(retry=AT_ONCE), []

    async def parent(event: Event, ctx: Context) -> None:
        ctx.emit("child", {"attempt": event.attempts})
        bus.emit("later", delay=60)
        await asyncio.sleep(0.05)  # time to store them, if anything would
        seen.append((await of_type(bus.store, "child"), await of_type(bus.store, "later")))
        if event.attempts < 3:
            raise TransientError("not yet")

    bus.subscribe("parent", parent)
    bus.subscribe("child", lambda event: None)
    await bus.start()
    ended = await bus.emit("parent")
    assert seen == [([], [])] * 3
    (child,) = await of_type(bus.store, "child")
    assert (child.payload, child.parent_id, child.status) == ({"attempt": 3}, ended.event_id, EventStatus.COMPLETED)
    (later,) = await of_type(bus.store, "later")
    assert (later.parent_id, later.status) == (None, EventStatus.PENDING)


async def test_the_handle_of_a_child_says_that_its_handler_failed(make_bus: MakeBus) -> None:
    bus, handles = make_bus(), []

    async def parent(event: Event) -> None:
        handles.append(bus.emit("child"))
        raise ValueError("no")

    bus.subscribe("parent", parent)
    await bus.start()
    await bus.emit("parent")
    with pytest.raises(EventNotStored, match="did not succeed"):
        await handles[0].stored()
    with pytest.raises(EventNotStored, match="parent_id=None"):
        await handles[0]
    assert await bus.wait_until_idle(SOON)


async def test_the_handle_of_a_child_works_after_the_success(make_bus: MakeBus) -> None:
    bus, handles = make_bus(), []

    async def parent(event: Event) -> None:
        handles.append(bus.emit("child"))

    async def child(event: Event) -> int:
        return 7

    bus.subscribe("parent", parent)
    bus.subscribe("child", child)
    await bus.start()
    await bus.emit("parent")
    (stored,) = await of_type(bus.store, "child")
    assert (await handles[0].stored()).id == stored.id
    assert await handles[0].result() == 7


async def test_equal_children_that_are_awaited_together_are_found_again_each(make_bus: MakeBus) -> None:
    bus, calls, answers = make_bus(retry=AT_ONCE), [], []

    async def parent(event: Event, ctx: Context) -> None:
        handles = [ctx.emit("child", {"n": 1}) for _ in range(3)]
        got = await asyncio.gather(*(handle.result() for handle in handles))
        if event.attempts == 1:
            raise TransientError("again")
        answers.append(sorted(got))

    async def child(event: Event) -> int:
        calls.append(event.event_id)
        return len(calls)

    bus.subscribe("parent", parent)
    bus.subscribe("child", child)
    await bus.start()
    await bus.emit("parent")
    assert len(set(calls)) == len(calls) == 3
    assert answers == [[1, 2, 3]]


async def test_a_key_finds_a_child_whose_payload_has_changed(make_bus: MakeBus) -> None:
    bus = make_bus(retry=AT_ONCE)

    async def parent(event: Event, ctx: Context) -> None:
        first = await ctx.emit("child", {"attempt": event.attempts}, key="the one").stored()
        other = await ctx.emit("child", {"attempt": event.attempts}, key="the other").stored()
        assert first.id != other.id
        if event.attempts < 3:
            raise TransientError("again")

    bus.subscribe("parent", parent)
    bus.subscribe("child", lambda event: None)
    await bus.start()
    await bus.emit("parent")
    assert [child.payload for child in await of_type(bus.store, "child")] == [{"attempt": 1}] * 2


async def test_a_key_outside_of_a_handler_is_refused(make_bus: MakeBus) -> None:
    bus = await make_bus().start()
    with pytest.raises(ConfigurationError, match="idempotency_key="):
        bus.emit("child", key="the one")


async def test_an_event_of_its_own_is_stored_at_once(make_bus: MakeBus) -> None:
    bus = make_bus(retry=AT_ONCE)

    async def parent(event: Event) -> None:
        bus.emit("note", parent_id=None)
        await comes_true(lambda: _has(bus.store, "note", event.attempts))
        if event.attempts < 2:
            raise TransientError("again")

    bus.subscribe("parent", parent)
    await bus.start()
    await bus.emit("parent")
    assert len(await of_type(bus.store, "note")) == 2


async def _has(store: EventStore, kind: str, count: int) -> bool:
    return len(await of_type(store, kind)) == count


@pytest.mark.parametrize("handler_mode", ["serial", "parallel"])
@pytest.mark.parametrize("results", ["soon", "strict"])
async def test_the_children_of_a_handler_that_succeeded_beside_one_that_failed(
    make_bus: MakeBus, handler_mode: str, results: str
) -> None:
    bus, calls = make_bus(retry=AT_ONCE, handler_mode=handler_mode, results=results), []

    async def good(event: Event) -> None:
        calls.append("good")
        bus.emit("child", {"of": "good"})

    async def bad(event: Event) -> None:
        bus.emit("child", {"of": "bad"})
        await asyncio.sleep(0.06)  # longer than a success stays unknown
        if event.attempts < 3:
            raise TransientError("again")

    bus.subscribe("parent", good, id="good")
    bus.subscribe("parent", bad, id="bad")
    bus.subscribe("child", lambda event: None)
    await bus.start()
    assert (await bus.emit("parent")).status is EventStatus.COMPLETED
    assert calls == ["good"]
    children = [child.payload["of"] for child in await of_type(bus.store, "child")]
    assert sorted(children) == ["bad", "good"]


async def test_what_a_step_emits_is_stored_with_its_value(make_bus: MakeBus) -> None:
    bus, calls = make_bus(retry=AT_ONCE), []

    async def parent(event: Event, ctx: Context) -> None:
        async def charge() -> str:
            calls.append("charge")
            ctx.emit("child", {"n": 1})
            assert await of_type(bus.store, "child") == []
            return "paid"

        assert await ctx.step("charge", charge) == "paid"
        assert len(await of_type(bus.store, "child")) == 1
        ctx.emit("child", {"n": 1})  # equal to that of the step, and another one
        if event.attempts < 3:
            raise TransientError("again")

    bus.subscribe("parent", parent)
    bus.subscribe("child", lambda event: None)
    await bus.start()
    assert (await bus.emit("parent")).status is EventStatus.COMPLETED
    assert calls == ["charge"]
    assert len(await of_type(bus.store, "child")) == 2


async def test_a_child_on_another_store_is_stored_just_before_the_success(make_bus: MakeBus) -> None:
    bus, other = make_bus(retry=AT_ONCE), EventBus(MemoryStore(), name="other")
    await other.start()

    async def parent(event: Event) -> None:
        other.emit("note", {"n": 1})
        if event.attempts < 3:
            raise TransientError("again")

    bus.subscribe("parent", parent)
    await bus.start()
    assert (await bus.emit("parent")).status is EventStatus.COMPLETED
    (note,) = await of_type(other.store, "note")
    assert note.bus == "other"
    await other.shutdown(1.0)


async def test_a_dead_letter_that_is_put_back_makes_new_children(make_bus: MakeBus) -> None:
    bus = make_bus()

    async def parent(event: Event) -> None:
        await bus.emit("child").stored()
        if not event.generation:
            raise ValueError("no")

    bus.subscribe("parent", parent)
    bus.subscribe("child", lambda event: None)
    await bus.start()
    dead = await bus.emit("parent")
    assert dead.status is EventStatus.FAILED
    await bus.store.requeue_dead_letters([dead.id])

    async def ended() -> bool:
        event = await bus.store.get_event(dead.id)
        return event is not None and event.status is EventStatus.COMPLETED

    await comes_true(ended)
    assert len(await of_type(bus.store, "child")) == 2


async def test_the_last_child_on_another_node_wakes_its_parent_at_once(
    make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes never poll: only the store can tell the parent's node."""
    monkeypatch.setattr(waiting, "WAIT_HERE", 0.01)
    one, two = make_bus(name="one", poll_interval=60), make_bus(name="two", poll_interval=60)
    sender, release = make_bus(name="two", serve=False), asyncio.Event()

    async def parent(event: Event) -> None:
        sender.emit("child")

    async def child(event: Event) -> None:
        await release.wait()

    one.subscribe("parent", parent)
    two.subscribe("child", child)
    for bus in (one, two, sender):
        await bus.start()
    handle = one.emit("parent")

    async def waits() -> bool:
        return (await actions(one.store, handle.event_id))["RELEASED"] == 1 and two.in_flight == 1

    await comes_true(waits)
    release.set()
    assert (await handle).status is EventStatus.COMPLETED
    (stored,) = await of_type(one.store, "child")
    ended = (await one.store.read_event_log(stored.id))[-1]
    picked = [entry for entry in await one.store.read_event_log(handle.event_id) if entry.action is Action.PICKED]
    assert len(picked) == 2
    assert picked[1].at_ts - ended.at_ts < WAKE_UP


async def test_a_short_wait_for_children_happens_in_place(make_bus: MakeBus) -> None:
    bus, handles = make_bus(), []

    async def parent(event: Event) -> None:
        for n in range(3):
            bus.emit("child", {"n": n})

    async def child(event: Event) -> None:
        await asyncio.sleep(0.05)

    bus.subscribe("parent", parent)
    bus.subscribe("child", child)
    await bus.start()
    handles = [bus.emit("parent", {"n": n}) for n in range(20)]
    for handle in handles:
        assert (await handle).status is EventStatus.COMPLETED
        assert (await actions(bus.store, handle.event_id))["RELEASED"] == 0


async def test_a_worker_that_stops_does_not_wait_for_children(make_bus: MakeBus) -> None:
    bus, begun = make_bus(), asyncio.Event()

    async def parent(event: Event) -> None:
        bus.emit("child", delay=60, parent_id=event.event_id)
        begun.set()

    bus.subscribe("parent", parent)
    await bus.start()
    handle = bus.emit("parent")
    await begun.wait()
    await until(lambda: bus.in_flight == 1)
    store, began = bus.store, monotonic()
    await bus.shutdown(10.0)
    assert monotonic() - began < 5.0
    event = await store.get_event(handle.event_id)
    assert event is not None
    assert event.status is EventStatus.PENDING
    assert len(await of_type(store, "child")) == 1


async def test_the_store_that_cannot_store_both_in_one_step_gets_children_first(
    make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = make_bus(retry=AT_ONCE)
    monkeypatch.setattr(bus.store, "features", replace(bus.store.features, children=False))

    async def parent(event: Event) -> None:
        bus.emit("child", {"attempt": event.attempts})
        if event.attempts < 3:
            raise TransientError("again")

    bus.subscribe("parent", parent)
    bus.subscribe("child", lambda event: None)
    await bus.start()
    assert (await bus.emit("parent")).status is EventStatus.COMPLETED
    assert [child.payload for child in await of_type(bus.store, "child")] == [{"attempt": 3}]

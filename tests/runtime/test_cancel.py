"""Events that are cancelled, that are due at a given time, or that expire before a worker begins them."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest
from tests.places import short_lease
from tests.runtime.conftest import MakeBus

from durabus import (
    Action,
    Context,
    Event,
    EventCancelled,
    EventEnded,
    EventNotFound,
    EventQueue,
    EventStatus,
    EventStore,
    InvalidEventError,
    SyncEventBus,
    new_event,
)

CANCELLED, COMPLETED = EventStatus.CANCELLED, EventStatus.COMPLETED


class Work:
    """A handler that runs until it is stopped or let go."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.stopped = asyncio.Event()
        self.let_go = asyncio.Event()

    async def __call__(self, event: Event) -> str:
        self.begun.set()
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        return "done"


async def status_of(store: EventStore, event_id: str) -> EventStatus:
    event = await store.get_event(event_id)
    assert event is not None
    return event.status


async def until_expired(store: EventStore, event_id: str) -> None:
    """Wait until the event has expired by the store's clock."""
    event = await store.get_event(event_id)
    assert event is not None
    await asyncio.sleep(max(event.created_ts + (event.expires_after or 0.0) - await store.now(), 0.0) + 0.01)


async def test_an_event_that_waits_is_cancelled_at_once(make_bus: MakeBus, store: EventStore) -> None:
    bus, ran = make_bus(), []

    @bus.on("mail")
    async def mail(event: Event) -> None:
        ran.append(event.payload)

    await bus.start()
    later = bus.emit("mail", "later", delay=3600)
    (cancelled,) = await bus.cancel(later, "the order was withdrawn")
    assert (cancelled.event_id, cancelled.status) == (later.event_id, CANCELLED)
    with pytest.raises(EventCancelled, match="the order was withdrawn") as caught:
        await later.completed()
    assert (caught.value.event_id, caught.value.reason) == (later.event_id, "the order was withdrawn")
    await bus.publish("mail", "now")
    assert ran == ["now"]
    entry = (await store.read_event_log(later.event_id))[-1]
    assert (entry.action, entry.reason) == (Action.CANCELLED, "the order was withdrawn")


async def test_a_handler_on_the_same_node_is_stopped_at_once(make_bus: MakeBus, store: EventStore) -> None:
    bus, work = make_bus(lease=short_lease(store) * 10), Work()
    bus.subscribe("job", work)
    await bus.start()
    job = bus.emit("job")
    async with asyncio.timeout(10):
        await work.begun.wait()
        await bus.cancel(job.event_id, "not needed")
        await work.stopped.wait()
    with pytest.raises(EventCancelled, match="not needed"):
        await job.result()
    assert await status_of(store, job.event_id) is CANCELLED
    assert bus.metrics.snapshot().lease_lost == {}


async def test_a_handler_on_another_node_is_stopped_when_its_claim_is_renewed(
    make_bus: MakeBus, store: EventStore
) -> None:
    lease = short_lease(store)
    there, here, work = make_bus(lease=lease), make_bus(serve=False), Work()
    there.subscribe("job", work)
    await there.start()
    job = there.emit("job")
    async with asyncio.timeout(20):
        await work.begun.wait()
        await here.cancel(job.event_id, "not needed")
        assert await status_of(store, job.event_id) is CANCELLED
        await work.stopped.wait()
        with pytest.raises(EventCancelled, match="not needed"):
            await job.completed()


async def test_the_result_of_a_cancelled_event_is_refused(make_bus: MakeBus, store: EventStore) -> None:
    bus, begun, go = make_bus(), threading.Event(), threading.Event()

    @bus.on("job")
    def job(event: Event) -> str:  # a thread, which nothing can stop
        begun.set()
        go.wait(20)
        return "done"

    await bus.start()
    handle = bus.emit("job")
    assert await asyncio.to_thread(begun.wait, 20)
    await bus.cancel(handle, "not needed")
    go.set()
    with pytest.raises(EventCancelled):
        await handle.result()
    await bus.shutdown(5)
    trail = [entry.action.value for entry in await store.read_event_log(handle.event_id)]
    assert trail == ["PUBLISHED", "PICKED", "CANCELLED"]


async def test_publish_raises_if_its_event_is_cancelled(make_bus: MakeBus) -> None:
    bus, work = make_bus(), Work()
    bus.subscribe("job", work)
    await bus.start()
    event_id = new_event("job").event_id
    publishing = asyncio.create_task(bus.publish("job", event_id=event_id))
    async with asyncio.timeout(10):
        await work.begun.wait()
        await bus.cancel(event_id, "not needed")
        with pytest.raises(EventCancelled, match="not needed"):
            await publishing


async def test_children_are_cancelled_too_if_asked(make_bus: MakeBus, store: EventStore) -> None:
    bus = make_bus()
    await bus.start()
    parent = await bus.publish("order", delay=3600)
    child = await bus.publish("pack", parent_id=parent, delay=3600)
    grandchildren = [await bus.publish("label", parent_id=child, delay=3600) for _ in range(3)]
    other = await bus.publish("order", delay=3600)
    cancelled = await bus.cancel(parent, "withdrawn", children=True)
    assert [event.event_id for event in cancelled[:2]] == [parent, child]
    assert {event.event_id for event in cancelled[2:]} == set(grandchildren)
    assert await status_of(store, other) is EventStatus.PENDING
    assert {entry.reason for entry in await store.read_event_log(grandchildren[0])} == {None, "withdrawn"}


async def test_children_of_a_cancelled_event_go_on_if_not_asked(make_bus: MakeBus, store: EventStore) -> None:
    bus = make_bus()
    await bus.start()
    parent = await bus.publish("order", delay=3600)
    child = await bus.publish("pack", parent_id=parent, delay=3600)
    (cancelled,) = await bus.cancel(parent, "withdrawn")
    assert cancelled.event_id == parent
    assert await status_of(store, child) is EventStatus.PENDING
    (later,) = await bus.cancel(child, "withdrawn")
    assert later.event_id == child


async def test_a_parent_that_awaits_a_cancelled_child_gets_an_exception(make_bus: MakeBus, store: EventStore) -> None:
    bus, work = make_bus(), Work()
    bus.subscribe("child", work)
    heard: list[str | None] = []
    children: list[str] = []

    @bus.on("parent")
    async def parent(event: Event, ctx: Context) -> str:
        child = ctx.emit("child")
        children.append(child.event_id)
        try:
            await child
        except EventCancelled as error:
            heard.append(error.reason)
        return "went on"

    await bus.start()
    handle = bus.emit("parent")
    async with asyncio.timeout(20):
        await work.begun.wait()
        await bus.cancel(children[0], "not needed")
        assert await handle.result() == "went on"
    assert heard == ["not needed"]
    assert await status_of(store, handle.event_id) is COMPLETED


async def test_a_parent_completes_after_a_cancelled_child(make_bus: MakeBus, store: EventStore) -> None:
    bus, work = make_bus(), Work()
    bus.subscribe("child", work)

    @bus.on("parent")
    async def parent(event: Event, ctx: Context) -> None:
        ctx.emit("child")

    await bus.start()
    handle = bus.emit("parent")
    async with asyncio.timeout(20):
        await work.begun.wait()
        child = await bus.find("child")
        assert child is not None
        await bus.cancel(child, "not needed")
        assert (await handle.completed()).status is COMPLETED


async def test_the_next_event_of_an_ordering_key_follows_a_cancelled_one(make_bus: MakeBus, store: EventStore) -> None:
    if not store.features.ordering_keys:
        pytest.skip("declared: ordering_keys=False")
    bus, work, ran = make_bus(), Work(), []
    bus.subscribe("first", work)

    @bus.on("second")
    async def second(event: Event) -> None:
        ran.append(event.type)

    await bus.start()
    first, last = bus.emit("first", ordering_key="k"), bus.emit("second", ordering_key="k")
    async with asyncio.timeout(20):
        await work.begun.wait()
        await bus.cancel(first, "not needed")
        await last.completed()
    assert ran == ["second"]


async def test_a_serial_bus_goes_on_after_a_cancelled_event(make_bus: MakeBus, store: EventStore) -> None:
    if not store.features.serial_modes:
        pytest.skip("declared: serial_modes=False")
    bus, work = make_bus(mode="bus-serial", lease=short_lease(store) * 10), Work()
    bus.subscribe("first", work)

    @bus.on("second")
    async def second(event: Event) -> str:
        return "ran"

    await bus.start()
    first, last = bus.emit("first"), bus.emit("second")
    async with asyncio.timeout(20):
        await work.begun.wait()
        await bus.cancel(first, "not needed")
        assert await last.result() == "ran"
        assert await bus.emit("second").result() == "ran"


async def test_cancelled_events_count_for_the_history(make_bus: MakeBus, store: EventStore) -> None:
    bus = make_bus(max_history_size=2)
    for _ in range(6):
        await bus.cancel(await bus.publish("order", delay=3600), "withdrawn")
    await bus.shutdown()
    assert (await store.counts()).cancelled <= 2


@pytest.mark.parametrize("reason", ["", "  ", None])
async def test_a_cancellation_needs_a_reason(make_bus: MakeBus, store: EventStore, reason: str) -> None:
    bus = make_bus()
    event_id = await bus.publish("order", delay=3600)
    with pytest.raises(InvalidEventError, match="reason"):
        await bus.cancel(event_id, reason)
    assert await status_of(store, event_id) is EventStatus.PENDING


async def test_cancelling_an_ended_or_unknown_event_is_an_error(make_bus: MakeBus) -> None:
    bus = make_bus()

    @bus.on("order")
    async def order(event: Event) -> None: ...

    event_id = await bus.publish("order")
    with pytest.raises(EventEnded, match="has ended COMPLETED: there is nothing to cancel"):
        await bus.cancel(event_id, "too late")
    with pytest.raises(EventNotFound):
        await bus.cancel(new_event("order").event_id, "never published")


async def test_a_repeated_cancellation_is_no_error(make_bus: MakeBus) -> None:
    bus = make_bus()
    event_id = await bus.publish("order", delay=3600)
    first = await bus.cancel(event_id, "withdrawn")
    assert await bus.cancel(event_id, "again") == first


async def test_an_event_is_due_at_the_given_time(make_bus: MakeBus, store: EventStore) -> None:
    bus = make_bus()
    await bus.start()
    due = datetime.now(UTC) + timedelta(hours=1)  # clock: the test gives a time of this machine
    stored = await bus.emit("report", at=due).stored()
    assert abs(stored.due_ts - stored.created_ts - 3600) < 30
    past = await bus.emit("report", at=due - timedelta(days=1)).stored()
    assert past.due_ts == past.created_ts
    queued = await EventQueue(store).publish("report", at=due)
    assert abs(queued.due_ts - queued.created_ts - 3600) < 30


async def test_an_expired_event_is_not_begun(make_bus: MakeBus, store: EventStore) -> None:
    bus, ran = make_bus(), []
    publisher = make_bus(serve=False)
    event_id = await publisher.publish("quote", expires=0.05)
    kept = await publisher.publish("quote", expires=timedelta(hours=1))
    await until_expired(store, event_id)

    @bus.on("quote")
    async def quote(event: Event) -> None:
        ran.append(event.event_id)

    await bus.start()
    async with asyncio.timeout(20):
        with pytest.raises(EventCancelled, match=r"expired 0\.05 s after it was published"):
            await bus.emit("quote", event_id=event_id).completed()
        await bus.emit("quote", event_id=kept).completed()
    assert ran == [kept]
    assert await status_of(store, event_id) is CANCELLED
    entry = (await store.read_event_log(event_id))[-1]
    assert (entry.reason or "").startswith("expired ")


async def test_a_retry_is_not_begun_after_the_event_has_expired(make_bus: MakeBus, store: EventStore) -> None:
    bus, calls = make_bus(retry={"max_retries": 5, "base_delay": 0.3, "jitter": 0}), []

    @bus.on("quote")
    async def quote(event: Event) -> None:
        calls.append(event.attempts)
        raise RuntimeError("not yet")

    await bus.start()
    handle = bus.emit("quote", expires=0.25)
    async with asyncio.timeout(20):
        with pytest.raises(EventCancelled, match="expired"):
            await handle.completed()
    assert calls == [1]
    event = await store.get_event(handle.event_id)
    assert event is not None
    assert (event.status, len(event.errors)) == (CANCELLED, 1)
    assert bus.metrics.snapshot().cancelled == {"quote": 1}


async def test_a_parent_whose_handlers_are_done_does_not_expire(make_bus: MakeBus, store: EventStore) -> None:
    bus, work = make_bus(), Work()
    bus.subscribe("child", work)

    @bus.on("parent")
    async def parent(event: Event, ctx: Context) -> None:
        ctx.emit("child")

    await bus.start()
    handle = bus.emit("parent", expires=0.4)
    async with asyncio.timeout(30):
        await work.begun.wait()
        await asyncio.sleep(0.8)  # the parent goes back to the queue and expires there
        work.let_go.set()
        assert (await handle.completed()).status is COMPLETED


async def test_poll_cancels_expired_events_and_returns_the_next(store: EventStore) -> None:
    queue = EventQueue(store)
    late = [await queue.publish("quote", expires=0.01) for _ in range(3)]
    good = await queue.publish("quote")
    await until_expired(store, late[-1].event_id)
    found = await queue.poll()
    assert found is not None
    assert found.id == good.id
    assert await queue.poll() is None
    assert {await status_of(store, event.event_id) for event in late} == {CANCELLED}


async def test_a_queue_cancels_what_it_polled(store: EventStore) -> None:
    queue = EventQueue(store)
    event = await queue.publish("job")
    polled = await queue.poll()
    assert polled is not None
    (cancelled,) = await queue.cancel(event.id, "not needed")
    assert cancelled.status is CANCELLED
    assert queue.claim_on(event.id) is None
    await queue.finalize(event.id)  # it has ended, so it stays as it is
    assert await status_of(store, event.event_id) is CANCELLED


async def test_a_forwarded_copy_gets_what_is_left_of_the_time(make_bus: MakeBus) -> None:
    source, target = make_bus(name="source"), make_bus(name="target")
    seen: list[float] = []
    source.forward(target)

    @target.on()
    async def keep(event: Event) -> None:
        seen.append(event.expires_after or 0.0)

    await source.start()
    await source.publish("quote", expires=60)
    assert 0 < seen[0] < 60


def test_a_sync_event_bus_cancels_too() -> None:
    with SyncEventBus("memory://") as bus:
        handle = bus.emit("order", delay=3600)
        (cancelled,) = bus.cancel(handle, "withdrawn")
        assert cancelled.event_id == handle.event_id
        with pytest.raises(EventCancelled, match="withdrawn"):
            handle.completed(timeout=5)

"""Batch handlers: a list of events for each call, and a verdict, a fence and retries for each event."""

import asyncio
import threading
from collections import defaultdict
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.places import short_lease
from tests.runtime.conftest import MakeBus

from durabus import (
    BatchContext,
    BatchFailed,
    ConfigurationError,
    Context,
    Event,
    EventBus,
    EventManager,
    EventMode,
    EventQuery,
    EventQueue,
    EventStatus,
    EventStore,
    LeaseLost,
    ResultStatus,
    RetryPolicy,
    Snooze,
    TransientError,
    UnrecoverableError,
)

PATIENT = {"max_retries": 5, "base_delay": 0.01}
LONG = 60.0


@dataclass
class Reading:
    value: int


async def ends_of(bus: EventBus, count: int, **options: Any) -> list[Event]:
    """Emit that many events at once, and return how they ended."""
    await bus.start()
    return await asyncio.gather(*(bus.emit("metric.cpu", {"value": n}, **options) for n in range(count)))


async def test_a_batch_begins_when_it_is_full_and_gives_the_events_in_order(make_bus: MakeBus) -> None:
    bus, batches = make_bus(concurrency=4), []

    @bus.on("metric.*", id="store", batch=10, within=LONG)
    async def store_all(events: list[Event]) -> None:
        batches.append([event.payload["value"] for event in events])

    ends = await ends_of(bus, 30)
    assert {event.status for event in ends} == {EventStatus.COMPLETED}
    assert [len(batch) for batch in batches] == [10, 10, 10]
    assert [value for batch in batches for value in batch] == list(range(30))


async def test_a_batch_begins_some_time_after_its_first_event_although_it_is_not_full(make_bus: MakeBus) -> None:
    bus, batches = make_bus(), []

    @bus.on("metric.*", id="store", batch=100, within=0.3)
    async def store_all(readings: list[Reading]) -> None:
        batches.append(sorted(reading.value for reading in readings))

    await ends_of(bus, 3)
    assert batches == [[0, 1, 2]]


async def test_events_that_wait_for_their_batch_use_no_slot(make_bus: MakeBus) -> None:
    bus = make_bus(concurrency=1)
    order: list[object] = []

    @bus.on("metric.*", id="store", batch=3, within=LONG)
    async def store_all(events: list[Event]) -> None:
        order.append(len(events))

    @bus.on("other", id="other")
    async def other(event: Event) -> None:
        order.append("other")

    await bus.start()
    first = [bus.emit("metric.cpu", n) for n in range(2)]
    await asyncio.gather(*(handle.stored() for handle in first))
    await bus.publish("other")
    await asyncio.gather(*first, bus.emit("metric.cpu", 3))
    assert order == ["other", 3]


async def test_batch_failed_names_the_events_that_failed_and_the_others_succeed(
    make_bus: MakeBus, store: EventStore
) -> None:
    bus, calls = make_bus(retry=PATIENT), []

    @bus.on("metric.*", id="store", batch=4, within=0.2)
    async def store_all(events: list[Event]) -> None:
        calls.append({event.payload["value"] for event in events})
        by_value = {event.payload["value"]: event for event in events}
        errors: dict[Event | str, BaseException] = {}
        if 1 in by_value:
            errors[by_value[1]] = UnrecoverableError("never")
        if 2 in by_value and by_value[2].attempts == 1:
            errors[by_value[2].event_id] = TransientError("later", retry_after=0.05)
        if 3 in by_value and by_value[3].attempts == 1:
            errors[by_value[3]] = ValueError("odd")
        raise BatchFailed(errors)

    ends = await ends_of(bus, 4)
    assert [(event.status, event.attempts) for event in ends] == [
        (EventStatus.COMPLETED, 1),
        (EventStatus.COMPLETED_WITH_ERRORS, 1),
        (EventStatus.COMPLETED, 2),
        (EventStatus.COMPLETED, 2),
    ]
    assert ends[1].errors == ("UnrecoverableError: never",)
    assert [event.errors for event in ends[2:]] == [("TransientError: later",), ("ValueError: odd",)]
    assert calls[0] == {0, 1, 2, 3}
    assert set().union(*calls[1:]) == {2, 3}


async def test_a_mapping_gives_each_event_its_value_or_error(make_bus: MakeBus, store: EventStore) -> None:
    bus = make_bus()

    @bus.on("metric.*", id="store", batch=3, within=LONG)
    async def store_all(events: list[Event], ctx: BatchContext) -> dict[str, Any]:
        assert ctx.events == tuple(events)
        assert [ctx.fence_of(event) for event in events] == [event.fence for event in events]
        assert ctx.attempt_of(events[0].event_id) == 1
        return {events[0].event_id: {"stored": 0}, events[1].event_id: UnrecoverableError("no room")}

    await bus.start()
    handles = [bus.emit("metric.cpu", n) for n in range(3)]
    results = [await handle.results() for handle in handles]
    assert await handles[0].result() == {"stored": 0}
    assert (await handles[1]).errors == ("UnrecoverableError: no room",)
    assert await handles[2].result() is None
    assert (await handles[2]).status is EventStatus.COMPLETED
    assert (results[0][0].handler_id, results[0][0].status) == ("store", ResultStatus.SUCCEEDED)


async def test_any_other_error_fails_every_event_of_the_batch(make_bus: MakeBus) -> None:
    bus, sizes = make_bus(retry=PATIENT), []

    @bus.on("metric.*", id="store", batch=3, within=0.1)
    async def store_all(events: list[Event]) -> None:
        sizes.append(len(events))
        if len(sizes) == 1:
            raise OSError("disk full")

    ends = await ends_of(bus, 3)
    assert sizes[0] == 3
    assert {(event.status, event.attempts, event.errors) for event in ends} == {
        (EventStatus.COMPLETED, 2, ("OSError: disk full",))
    }


@pytest.mark.parametrize("how", ["raise", "return", "list"])
async def test_a_foreign_event_or_another_return_value_fails_the_batch_with_a_clear_error(
    make_bus: MakeBus, how: str
) -> None:
    bus = make_bus()

    @bus.on("metric.*", id="store", batch=2, within=LONG)
    async def store_all(events: list[Event]) -> object:
        if how == "raise":
            raise BatchFailed({"another": ValueError("no")})
        return {"another": 1} if how == "return" else [1, 2]

    ends = await ends_of(bus, 2)
    assert {event.status for event in ends} == {EventStatus.FAILED}
    text = "returned list: it must return None, or a mapping" if how == "list" else "gave a verdict on 'another'"
    assert all(text in (event.last_error or "") for event in ends)


async def test_plain_functions_take_batches_in_a_thread(make_bus: MakeBus) -> None:
    bus, threads = make_bus(), set()

    @bus.on("metric.*", id="store", batch=3, within=LONG)
    def store_all(events: list[Event], ctx: BatchContext) -> dict[Event, int]:
        threads.add(threading.current_thread())
        return {event: event.payload["value"] * 10 for event in events}

    await bus.start()
    values = await asyncio.gather(*(bus.emit("metric.cpu", {"value": n}).result() for n in range(3)))
    assert values == [0, 10, 20]
    assert threading.main_thread() not in threads


async def test_the_timeout_covers_the_whole_batch(make_bus: MakeBus) -> None:
    bus = make_bus()

    @bus.on("metric.*", id="store", batch=2, within=LONG, timeout=0.1)
    async def store_all(events: list[Event]) -> None:
        await asyncio.Event().wait()

    ends = await ends_of(bus, 2)
    assert {event.errors for event in ends} == {("TimeoutError: handler store took longer than 0.1 s",)}


async def test_an_event_with_another_handler_completes_after_both(make_bus: MakeBus, store: EventStore) -> None:
    for mode in ("serial", "parallel"):
        bus = make_bus(handler_mode=mode, name=mode)
        seen: list[str] = []

        @bus.on("metric.*", id="single")
        async def single(event: Event, seen: list[str] = seen) -> str:
            seen.append("single")
            return "one"

        @bus.on("metric.*", id="store", batch=2, within=LONG)
        async def store_all(events: list[Event], seen: list[str] = seen) -> dict[str, str]:
            seen.append("batch")
            return {event.event_id: "many" for event in events}

        ends = await ends_of(bus, 2)
        assert sorted(seen) == ["batch", "single", "single"]
        results = {result.handler_id: result.value for result in await store.list_results(ends[0].event_id)}
        assert results == {"single": "one", "store": "many"}


async def test_a_batch_handler_may_be_on_another_node(make_bus: MakeBus, store: EventStore) -> None:
    here, there, sizes = make_bus(handler_mode="parallel"), make_bus(handler_mode="parallel"), []

    @here.on("metric.*", id="single")
    async def single(event: Event) -> str:
        return "one"

    @there.on("metric.*", id="store", batch=5, within=0.3)
    async def store_all(events: list[Event]) -> dict[str, str]:
        sizes.append(len(events))
        return {event.event_id: "many" for event in events}

    await there.start()
    ends = await ends_of(here, 10)
    assert {event.status for event in ends} == {EventStatus.COMPLETED}
    assert sum(sizes) == 10
    results = {result.handler_id: result.value for result in await store.list_results(ends[0].event_id)}
    assert results == {"single": "one", "store": "many"}


async def test_ordering_keys_stay_in_order_within_and_between_batches(make_bus: MakeBus) -> None:
    seen: dict[str, list[int]] = defaultdict(list)
    running: set[str] = set()

    async def store_all(events: list[Event]) -> None:
        keys = [event.ordering_key or "" for event in events]
        assert len(set(keys)) == len(keys)
        assert not running & set(keys)
        running.update(keys)
        await asyncio.sleep(0.005)
        for key, event in zip(keys, events, strict=True):
            seen[key].append(event.payload)
        running.difference_update(keys)
        again = TransientError("again", retry_after=0.05)
        raise BatchFailed({event: again for event in events if event.payload == 4 and event.attempts == 1})

    buses = [make_bus(retry=PATIENT) for _ in range(2)]
    for bus in buses:
        bus.subscribe("job", store_all, id="h", batch=4, within=0.02)
        await bus.start()
    ends = await asyncio.gather(*(buses[0].emit("job", n, ordering_key=f"k{n % 4}") for n in range(20)))
    assert {event.status for event in ends} == {EventStatus.COMPLETED}
    assert dict(seen) == {"k0": [0, 4, 4, 8, 12, 16], **{f"k{k}": list(range(k, 20, 4)) for k in (1, 2, 3)}}


async def test_a_shutdown_runs_the_batch_that_waits(make_bus: MakeBus, store: EventStore) -> None:
    bus, sizes, joined = make_bus(), [], asyncio.Event()

    @bus.on("metric.*", id="other")
    async def other(event: Event) -> None:
        joined.set()

    @bus.on("metric.*", id="store", batch=100, within=LONG)
    async def store_all(events: list[Event]) -> None:
        sizes.append(len(events))

    await bus.start()
    handle = bus.emit("metric.cpu")
    await asyncio.wait_for(joined.wait(), 20)
    await bus.shutdown(20)
    assert sizes == [1]
    event = await store.get_event(handle.event_id)
    assert event is not None
    assert event.status is EventStatus.COMPLETED


async def test_a_shutdown_gives_a_batch_back_that_does_not_end_in_time(make_bus: MakeBus, store: EventStore) -> None:
    bus, begun, stopped = make_bus(), asyncio.Event(), asyncio.Event()

    @bus.on("metric.*", id="store", batch=2, within=LONG)
    async def store_all(events: list[Event]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    await bus.start()
    handles = [bus.emit("metric.cpu", n) for n in range(2)]
    await asyncio.wait_for(begun.wait(), 20)
    await bus.shutdown(0.1)
    assert stopped.is_set()
    for handle in handles:
        event = await store.get_event(handle.event_id)
        assert event is not None
        assert (event.status, event.attempts) == (EventStatus.PENDING, 0)


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize("url", ["memory"], indirect=True)
async def test_a_generator_exit_of_a_batch_handler_is_a_failed_attempt(make_bus: MakeBus, kind: str) -> None:
    bus = make_bus()

    async def store_all(events: list[Event]) -> None:
        await asyncio.sleep(0)
        raise GeneratorExit("no")

    def plain_store_all(events: list[Event]) -> None:
        raise GeneratorExit("no")

    bus.subscribe("metric.*", store_all if kind == "async" else plain_store_all, id="store", batch=2, within=0.01)
    await bus.start()
    ended = await asyncio.wait_for(bus.emit("metric.cpu").completed(), 20)
    assert (ended.status, ended.errors) == (EventStatus.FAILED, ("GeneratorExit: no",))


async def test_a_plain_batch_handler_emits_children_of_its_events(make_bus: MakeBus, store: EventStore) -> None:
    bus = make_bus()

    @bus.on("metric.*", id="store", batch=2, within=LONG)
    def store_all(events: list[Event], ctx: BatchContext) -> None:
        for event in events:
            ctx.emit("child", event.payload, parent=event)

    await bus.start()
    parents = await asyncio.gather(*(bus.emit("metric.cpu", n) for n in range(2)))
    children = (await store.find(EventQuery(type="child", limit=10))).events
    assert {child.payload: child.parent_id for child in children} == {n: parents[n].event_id for n in range(2)}


async def test_a_lost_claim_leaves_the_batch_and_the_others_go_on(make_bus: MakeBus, store: EventStore) -> None:
    bus, begun, go_on = make_bus(), asyncio.Event(), asyncio.Event()
    late: list[str] = []

    @bus.on("metric.*", id="store", batch=3, within=LONG)
    async def store_all(events: list[Event], ctx: BatchContext) -> dict[str, str]:
        begun.set()
        await go_on.wait()
        with pytest.raises(LeaseLost, match="has left its batch"):
            ctx.emit("child", parent=events[0])
        late.append(events[0].event_id)
        return {event.event_id: "stored" for event in events}

    await bus.start()
    handles = [bus.emit("metric.cpu", n) for n in range(3)]
    await asyncio.wait_for(begun.wait(), 20)
    assert bus._worker is not None
    lost = next(c for c in bus._worker._claims.by_id.values() if c.claim.event.event_id == handles[0].event_id)
    bus._worker._claims.lose(lost, "a test took it")
    await asyncio.sleep(0)
    go_on.set()
    assert [await handle.result() for handle in handles[1:]] == ["stored", "stored"]
    assert late == [handles[0].event_id]
    event = await store.get_event(handles[0].event_id)
    assert event is not None
    assert event.status is EventStatus.PROCESSING  # its verdict was dropped; the lease ends it


async def test_an_event_that_loses_its_claim_while_it_waits_is_not_in_the_batch(
    make_bus: MakeBus, store: EventStore
) -> None:
    bus, batches, joined = make_bus(handler_mode="parallel"), [], []
    both = asyncio.Event()

    @bus.on("metric.*", id="store", batch=2, within=LONG)
    async def store_all(events: list[Event]) -> None:
        batches.append([event.payload["value"] for event in events])

    @bus.on("metric.*", id="other")
    async def other(event: Event) -> None:
        joined.append(event.event_id)
        both.set()

    await bus.start()
    first = bus.emit("metric.cpu", {"value": 0})
    await asyncio.wait_for(both.wait(), 20)
    assert bus._worker is not None
    (claimed,) = bus._worker._claims.by_id.values()
    bus._worker._claims.lose(claimed, "a test took it")
    ends = await asyncio.gather(*(bus.emit("metric.cpu", {"value": n}) for n in (1, 2)))
    assert batches == [[1, 2]]
    assert {event.status for event in ends} == {EventStatus.COMPLETED}
    event = await store.get_event(first.event_id)
    assert event is not None
    assert event.status is EventStatus.PROCESSING
    assert not bus._dispatcher.batches._batchers  # nothing is left behind


async def test_claims_stay_renewed_while_events_wait_for_their_batch(make_bus: MakeBus, store: EventStore) -> None:
    lease = short_lease(store)
    bus = make_bus(lease=lease)
    calls: list[tuple[int, int]] = []

    @bus.on("metric.*", id="store", batch=100, within=2.5 * lease)
    async def store_all(events: list[Event]) -> None:
        calls.extend((event.attempts, event.fence) for event in events)

    ends = await ends_of(bus, 2)
    assert calls == [(1, 1), (1, 1)]
    assert {event.status for event in ends} == {EventStatus.COMPLETED}


async def test_children_belong_to_the_event_that_is_named(make_bus: MakeBus, store: EventStore) -> None:
    bus = make_bus()

    @bus.on("metric.*", id="store", batch=2, within=LONG)
    async def store_all(events: list[Event], ctx: BatchContext) -> None:
        for event in events:
            ctx.emit("alarm", event.payload, parent=event)

    @bus.on("alarm", id="alarm")
    async def alarm(event: Event) -> None: ...

    ends = await ends_of(bus, 2)
    assert await bus.wait_until_idle(20)
    for event in ends:
        child = await bus.find("alarm", child_of=event)
        assert child is not None
        assert child.payload == event.payload


async def test_a_payload_that_does_not_decode_fails_its_own_event_only(make_bus: MakeBus) -> None:
    bus = make_bus()
    values: list[int] = []

    @bus.on("metric.*", id="store", batch=2, within=LONG)
    async def store_all(readings: list[Reading]) -> None:
        values.extend(reading.value for reading in readings)

    await bus.start()
    handles = [bus.emit("metric.cpu", payload) for payload in ({"value": 1}, {"value": "x"}, {"value": 3})]
    statuses = [(await handle).status for handle in handles]
    assert values == [1, 3]
    assert statuses == [EventStatus.COMPLETED, EventStatus.COMPLETED_WITH_ERRORS, EventStatus.COMPLETED]


@pytest.mark.parametrize("until", ["seconds", "instant"])
async def test_a_snooze_in_the_mapping_calls_the_handler_again_for_that_event(make_bus: MakeBus, until: str) -> None:
    bus, calls = make_bus(), []

    @bus.on("metric.*", id="store", batch=2, within=0.1)
    async def store_all(events: list[Event]) -> dict[str, object]:
        calls.append(len(events))
        soon = 0.05 if until == "seconds" else datetime.fromtimestamp(events[0].created_ts + 0.05, UTC)
        return {events[0].event_id: Snooze(soon)} if len(calls) == 1 else {}

    ends = await ends_of(bus, 2)
    assert calls == [2, 1]
    assert {(event.status, event.attempts, event.errors) for event in ends} == {(EventStatus.COMPLETED, 1, ())}


class Spans:
    """A tracer that notes which calls failed."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, str | None]] = []

    def publishing(self, event_type: str) -> dict[str, Any]:
        return {}

    def handling(self, event: Event, handler_id: str) -> AbstractContextManager[object]:
        @contextmanager
        def span() -> Any:
            try:
                yield
            except BaseException as error:
                self.ended.append((event.event_id, str(error)))
                raise
            self.ended.append((event.event_id, None))

        return span()

    def settled(self, event: Event, status: EventStatus) -> None: ...


async def test_each_event_of_a_batch_has_its_own_span(make_bus: MakeBus) -> None:
    spans = Spans()
    bus = make_bus(tracing=spans)

    @bus.on("metric.*", id="store", batch=2, within=LONG)
    async def store_all(events: list[Event]) -> None:
        raise BatchFailed({events[1]: ValueError("odd")})

    ends = await ends_of(bus, 2)
    assert sorted(spans.ended) == sorted([(ends[0].event_id, None), (ends[1].event_id, "odd")])


async def test_the_breaker_counts_a_batch_once(make_bus: MakeBus) -> None:
    bus = make_bus(breaker={"minimum_samples": 2, "open_for": 60})

    @bus.on("metric.*", id="store", batch=20, within=0.1)
    async def store_all(events: list[Event]) -> None:
        raise OSError("disk full")

    ends = await ends_of(bus, 20)
    assert {event.status for event in ends} == {EventStatus.FAILED}
    (handler,) = bus._dispatcher.handlers
    assert handler.breaker.state.value == "closed"


async def test_a_manager_takes_batches_too(store: EventStore) -> None:
    queue, sizes = EventQueue(store), []
    manager = EventManager(queue, retry=RetryPolicy(max_retries=0))

    async def store_all(events: list[Event]) -> None:
        sizes.append(len(events))
        if sum(sizes) == 6:
            manager.stop()

    manager.register("metric.cpu", "store", store_all, batch=3, within=1.0)
    for n in range(6):
        await queue.publish("metric.cpu", n)
    await asyncio.wait_for(manager.run_process_loop(), 30)
    assert sum(sizes) == 6
    assert max(sizes) == 3
    assert (await store.counts()).completed == 6


async def many(events: list[Event]) -> None: ...


async def one(event: Event) -> None: ...


async def with_steps(events: list[Event], ctx: Context) -> None: ...


async def with_batch_context(events: list[Event], ctx: BatchContext) -> None: ...


async def generator(events: list[Event]) -> Any:
    yield events


@pytest.mark.parametrize(
    ("function", "options", "text"),
    [
        (many, {"batch": 0}, "batch=0: must be a whole number from 1 to 10000"),
        (many, {"batch": -1}, "batch=-1"),
        (many, {"batch": True}, "batch=True"),
        (many, {"batch": 10_001}, "from 1 to 10000"),
        (many, {"within": 1.0}, "within=1.0 without batch"),
        (many, {"batch": 2, "within": -1}, "within=-1: must be 0 or more"),
        (one, {"batch": 2}, "its first argument must be list"),
        (with_steps, {"batch": 2}, "it gets a BatchContext, not a Context"),
        (generator, {"batch": 2}, "has a yield in it"),
        (many, {}, "is written for batches: subscribe it with batch="),
        (with_batch_context, {}, "is written for batches"),
    ],
)
def test_what_cannot_be_a_batch_handler_is_refused(function: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        EventBus("memory://").subscribe("metric.*", function, **options)


@pytest.mark.parametrize("mode", [EventMode.BUS_SERIAL, EventMode.GLOBAL_SERIAL])
def test_a_bus_that_runs_one_event_at_a_time_refuses_batches(mode: EventMode) -> None:
    with pytest.raises(ConfigurationError, match="runs one event at a time"):
        EventBus("memory://", mode=mode).subscribe("metric.*", many, batch=2)


@pytest.mark.parametrize("verb", ["step", "sleep", "sleep_until"])
async def test_the_context_of_a_batch_has_no_steps_and_says_why(verb: str) -> None:
    with pytest.raises(AttributeError, match=f"ctx.{verb} is not possible in a batch handler"):
        getattr(BatchContext((), "worker"), verb)


def test_batch_failed_needs_exceptions() -> None:
    with pytest.raises(ConfigurationError, match="to exceptions"):
        BatchFailed({"id": "text"})  # type: ignore[arg-type]

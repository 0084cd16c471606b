"""Requests: the publisher gets the value of the handler, from whichever node ran it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from tests.runtime.conftest import MakeBus

from durabus import (
    ConfigurationError,
    Context,
    Event,
    EventBus,
    EventBusShutdownError,
    EventFailed,
    EventQuery,
    EventStatus,
    EventStore,
    NoAnswer,
    StoreError,
    SyncEventBus,
    TransientError,
    UnrecoverableError,
    open_store,
)
from durabus.bus.ends import EndReader

LONG = 30.0


async def quote(event: Event) -> dict[str, Any]:
    return {"price": event.payload["units"] * 2}


async def test_a_request_returns_the_value_of_a_handler_on_another_node(
    make_bus: MakeBus, store: EventStore, url: str
) -> None:
    """The other node has a store object of its own, as another process has."""
    here = make_bus(serve=False)
    other = store if url.startswith("memory") else await open_store(url)
    there = EventBus(other, poll_interval=0.05)
    there.subscribe("price.quote", quote)
    async with there:
        assert await here.request("price.quote", {"units": 4}, timeout=LONG) == {"price": 8}
        answers = await asyncio.gather(*(here.request("price.quote", {"units": n}, timeout=LONG) for n in range(50)))
        assert answers == [{"price": 2 * n} for n in range(50)]
        assert await here.wait_until_idle(LONG)
    if other is not store:
        await other.close()


async def test_a_request_returns_the_value_of_a_handler_of_this_bus(make_bus: MakeBus) -> None:
    bus = make_bus()
    bus.subscribe("price.quote", quote)
    assert await bus.request("price.quote", {"units": 4}, timeout=LONG) == {"price": 8}


async def test_a_request_without_an_answer_says_why(make_bus: MakeBus) -> None:
    bus = make_bus()

    async def too_large(event: Event) -> Any:
        return None if event.payload is None else "x" * event.payload

    bus.subscribe("size", too_large, id="size")
    assert await bus.request("size", None, timeout=LONG) is None
    with pytest.raises(NoAnswer, match=r"handler size succeeded, result not stored: .* the limit is 1,048,576"):
        await bus.request("size", 2_000_000, timeout=LONG)
    with pytest.raises(NoAnswer, match="no node has a handler for 'sise': is the type misspelt"):
        await bus.request("sise", 1, timeout=LONG)


async def test_a_retry_asks_anew_if_its_earlier_request_has_expired(make_bus: MakeBus) -> None:
    bus, answers = make_bus(unhandled="keep", retry={"max_retries": 3, "base_delay": 0.3}), []

    async def ask(event: Event) -> None:
        if event.attempts == 2:
            bus.subscribe("price.quote", quote)
        answers.append(await bus.request("price.quote", {"units": 4}, timeout=0.1 if event.attempts == 1 else LONG))
        if event.attempts == 2:
            raise TransientError("once more")

    bus.subscribe("ask", ask)
    await bus.start()
    ended = await bus.emit("ask")
    assert (ended.status, ended.attempts) == (EventStatus.COMPLETED, 3)
    assert answers == [{"price": 8}] * 2


@dataclass
class Quote:
    event_type: ClassVar[str] = "price.quote"
    event_result_type: ClassVar[type] = int
    units: int


async def test_a_request_of_an_event_class_returns_its_type_of_result(make_bus: MakeBus) -> None:
    bus = make_bus()

    async def price(event: Quote) -> int:
        return event.units

    bus.subscribe(Quote, price)

    assert await bus.request(Quote(3), timeout=LONG) == 3


async def test_the_first_value_of_several_handlers_is_the_answer(make_bus: MakeBus) -> None:
    bus = make_bus()
    for name, value in (("a", None), ("b", 1), ("c", 2)):

        @bus.on("price.quote", id=name)
        async def price(event: Event, value: int | None = value) -> int | None:
            return value

    assert await bus.request("price.quote", timeout=LONG) == 1


async def test_a_request_waits_for_retries_and_raises_the_error_of_a_dead_letter(make_bus: MakeBus) -> None:
    here, there = make_bus(serve=False), make_bus(retry={"max_retries": 2, "base_delay": 0.01})

    @there.on("price.quote")
    async def price(event: Event) -> int:
        if event.payload == "never":
            raise UnrecoverableError("no such product")
        if event.attempts < 3:
            raise TransientError("busy")
        return event.attempts

    await there.start()
    assert await here.request("price.quote", timeout=LONG) == 3
    with pytest.raises(EventFailed, match="no such product"):
        await here.request("price.quote", "never", timeout=LONG)


async def test_a_request_without_an_answer_says_where_its_event_is(make_bus: MakeBus) -> None:
    here = make_bus(serve=False)
    with pytest.raises(TimeoutError, match=r"no answer to price.quote .* within 0.1 s: it is PENDING, and no worker"):
        await here.request("price.quote", timeout=0.1)
    there = make_bus(retry={"max_retries": 3, "base_delay": 30})

    @there.on("slow")
    async def slow(event: Event) -> None:
        if event.payload == "fails":
            raise TransientError("busy")
        await asyncio.Event().wait()

    await there.start()
    with pytest.raises(TimeoutError, match="attempt 1 of it runs on worker"):
        await here.request("slow", timeout=2.0)
    with pytest.raises(TimeoutError, match="it waits for attempt 2, its last error: TransientError: busy"):
        await here.request("slow", "fails", timeout=2.0)
    assert await here.wait_until_idle(LONG)


async def test_no_worker_begins_a_request_after_its_time(make_bus: MakeBus, store: EventStore) -> None:
    here, there, called = make_bus(serve=False), make_bus(retry={"max_retries": 5, "base_delay": 0.8}), []

    @there.on("price.quote")
    async def price(event: Event) -> None:
        called.append(event.payload)
        raise TransientError("busy")

    with pytest.raises(TimeoutError):
        await here.request("price.quote", "never begun", timeout=0.05)
    # The time of an event begins when the store has it, which is later than its caller's.
    (request,) = (await store.find(EventQuery())).events
    await asyncio.sleep(max(request.created_ts + (request.expires_after or 0.0) - await store.now(), 0.0) + 0.01)
    await there.start()
    with pytest.raises(TimeoutError):
        await here.request("price.quote", "not begun again", timeout=0.3)
    with pytest.raises(TimeoutError):
        await here.request("price.quote", "goes on", timeout=0.3, expires=LONG)
    async with asyncio.timeout(LONG):
        while called.count("goes on") < 2:  # noqa: ASYNC110  (a handler of another node appends it)
            await asyncio.sleep(0.01)
    assert sorted(called) == ["goes on", "goes on", "not begun again"]
    ended = (await store.find(EventQuery(statuses=(EventStatus.CANCELLED,)))).events
    assert [event.payload for event in ended] == ["not begun again", "never begun"]


async def test_a_handler_may_request(make_bus: MakeBus) -> None:
    for options in ({}, {"mode": "bus-serial"}):
        bus = make_bus(name=str(options.get("mode", "parallel")), **options)
        bus.subscribe("price.quote", quote)

        @bus.on("order.placed")
        async def order(event: Event, ctx: Context, bus: Any = bus) -> Any:
            return await bus.request("price.quote", {"units": 1}, timeout=LONG)

        assert await bus.request("order.placed", timeout=LONG) == {"price": 2}


async def test_requests_that_wait_share_their_reads_of_the_store(
    make_bus: MakeBus, store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = make_bus(serve=False), make_bus(concurrency=200)
    all_begun, go_on, get_events = asyncio.Event(), asyncio.Event(), store.get_events
    begun: list[Event] = []
    reads: list[int] = []

    async def counted(refs: Sequence[Any]) -> Any:
        reads.append(len(refs))
        return await get_events(refs)

    @there.on("price.quote")
    async def price(event: Event) -> int:
        begun.append(event)
        if len(begun) == 100:
            all_begun.set()
        await go_on.wait()
        return int(event.payload)

    await there.start()
    waiting = [asyncio.create_task(here.request("price.quote", n, timeout=LONG)) for n in range(100)]
    await asyncio.wait_for(all_begun.wait(), LONG)
    monkeypatch.setattr(store, "get_events", counted)
    go_on.set()
    assert await asyncio.gather(*waiting) == list(range(100))
    assert len(reads) < 50


async def test_a_request_is_answered_although_every_hint_is_lost(
    make_bus: MakeBus, store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*args: Any, **options: Any) -> bool:
        raise StoreError("no hints today")

    monkeypatch.setattr(store, "wait_for_ends", fails)
    monkeypatch.setattr(store, "tell_ends", fails)
    here, there = make_bus(serve=False), make_bus()
    there.subscribe("price.quote", quote)
    await there.start()
    assert await here.request("price.quote", {"units": 4}, timeout=LONG) == {"price": 8}


async def test_a_shutdown_ends_the_requests_that_wait(make_bus: MakeBus) -> None:
    here = make_bus(serve=False)
    await here.start()
    waiting = asyncio.create_task(here.request("price.quote", timeout=LONG))
    assert await here.find("price.quote", future=LONG) is not None
    await here.shutdown()
    with pytest.raises(EventBusShutdownError):
        await waiting
    assert here._publisher.ends._watching is None
    with pytest.raises(EventBusShutdownError, match="request on bus"):
        await here.request("price.quote", timeout=LONG)


async def test_a_request_needs_a_time_limit(make_bus: MakeBus) -> None:
    bus = make_bus()
    for wrong in (0, -1, float("inf"), "2"):
        with pytest.raises(ConfigurationError, match="timeout="):
            await bus.request("price.quote", timeout=wrong)  # type: ignore[arg-type]


async def test_an_answer_stays_until_another_node_has_read_it(
    make_bus: MakeBus, store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bus that answers keeps no history. The other one reads late, as a busy process does."""
    look_at = EndReader.look_at

    async def late(reader: EndReader, event_ids: Sequence[str]) -> int:
        await asyncio.sleep(0.2)
        return await look_at(reader, event_ids)

    monkeypatch.setattr(EndReader, "look_at", late)
    here, there = make_bus(serve=False), make_bus(max_history_size=0)
    there.subscribe("price.quote", quote)
    await there.start()
    asked = [here.request("price.quote", {"units": n}, timeout=LONG) for n in range(20)]
    assert await asyncio.gather(*asked) == [{"price": 2 * n} for n in range(20)]
    assert await store.cleanup_excess_events("default", keep=0) > 0


async def test_a_request_whose_event_was_deleted_says_so(
    make_bus: MakeBus, store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_events = store.get_events

    async def deleted(refs: Sequence[Any]) -> Any:
        await store.cleanup_excess_events("default", keep=0)
        return await get_events(refs)

    monkeypatch.setattr(store, "get_events", deleted)
    here, there = make_bus(serve=False), make_bus()
    there.subscribe("price.quote", quote)
    await there.start()
    with pytest.raises(NoAnswer, match="was deleted before the answer was read: let the history keep more events"):
        await here.request("price.quote", {"units": 4}, timeout=LONG)


async def test_an_answer_comes_from_the_log_if_the_results_were_deleted(
    make_bus: MakeBus, store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ``EventManager`` on the same store deletes results of events that have ended."""
    read_results = store.read_results

    async def deleted(ids: Sequence[int]) -> Any:
        await store.cleanup_results()
        return await read_results(ids)

    monkeypatch.setattr(store, "read_results", deleted)
    here, there = make_bus(serve=False), make_bus()
    there.subscribe("price.quote", quote)
    await there.start()
    assert await here.request("price.quote", {"units": 4}, timeout=LONG) == {"price": 8}


def test_scripts_may_request_too() -> None:
    def price(event: Event) -> int:
        return 7

    with SyncEventBus("memory://") as bus:
        bus.subscribe("price.quote", price)
        assert bus.request("price.quote", timeout=LONG) == 7


async def test_a_repeated_request_gets_the_answer_of_the_first(make_bus: MakeBus) -> None:
    bus, calls = make_bus(), []

    @bus.on("price.quote")
    async def price(event: Event) -> int:
        calls.append(event)
        return 7

    for _ in range(2):
        assert await bus.request("price.quote", timeout=LONG, idempotency_key="once") == 7
    assert len(calls) == 1

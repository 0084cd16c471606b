"""``find``: the past from the shared history, the future from whichever node publishes it."""

import asyncio

import pytest
from tests.runtime.conftest import MakeBus
from tests.worker.support import until

from durabus import (
    Event,
    EventBus,
    EventBusShutdownError,
    EventPage,
    EventQuery,
    EventStatus,
    EventStore,
    NewEvent,
    StoreUnavailableError,
)

SOON = 5.0


async def stored(bus: EventBus, kind: str, payload: object = None, **options: object) -> Event:
    return await bus.emit(kind, payload, **options).stored()  # type: ignore[arg-type]


async def test_the_newest_event_is_found_whatever_its_status(make_bus: MakeBus) -> None:
    bus = await make_bus().start()
    await stored(bus, "user.created", {"n": 1})
    newest = await stored(bus, "user.created", {"n": 2})
    await stored(bus, "user.renamed", {"n": 3})
    assert await bus.find("user.created") == newest
    assert newest.status is EventStatus.PENDING
    assert await bus.find("order.*") is None


async def test_conditions_and_fields_choose(make_bus: MakeBus) -> None:
    bus = await make_bus().start()
    first = await stored(bus, "user.created", {"n": 1, "name": "Ada"})
    await stored(bus, "user.created", {"n": 2, "name": "Bob"})
    await stored(bus, "user.created", ["no object"])
    assert await bus.find("user.*", name="Ada") == first
    assert await bus.find("user.*", where=lambda event: event.id == first.id) == first
    assert await bus.find("user.*", name="Ada", n=2) is None
    assert await bus.find("user.*", missing=None) is None


async def test_more_events_than_a_page_are_searched(make_bus: MakeBus) -> None:
    bus = await make_bus().start()
    oldest = await stored(bus, "user.created", {"n": 0})
    for n in range(1, 251):
        bus.emit("user.created", {"n": n})
    await stored(bus, "user.created", {"n": 251})
    assert await bus.find("user.created", n=0) == oldest


async def test_the_past_may_be_short(make_bus: MakeBus) -> None:
    bus = await make_bus().start()
    event = await stored(bus, "user.created")
    assert await bus.find("user.created", past=60) == event
    assert await bus.find("user.created", past=0) is None
    assert await bus.find("user.created", past=False) is None


async def test_another_bus_is_another_history(make_bus: MakeBus) -> None:
    one, other = await make_bus(name="one").start(), await make_bus(name="other").start()
    await stored(one, "user.created")
    assert await other.find("user.created") is None


async def test_a_child_is_found_at_any_depth(make_bus: MakeBus) -> None:
    bus = await make_bus().start()
    parent = await stored(bus, "parent")
    child = await stored(bus, "child", parent_id=parent.event_id)
    grandchild = await stored(bus, "grandchild", parent_id=child.event_id)
    await stored(bus, "grandchild")
    assert await bus.find("grandchild", child_of=parent) == grandchild
    assert await bus.find("child", child_of=parent.event_id) == child
    assert await bus.find("parent", child_of=child) is None


@pytest.mark.parametrize("publisher", ["this node", "another node"])
async def test_the_future_resolves_by_the_publish_of_any_node(make_bus: MakeBus, publisher: str) -> None:
    bus, other = await make_bus().start(), await make_bus().start()
    await stored(other, "user.created", {"n": 0})
    search = asyncio.create_task(bus.find("user.created", past=False, future=SOON))
    await until(lambda: bool(bus._finder))
    await stored(other, "user.renamed")
    event = await stored(bus if publisher == "this node" else other, "user.created", {"n": 1})
    assert await search == event
    assert not bus._finder


async def test_the_past_goes_before_the_future(make_bus: MakeBus) -> None:
    bus = await make_bus().start()
    event = await stored(bus, "user.created")
    assert await bus.find("user.created", future=SOON) == event


async def test_what_was_published_before_the_call_is_not_the_future(make_bus: MakeBus) -> None:
    """This also holds if the reader of another search has not yet reached the event."""
    bus, other = await make_bus().start(), await make_bus().start()
    waits = asyncio.create_task(bus.find("never", past=False, future=SOON))
    await until(lambda: bool(bus._finder))
    await stored(other, "user.created")
    assert await bus.find("user.created", past=False, future=0.2) is None
    waits.cancel()


async def test_many_searches_wait_side_by_side_and_each_gets_its_own(make_bus: MakeBus) -> None:
    bus, other = await make_bus().start(), await make_bus().start()
    searches = [asyncio.create_task(bus.find("job", past=False, future=SOON, n=n)) for n in range(20)]
    await until(lambda: len(bus._finder._waiting) == 20)
    events = [await stored(other, "job", {"n": n}) for n in range(20)]
    assert await asyncio.gather(*searches) == events


async def test_a_search_ends_with_its_time_and_with_the_bus(make_bus: MakeBus) -> None:
    bus = await make_bus().start()
    assert await bus.find("user.created", future=0.01) is None
    assert not bus._finder
    search = asyncio.create_task(bus.find("user.created", future=True))
    await until(lambda: bool(bus._finder))
    await bus.shutdown()
    assert await search is None
    with pytest.raises(EventBusShutdownError):
        await bus.find("user.created")


@pytest.mark.parametrize("error", [ZeroDivisionError, TimeoutError])
async def test_an_error_in_a_search_condition_is_raised_to_its_caller(
    make_bus: MakeBus, error: type[Exception]
) -> None:
    def fail(_event: Event) -> bool:
        raise error

    bus = await make_bus().start()
    search = asyncio.create_task(bus.find("job", where=fail, past=False, future=SOON))
    await until(lambda: bool(bus._finder))
    await stored(bus, "job")
    with pytest.raises(error):
        await search
    with pytest.raises(error):
        await bus.find("job", where=fail)


async def test_the_future_is_seen_before_handlers_are_done(make_bus: MakeBus, store: EventStore) -> None:
    bus, release = make_bus(), asyncio.Event()

    async def handler(event: Event) -> None:
        await release.wait()

    bus.subscribe("job", handler)
    await bus.start()
    search = asyncio.create_task(bus.find("job", past=False, future=SOON))
    await until(lambda: bool(bus._finder))
    handle = bus.emit("job")
    found = await search
    assert found is not None
    assert found.event_id == handle.event_id
    assert not handle.done
    release.set()
    await handle


async def test_without_a_history_the_future_still_works(make_bus: MakeBus) -> None:
    bus = make_bus(max_history_size=0)
    bus.subscribe("job", lambda event: None)
    await bus.start()
    await bus.publish("job")
    search = asyncio.create_task(bus.find("job", past=False, future=SOON))
    await until(lambda: bool(bus._finder))
    handle = bus.emit("job")
    found = await search
    assert found is not None
    assert found.event_id == handle.event_id


async def test_what_was_emitted_a_moment_ago_is_found(make_bus: MakeBus) -> None:
    bus = await make_bus().start()
    for n in range(50):
        handle = bus.emit("user.created", {"n": n})
        found = await bus.find("user.created", n=n)
        assert found is not None, f"event {n} was missed"
        assert (found.event_id, found.id) == (handle.event_id, handle.id)


async def test_tasks_that_emit_what_they_do_not_find_emit_it_once(make_bus: MakeBus) -> None:
    bus = await make_bus().start()

    async def find_or_emit(n: int) -> str:
        found = await bus.find("user.created", n=n)
        return found.event_id if found is not None else bus.emit("user.created", {"n": n}).event_id

    for n in range(10):
        assert len(set(await asyncio.gather(*(find_or_emit(n) for _ in range(10))))) == 1


async def test_an_event_that_is_being_stored_is_found_when_it_is_and_one_that_is_refused_is_not(
    make_bus: MakeBus, store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, entered, go_on = await make_bus().start(), asyncio.Event(), asyncio.Event()
    add_events = store.add_events

    async def slow(events: list[NewEvent]) -> list[Event]:
        entered.set()
        await go_on.wait()
        if events[0].type == "user.refused":
            raise StoreUnavailableError("the disk is full")
        return await add_events(events)

    monkeypatch.setattr(store, "add_events", slow)
    for kind, is_found in (("user.created", True), ("user.refused", False)):
        entered.clear()
        go_on.clear()
        handle = bus.emit(kind)
        await entered.wait()
        search = asyncio.create_task(bus.find(kind))
        await asyncio.sleep(0.02)
        assert not search.done()
        go_on.set()
        found = await search
        assert (found is not None and found.event_id == handle.event_id) is is_found


async def test_what_is_emitted_while_the_store_is_asked_is_found(
    make_bus: MakeBus, store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, find = await make_bus().start(), store.find

    async def emitted_meanwhile(query: EventQuery) -> EventPage:
        page = await find(query)
        monkeypatch.undo()
        await bus.emit("user.created").stored()
        return page

    monkeypatch.setattr(store, "find", emitted_meanwhile)
    assert await bus.find("user.created") is not None

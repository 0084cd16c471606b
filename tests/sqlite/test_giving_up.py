"""A search ends when its caller gives up, and the calls behind it get their turn."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from durabus.model.event import Event, new_event
from durabus.model.query import EventQuery
from durabus.stores.sqlite import events
from durabus.stores.sqlite.connection import Transaction
from durabus.stores.sqlite.store import SQLiteStore

ENDLESS = "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers) SELECT max(n) FROM numbers"


@pytest.fixture
def searching(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event that is set once a search for the type ``endless`` runs, which never ends by itself."""
    begun, find = threading.Event(), events.find

    def find_for_ever(tx: Transaction, query: EventQuery) -> Any:
        if query.type == "endless":
            begun.set()
            tx.all(ENDLESS)
        return find(tx, query)

    monkeypatch.setattr("durabus.stores.sqlite.events.find", find_for_ever)
    return begun


async def given_up(search: Callable[[], Any], searching: threading.Event) -> None:
    task = asyncio.create_task(search())
    await asyncio.to_thread(searching.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    searching.clear()


async def test_a_search_that_was_given_up_does_not_delay_other_calls(
    store: SQLiteStore, searching: threading.Event
) -> None:
    (event,) = await store.add_events([new_event("order.placed")])
    for _ in range(3):
        await given_up(lambda: store.find(EventQuery(type="endless")), searching)
        assert await store.get_event(event.id) == event
    assert (await store.find(EventQuery(type="order.placed"))).events == [event]


async def test_a_call_that_waits_its_turn_is_given_up_without_harm(
    store: SQLiteStore, searching: threading.Event
) -> None:
    (event,) = await store.add_events([new_event("order.placed")])
    first = asyncio.create_task(store.find(EventQuery(type="endless")))
    await asyncio.to_thread(searching.wait)
    second, third = (asyncio.create_task(store.get_event(event.id)) for _ in range(2))
    await asyncio.sleep(0)
    second.cancel()
    assert not first.done()
    first.cancel()
    assert await third == event
    assert (await asyncio.gather(first, second, return_exceptions=True))[1].__class__ is asyncio.CancelledError


async def test_a_search_that_finds_little_lets_others_read_meanwhile(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "LOOKED_AT", 10)
    first, *_ = await store.add_events([new_event("job", tags=["rare"]), *(new_event("job") for _ in range(99))])
    order: list[str] = []

    async def search() -> list[Event]:
        page = await store.find(EventQuery(tags=("rare",), limit=1))
        order.append("found")
        return page.events

    async def look() -> None:
        assert await store.get_event(first.id) == first
        order.append("looked")

    async with asyncio.TaskGroup() as group:
        searching = group.create_task(search())
        group.create_task(look())
    assert searching.result() == [first]
    assert order == ["looked", "found"]

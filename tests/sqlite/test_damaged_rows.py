"""Rows that an administrator damaged by hand: the event shows it, other events go on."""

import asyncio
import sqlite3

import pytest

from durabus import EventBus, EventStatus
from durabus.model.event import Event, new_event
from durabus.model.query import EventQuery
from durabus.stores.sql.rows import strings_of
from durabus.stores.sqlite.store import SQLiteStore


async def all_ended(store: SQLiteStore) -> None:
    async with asyncio.timeout(30):
        while (counts := await store.counts()).pending + counts.processing:  # noqa: ASYNC110  (a store has no bell)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("column", ["", "oops", "{}", "7", "null", "[1]", '["a"', "\ufffd[]"])
def test_a_damaged_list_is_shown_as_one_readable_text(column: str) -> None:
    assert strings_of(column) == (f"undecodable: {column}",)


def test_a_list_is_itself() -> None:
    assert strings_of(None) == ()
    assert strings_of('["a","b"]') == ("a", "b")


@pytest.mark.parametrize("damaged", [b"oops", b"[1]", b"\xff[]"])
@pytest.mark.parametrize("column", ["tags", "errors"])
async def test_damaged_tags_and_errors_do_not_stop_other_events(
    store: SQLiteStore, admin: sqlite3.Connection, column: str, damaged: bytes
) -> None:
    await store.add_events([new_event("order.placed", {"order": n}, tags=["eu"]) for n in (1, 2)])
    admin.execute(f"UPDATE events SET {column} = CAST(? AS TEXT) WHERE id = 1", (damaged,))
    listed = (await store.find(EventQuery())).events
    assert [event.id for event in listed] == [2, 1]
    assert getattr(listed[1], column)[0].startswith("undecodable: ")
    seen: list[Event] = []
    async with EventBus(store) as bus:
        bus.subscribe("order.*", seen.append)
        await all_ended(store)
    seen.sort(key=lambda event: event.id)  # plain functions run in threads, side by side
    assert [event.payload["order"] for event in seen] == [1, 2]
    assert getattr(seen[0], column)[0].startswith("undecodable: ")
    done = (await store.find(EventQuery())).events
    assert [event.status for event in done] == [EventStatus.COMPLETED] * 2
    assert (await store.read_event_log(1))[-1].status is EventStatus.COMPLETED


async def test_a_payload_that_is_no_utf_8_becomes_a_dead_letter(store: SQLiteStore, admin: sqlite3.Connection) -> None:
    await store.add_events([new_event("order.placed", {"name": name}) for name in ("Zoe", "Zoë", "Ada")])
    # the bytes of {"name":"Zo?"} with one that is Latin-1: with the mark inside, it would still be JSON
    admin.execute("UPDATE events SET payload = CAST(x'7b226e616d65223a225a6feb227d' AS TEXT) WHERE id = 2")
    names: list[str] = []
    async with EventBus(store) as bus:
        bus.subscribe("order.*", lambda event: names.append(event.payload["name"]))
        await all_ended(store)
        await bus.publish("order.placed", {"name": "Eve"})
        await all_ended(store)
    assert sorted(names) == ["Ada", "Eve", "Zoe"]
    (dead,) = (await store.list_dead_letters()).events
    assert dead.id == 2
    assert "PayloadDecodeError" in dead.errors[-1]
    assert dead.payload_json == '\ufffd{"name":"Zo\ufffd"}'

"""Seed 003: the SQLite file behind the bus."""

import asyncio
import json
import sqlite3
from contextlib import closing

from tests.seeds.support import Recorder, rows, status_of

from durabus import EventBus, EventQueue, EventStatus


async def test_the_tables_are_made_on_first_connection(sqlite_url: str) -> None:
    async with EventBus(sqlite_url):
        names = {name for (name,) in rows(sqlite_url, "select name from sqlite_master")}
    assert {"events", "event_log", "dead_letters", "event_results", "subscriptions"} <= names


async def test_the_file_is_in_wal_mode(sqlite_url: str) -> None:
    async with EventBus(sqlite_url):
        assert rows(sqlite_url, "pragma journal_mode") == [("wal",)]


async def test_payload_and_metadata_are_json_text(sqlite_url: str) -> None:
    async with EventBus(sqlite_url) as bus:
        await bus.publish("user.created", {"id": 1, "name": "Ada"}, metadata={"source": "web"})
        ((payload, metadata),) = rows(sqlite_url, "select payload, metadata from events")
    assert json.loads(payload) == {"id": 1, "name": "Ada"}
    assert json.loads(metadata) == {"source": "web"}


async def test_events_are_found_by_status_through_an_index(sqlite_url: str) -> None:
    async with EventBus(sqlite_url):
        due = "select id from events where bus = 'b' and ready = 1 order by priority desc, id limit 1"
        stuck = "select id from events where bus = 'b' and status = 'PROCESSING' and lease_expires_at < 1"
        plans = [
            " ".join(str(row[-1]) for row in rows(sqlite_url, f"explain query plan {query}")) for query in (due, stuck)
        ]
    assert "events_ready" in plans[0]
    assert "events_leased" in plans[1]
    assert "TEMP B-TREE" not in plans[0]


async def test_readers_are_not_held_up_by_a_writer(sqlite_url: str) -> None:
    async with EventBus(sqlite_url) as bus:
        event_id = await bus.publish("user.created")
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)) as writer:
            writer.execute("begin immediate")
            async with asyncio.timeout(20):
                assert await status_of(bus.store, event_id) is EventStatus.PENDING
            writer.execute("rollback")


async def test_a_write_waits_while_another_program_holds_the_lock(sqlite_url: str) -> None:
    async with EventBus(sqlite_url) as bus:
        bus.subscribe("user.*", Recorder())
        await bus.publish("user.created")
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)) as writer:
            writer.execute("begin immediate")
            publishing = asyncio.create_task(bus.publish("user.created"))
            await asyncio.sleep(0.2)
            assert not publishing.done()
            writer.execute("rollback")
        event_id = await publishing
        assert await status_of(bus.store, event_id) is EventStatus.COMPLETED


async def test_a_status_changes_in_one_step_with_its_log(sqlite_url: str) -> None:
    async with EventBus(sqlite_url) as bus:
        queue = EventQueue(bus.store)
        event = await queue.publish("user.created")
        await queue.poll()
        await queue.finalize(event.id)
    logged = rows(sqlite_url, "select action from event_log where id = ? order by position", event.id)
    assert logged == [("PUBLISHED",), ("PICKED",), ("COMPLETED",)]

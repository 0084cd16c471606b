"""Publishing and settling inside the caller's own transaction."""

import asyncio
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from durabus.errors import ConfigurationError, LeaseLost, StoreError, StoreUnavailableError
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.settlement import Complete, Fail, Settlement
from durabus.model.statuses import EventStatus
from durabus.queue.event_queue import EventQueue
from durabus.stores.sqlite import events
from durabus.stores.sqlite.store import SQLiteStore


@pytest.fixture
def mine(store: SQLiteStore, file: Path) -> Iterator[sqlite3.Connection]:
    """A connection as sqlite3 gives it, with a table of the caller's."""
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    yield connection
    connection.close()


async def claim(store: SQLiteStore, limit: int = 10) -> list[int]:
    request = ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=limit)
    return [claim.event.id for claim in await store.claim_next_events(request)]


async def test_event_and_order_are_one_commit(store: SQLiteStore, mine: sqlite3.Connection) -> None:
    mine.execute("INSERT INTO orders VALUES (7)")
    events = await store.add_events([new_event("order.placed", tags=["eu"])], connection=mine)
    assert await store.get_event(events[0].id) is None
    mine.commit()
    assert await store.get_event(events[0].event_id) == events[0]
    assert await claim(store) == [events[0].id]


async def test_the_first_call_may_begin_the_transaction(store: SQLiteStore, mine: sqlite3.Connection) -> None:
    await store.add_events([new_event("order.placed")], connection=mine)
    assert mine.in_transaction
    mine.rollback()
    assert (await store.counts()).pending == 0
    assert (await store.add_events([new_event("order.placed")]))[0].id == 1


async def test_a_rollback_takes_the_events_back(store: SQLiteStore, mine: sqlite3.Connection) -> None:
    event = new_event("order.placed", idempotency_key="7", tags=["eu"])
    mine.execute("INSERT INTO orders VALUES (7)")
    await store.add_events([event], connection=mine)
    mine.rollback()
    assert (await store.counts()).pending == 0
    assert await store.log_head() == ""
    assert len(await store.add_events([event])) == 1


async def test_settling_follows_the_callers_transaction(store: SQLiteStore, mine: sqlite3.Connection) -> None:
    await store.add_events([new_event("order.placed"), new_event("order.paid")])
    request = ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=2)
    one, two = await store.claim_next_events(request)
    settlements: list[Settlement] = [Complete(one.ref), Fail(two.ref, "boom", None)]
    mine.execute("INSERT INTO orders VALUES (7)")
    await store.settle_events(settlements, connection=mine)
    mine.rollback()
    assert (await store.counts()).processing == 2
    mine.execute("INSERT INTO orders VALUES (7)")
    await store.settle_events(settlements, connection=mine)
    mine.commit()
    statuses = [event.status for id_ in (one.event.id, two.event.id) if (event := await store.get_event(id_))]
    assert statuses == [EventStatus.COMPLETED, EventStatus.FAILED]


async def test_finalize_and_effect_are_one_commit(store: SQLiteStore, mine: sqlite3.Connection) -> None:
    queue = EventQueue(store)
    await queue.publish("order.placed")
    event = await queue.poll()
    assert event is not None
    mine.execute("INSERT INTO orders VALUES (7)")
    await queue.finalize(event.id, connection=mine)
    assert (await store.counts()).processing == 1
    mine.rollback()
    assert (await store.counts()).processing == 1
    mine.execute("INSERT INTO orders VALUES (7)")
    await queue.finalize(event.id, connection=mine)
    mine.commit()
    assert (await store.counts()).completed == 1


@pytest.mark.parametrize("ended", [True, False])
async def test_an_effect_under_a_claim_that_was_taken_over_is_refused(
    store: SQLiteStore, mine: sqlite3.Connection, *, ended: bool
) -> None:
    """This also holds if the event has ended in the meantime: another worker's effect is there already."""
    slow, quick = EventQueue(store), EventQueue(store)
    await slow.publish("order.placed")
    event = await slow.poll()
    assert event is not None
    await store.reset_event(event.id, reason="stuck")
    assert await quick.poll() is not None
    if ended:
        await quick.finalize(event.id)
    mine.execute("INSERT INTO orders VALUES (7)")
    for _ in range(2):
        with pytest.raises(LeaseLost):
            await slow.finalize(event.id, connection=mine)
    mine.rollback()
    counts = await store.counts()
    assert (counts.completed, counts.processing) == ((1, 0) if ended else (0, 1))


async def test_known_events_are_returned_on_the_callers_connection(
    store: SQLiteStore, mine: sqlite3.Connection
) -> None:
    mine.row_factory = sqlite3.Row
    mine.text_factory = bytes
    event = new_event("order.placed", {"id": 7}, idempotency_key="7")
    first = await store.add_events([event])
    again = await store.add_events([event, new_event("order.paid")], connection=mine)
    assert again[0] == first[0]
    assert again[1].id == 2
    assert mine.text_factory is bytes
    mine.commit()


async def test_an_error_leaves_the_callers_transaction_as_it_was(store: SQLiteStore, mine: sqlite3.Connection) -> None:
    mine.execute("INSERT INTO orders VALUES (7)")
    surrogate = new_event("order.placed")
    with pytest.raises(UnicodeEncodeError):
        await store.add_events([surrogate, replace(surrogate, payload_json='"\ud800"')], connection=mine)
    mine.commit()
    assert mine.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    assert (await store.counts()).pending == 0


async def test_a_sleeping_worker_wakes_after_the_callers_commit(store: SQLiteStore, mine: sqlite3.Connection) -> None:
    waiting = asyncio.create_task(store.wait_for_work("default", timeout=10.0))
    await store.add_events([new_event("order.placed")], connection=mine)
    assert not waiting.done()
    mine.commit()
    assert await waiting


async def test_the_callers_commits_do_not_checkpoint(store: SQLiteStore, mine: sqlite3.Connection) -> None:
    await store.add_events([new_event("order.placed")], connection=mine)
    mine.commit()
    assert mine.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)


async def test_what_is_no_connection_to_this_file_is_refused(store: SQLiteStore, tmp_path: Path) -> None:
    event = new_event("order.placed")
    with pytest.raises(ConfigurationError, match="must be a connection to it from sqlite3 or aiosqlite"):
        await store.add_events([event], connection="bus.db")
    memory = sqlite3.connect(":memory:")
    with pytest.raises(ConfigurationError, match="a database in memory"):
        await store.add_events([event], connection=memory)
    memory.close()
    other = sqlite3.connect(tmp_path / "other.db")
    with pytest.raises(ConfigurationError, match=r"other\.db.*connect to that one"):
        await store.settle_events([], connection=other)
    other.close()


async def test_a_connection_without_a_transaction_is_refused(store: SQLiteStore, admin: sqlite3.Connection) -> None:
    with pytest.raises(StoreError, match="begin a transaction first"):
        await store.add_events([new_event("order.placed")], connection=admin)
    admin.execute("BEGIN")
    await store.add_events([new_event("order.placed")], connection=admin)
    admin.execute("COMMIT")
    assert (await store.counts()).pending == 1


async def test_a_claim_does_not_wait_for_the_callers_commit(store: SQLiteStore, mine: sqlite3.Connection) -> None:
    request = ClaimRequest(bus="default", worker_id="w", token=new_token())
    with pytest.raises(ConfigurationError, match="claim in a call of its own"):
        await store.settle_events([], then_claim=request, connection=mine)


async def test_a_transaction_that_has_read_too_early_gets_an_error_that_says_how_to_begin(
    store: SQLiteStore, admin: sqlite3.Connection
) -> None:
    admin.execute("BEGIN")
    admin.execute("SELECT count(*) FROM events").fetchone()
    await store.add_events([new_event("order.placed")])
    with pytest.raises(StoreUnavailableError, match=r"has read, and another one has written since.*BEGIN IMMEDIATE"):
        await store.add_events([new_event("order.paid")], connection=admin)
    admin.execute("ROLLBACK")
    admin.execute("BEGIN IMMEDIATE")
    admin.execute("SELECT count(*) FROM events").fetchone()
    await store.add_events([new_event("order.paid")], connection=admin)
    admin.execute("COMMIT")
    assert (await store.counts()).pending == 2


async def test_a_connection_that_waits_in_vain_gets_an_error_about_its_own_timeout(
    store: SQLiteStore, file: Path
) -> None:
    busy, hasty = sqlite3.connect(file, isolation_level=None), sqlite3.connect(file, timeout=0)
    busy.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match=r"longer than this one waits.*sqlite3\.connect\(timeout=30\)"):
        await store.add_events([new_event("order.placed")], connection=hasty)
    busy.execute("ROLLBACK")
    await store.add_events([new_event("order.placed")], connection=hasty)
    hasty.commit()
    assert (await store.counts()).pending == 1
    busy.close()
    hasty.close()


async def test_a_connection_of_another_thread_is_refused(store: SQLiteStore, file: Path) -> None:
    made = await asyncio.to_thread(sqlite3.connect, file)
    with pytest.raises(ConfigurationError, match=r"made in the thread that awaits.*check_same_thread=False"):
        await store.add_events([new_event("order.placed")], connection=made)
    with pytest.raises(ConfigurationError, match="check_same_thread=False"):
        await store.settle_events([], connection=made)
    shared = await asyncio.to_thread(lambda: sqlite3.connect(file, check_same_thread=False))
    await store.add_events([new_event("order.placed")], connection=shared)
    shared.commit()
    shared.close()
    assert (await store.counts()).pending == 1


async def test_a_closed_connection_is_refused(store: SQLiteStore, file: Path) -> None:
    closed = sqlite3.connect(file)
    closed.close()
    with pytest.raises(ConfigurationError, match="closed database"):
        await store.add_events([new_event("order.placed")], connection=closed)


@pytest.mark.parametrize("way", ["mode=ro", "query_only"])
async def test_a_connection_that_may_only_read_is_refused(store: SQLiteStore, file: Path, way: str) -> None:
    reader = sqlite3.connect(f"file:{file}?mode={'ro' if way == 'mode=ro' else 'rw'}", uri=True)
    reader.execute(f"PRAGMA query_only = {int(way == 'query_only')}")
    with pytest.raises(ConfigurationError, match=r"may only read.*connect without mode=ro and PRAGMA query_only"):
        await store.add_events([new_event("order.placed")], connection=reader)
    reader.close()


async def test_another_file_with_the_same_tables_is_refused(store: SQLiteStore, tmp_path: Path) -> None:
    twin = SQLiteStore.from_url(f"sqlite:///{tmp_path}/twin.db")
    await twin.open()
    connection = sqlite3.connect(tmp_path / "twin.db")
    with pytest.raises(ConfigurationError, match=r"connection is to .*twin\.db, the store is .*bus\.db"):
        await store.add_events([new_event("order.placed")], connection=connection)
    assert not connection.in_transaction
    connection.execute("ATTACH ? AS other", (str(store._path),))
    with pytest.raises(ConfigurationError, match=r"twin\.db"):
        await store.add_events([new_event("order.placed")], connection=connection)
    connection.close()
    assert (await twin.counts()).pending == (await store.counts()).pending == 0
    await twin.close()


@pytest.mark.parametrize("level", ["DEFERRED", "IMMEDIATE", "EXCLUSIVE"])
async def test_every_isolation_level_that_begins_by_itself_works(
    store: SQLiteStore, file: Path, level: Literal["DEFERRED", "IMMEDIATE", "EXCLUSIVE"]
) -> None:
    connection = sqlite3.connect(file, isolation_level=level)
    with connection:
        await store.add_events([new_event("order.placed")], connection=connection)
        assert connection.in_transaction
    assert (await store.counts()).pending == 1
    connection.close()


class Modern(sqlite3.Connection):
    """A connection with the ``autocommit`` of Python 3.12, for older versions."""

    autocommit = -1


@pytest.mark.parametrize("autocommit", [True, False])
async def test_autocommit_of_newer_pythons(store: SQLiteStore, file: Path, autocommit: bool) -> None:
    if sys.version_info >= (3, 12):
        connection = sqlite3.connect(file, autocommit=autocommit)
    else:
        connection = sqlite3.connect(file, factory=Modern, isolation_level=None)
        connection.autocommit = autocommit
        if not autocommit:
            connection.execute("BEGIN")  # it always has a transaction
    if autocommit:
        with pytest.raises(StoreError, match="begin a transaction first"):
            await store.add_events([new_event("order.placed")], connection=connection)
        connection.execute("BEGIN IMMEDIATE")
    await store.add_events([new_event("order.placed")], connection=connection)
    assert (await store.counts()).pending == 0
    connection.execute("COMMIT")
    assert (await store.counts()).pending == 1
    connection.close()


async def test_the_error_that_made_sqlite_roll_back_is_raised(
    store: SQLiteStore, admin: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk error may end the whole transaction; the savepoint is gone with it."""

    def broken(*_: object) -> None:
        admin.execute("ROLLBACK")
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(events, "add_events", broken)
    admin.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match="disk I/O error"):
        await store.add_events([new_event("order.placed")], connection=admin)
    assert not admin.in_transaction

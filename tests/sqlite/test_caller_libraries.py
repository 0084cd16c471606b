"""Publishing and settling inside the caller's own transaction, whichever library the connection comes from."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests import caller_libraries as libraries
from tests.caller_libraries import ORDER, Mine, django_database, later

from durabus import EventBus, EventQueue, SyncEventBus
from durabus.errors import ConfigurationError, LeaseLost, StoreError, StoreUnavailableError
from durabus.model.event import new_event
from durabus.stores.sqlite import connection as connections
from durabus.stores.sqlite.store import SQLiteStore

aiosqlite: Any = import_module("aiosqlite")


@asynccontextmanager
async def standard_library(file: Path) -> AsyncIterator[Mine]:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(ORDER)
        yield Mine(connection, later(connection.commit), later(connection.rollback))


@asynccontextmanager
async def plain_aiosqlite(file: Path) -> AsyncIterator[Mine]:
    async with aiosqlite.connect(file) as connection:
        await connection.execute(ORDER)
        yield Mine(connection, connection.commit, connection.rollback)


def sqlalchemy_connection(file: Path) -> Any:
    return libraries.sqlalchemy_connection(f"sqlite:///{file}")


def sqlalchemy_session(file: Path) -> Any:
    return libraries.sqlalchemy_session(f"sqlite:///{file}")


def sqlalchemy_scoped_session(file: Path) -> Any:
    return libraries.sqlalchemy_scoped_session(f"sqlite:///{file}")


def sqlalchemy_async_connection(file: Path) -> Any:
    return libraries.sqlalchemy_async_connection(f"sqlite+aiosqlite:///{file}")


def sqlalchemy_async_session(file: Path) -> Any:
    return libraries.sqlalchemy_async_session(f"sqlite+aiosqlite:///{file}")


def sqlalchemy_async_scoped_session(file: Path) -> Any:
    return libraries.sqlalchemy_async_scoped_session(f"sqlite+aiosqlite:///{file}")


def django_without_autocommit(file: Path) -> Any:
    return libraries.django_without_autocommit(django_connection(file))


def django_connection(file: Path) -> Any:
    return django_database(f"sqlite {file}", ENGINE="django.db.backends.sqlite3", NAME=str(file))


THAT_BLOCK = [standard_library, sqlalchemy_connection, sqlalchemy_session, sqlalchemy_scoped_session]
LIBRARIES = [
    *THAT_BLOCK,
    plain_aiosqlite,
    sqlalchemy_async_connection,
    sqlalchemy_async_session,
    sqlalchemy_async_scoped_session,
    django_without_autocommit,
]


def each(accepted: list[Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("library", accepted, ids=lambda library: library.__name__)


@pytest.fixture(autouse=True)
def orders(store: SQLiteStore, file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")


def count_orders(file: Path) -> int:
    with closing(sqlite3.connect(file)) as connection:
        return int(connection.execute("SELECT count(*) FROM orders").fetchone()[0])


@each(LIBRARIES)
async def test_event_and_order_are_one_commit(store: SQLiteStore, file: Path, library: Any) -> None:
    new = [new_event("order.placed", {"id": 7}, tags=["eu"], priority=3, idempotency_key="k"), new_event("order.paid")]
    async with library(file) as mine:
        events = await store.add_events(new, connection=mine.connection)
        assert await store.get_event(events[0].event_id) is None
        await mine.rollback()
        assert (await store.counts()).pending == 0
    async with library(file) as mine:
        events = await store.add_events(new, connection=mine.connection)
        await mine.commit()
    assert await store.get_events([event.id for event in events]) == events
    assert count_orders(file) == 1


@each(LIBRARIES)
async def test_finalize_and_effect_are_one_commit(store: SQLiteStore, file: Path, library: Any) -> None:
    queue, other = EventQueue(store), EventQueue(store)
    await queue.publish("order.placed")
    event = await queue.poll()
    assert event is not None
    async with library(file) as mine:
        await queue.finalize(event.id, connection=mine.connection)
        assert (await store.counts()).processing == 1
        await mine.rollback()
    await store.reset_event(event.id, reason="stuck")
    assert await other.poll() is not None
    async with library(file) as mine:
        with pytest.raises(LeaseLost):
            await queue.finalize(event.id, connection=mine.connection)
        await mine.rollback()
    async with library(file) as mine:
        await other.finalize(event.id, connection=mine.connection)
        await mine.commit()
    assert count_orders(file) == 1
    assert (await store.counts()).completed == 1


@each(LIBRARIES)
async def test_a_bus_that_was_not_started_publishes_without_waiting_for_the_transaction(
    store: SQLiteStore, file: Path, library: Any
) -> None:
    """A bus would have to write to announce its handlers, which the caller's transaction does not allow."""
    bus = EventBus(f"sqlite:///{file}")
    bus.subscribe("order.*", lambda _: None)
    async with library(file) as mine:
        event_id = await bus.publish("order.placed", connection=mine.connection)
        await mine.commit()
    assert await store.get_event(event_id) is not None
    await bus.shutdown()


@each(THAT_BLOCK)
async def test_a_bus_for_scripts_publishes_in_the_thread_of_the_connection(
    store: SQLiteStore, file: Path, library: Any
) -> None:
    with SyncEventBus(f"sqlite:///{file}") as bus:
        async with library(file) as mine:
            event_id = bus.publish("order.placed", connection=mine.connection)
            assert await store.get_event(event_id) is None
            await mine.commit()
    assert await store.get_event(event_id) is not None


async def test_a_bus_for_scripts_refuses_a_connection_that_needs_an_event_loop(store: SQLiteStore, file: Path) -> None:
    with SyncEventBus(f"sqlite:///{file}") as bus:
        async with plain_aiosqlite(file) as mine:
            with pytest.raises(ConfigurationError, match="an async connection needs an event loop: use EventBus"):
                bus.publish("order.placed", connection=mine.connection)
            await mine.rollback()
    assert (await store.counts()).pending == 0


async def test_django_s_own_atomic_block_takes_an_event_along(store: SQLiteStore, file: Path) -> None:
    def in_a_thread_without_an_event_loop() -> None:
        from django.db import transaction  # type: ignore[import-untyped]

        wrapper = django_connection(file)
        with SyncEventBus(f"sqlite:///{file}") as bus:
            for kept in (False, True):
                with transaction.atomic(using=wrapper.alias):
                    bus.publish("order.placed", connection=wrapper)
                    transaction.set_rollback(not kept, using=wrapper.alias)
            with pytest.raises(StoreError, match=r"begin a transaction first.*pass transaction.get_connection"):
                bus.publish("order.placed", connection=wrapper)
        wrapper.close()

    await asyncio.to_thread(in_a_thread_without_an_event_loop)
    assert (await store.counts()).pending == 1


@pytest.mark.parametrize("wrong", ["bus.db", 7, object()])
async def test_what_is_no_connection_is_refused(store: SQLiteStore, wrong: object) -> None:
    with pytest.raises(ConfigurationError, match=r"must be a connection to it from sqlite3 or aiosqlite.*Django"):
        await store.add_events([new_event("order.placed")], connection=wrong)


@each([sqlalchemy_session, sqlalchemy_async_session, plain_aiosqlite])
async def test_another_file_is_refused(store: SQLiteStore, tmp_path: Path, library: Any) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE orders (id INTEGER)")
    async with library(tmp_path / "other.db") as mine:
        with pytest.raises(ConfigurationError, match=r"other\.db.*connect to that one"):
            await store.add_events([new_event("order.placed")], connection=mine.connection)
        await mine.rollback()


async def test_a_closed_connection_of_aiosqlite_is_refused(store: SQLiteStore, file: Path) -> None:
    async with aiosqlite.connect(file) as connection:
        pass
    with pytest.raises(ConfigurationError, match="It must be open"):
        await store.add_events([new_event("order.placed")], connection=connection)


async def test_an_error_leaves_a_transaction_of_aiosqlite_as_it_was(store: SQLiteStore, file: Path) -> None:
    async with plain_aiosqlite(file) as mine:
        event = replace(new_event("order.placed"), payload_json='"\ud800"')
        with pytest.raises(UnicodeEncodeError):
            await store.add_events([new_event("order.paid"), event], connection=mine.connection)
        await mine.commit()
    assert count_orders(file) == 1


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
async def test_a_first_publish_in_a_transaction_says_that_the_store_must_be_opened_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(connections, "OPENING_TIMEOUT", 0.1)
    with closing(sqlite3.connect(tmp_path / "new.db")) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute("CREATE TABLE orders (id INTEGER)")
        connection.execute(ORDER)
        bus = EventBus(f"sqlite:///{tmp_path}/new.db")
        with pytest.raises(StoreUnavailableError, match=r"open the store before the transaction begins.*bus\.start"):
            await bus.publish("order.placed", connection=connection)
        connection.commit()
        await bus.start()
        connection.execute(ORDER)
        await bus.publish("order.placed", connection=connection)
        connection.commit()
        assert (await bus.store.counts()).pending == 1
        await bus.shutdown()

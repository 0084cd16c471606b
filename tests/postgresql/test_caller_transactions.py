"""Publishing and settling inside the caller's own transaction, whichever library the connection comes from."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from tests import caller_libraries as libraries
from tests.caller_libraries import ORDER, Mine, django_database, later
from tests.postgresql.emptied import empty

from durabus.errors import ConfigurationError, LeaseLost, StoreError
from durabus.model.claim import Claim, ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.settlement import Complete, Fail, Settled, Settlement
from durabus.model.statuses import EventStatus
from durabus.queue.event_queue import EventQueue
from durabus.stores.postgresql.store import PostgreSQLStore


@asynccontextmanager
async def psycopg_sync(url: str) -> AsyncIterator[Mine]:
    with psycopg.connect(url) as connection:
        connection.execute(ORDER)
        yield Mine(connection, later(connection.commit), later(connection.rollback))


@asynccontextmanager
async def psycopg_async(url: str) -> AsyncIterator[Mine]:
    connection = await psycopg.AsyncConnection.connect(url, row_factory=psycopg.rows.dict_row)
    async with connection:
        await connection.execute(ORDER)
        yield Mine(connection, connection.commit, connection.rollback)


@asynccontextmanager
async def plain_asyncpg(url: str) -> AsyncIterator[Mine]:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(ORDER)
    yield Mine(connection, transaction.commit, transaction.rollback)
    await connection.close()


@asynccontextmanager
async def pooled_asyncpg(url: str) -> AsyncIterator[Mine]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(ORDER)
        yield Mine(connection, transaction.commit, transaction.rollback)


def sqlalchemy_url(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


def sqlalchemy_connection(url: str) -> Any:
    return libraries.sqlalchemy_connection(sqlalchemy_url(url, "psycopg"))


def sqlalchemy_session(url: str) -> Any:
    return libraries.sqlalchemy_session(sqlalchemy_url(url, "psycopg"))


def sqlalchemy_scoped_session(url: str) -> Any:
    return libraries.sqlalchemy_scoped_session(sqlalchemy_url(url, "psycopg"))


def sqlalchemy_async_connection(url: str) -> Any:
    return libraries.sqlalchemy_async_connection(sqlalchemy_url(url, "asyncpg"))


def sqlalchemy_async_session(url: str) -> Any:
    return libraries.sqlalchemy_async_session(sqlalchemy_url(url, "asyncpg"))


def sqlalchemy_async_scoped_session(url: str) -> Any:
    return libraries.sqlalchemy_async_scoped_session(sqlalchemy_url(url, "asyncpg"))


def sqlalchemy_psycopg_async_session(url: str) -> Any:
    return libraries.sqlalchemy_async_session(sqlalchemy_url(url, "psycopg"))


def django_connection(url: str) -> Any:
    parts = urlsplit(url)
    return django_database(
        "default",
        ENGINE="django.db.backends.postgresql",
        NAME=parts.path[1:],
        USER=parts.username,
        PASSWORD=parts.password,
        HOST=parts.hostname,
        PORT=str(parts.port),
    )


def django_without_autocommit(url: str) -> Any:
    return libraries.django_without_autocommit(django_connection(url))


LIBRARIES = [
    psycopg_sync,
    psycopg_async,
    plain_asyncpg,
    pooled_asyncpg,
    sqlalchemy_connection,
    sqlalchemy_session,
    sqlalchemy_scoped_session,
    sqlalchemy_async_connection,
    sqlalchemy_async_session,
    sqlalchemy_async_scoped_session,
    sqlalchemy_psycopg_async_session,
    django_without_autocommit,
]
EACH = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.__name__)


@pytest.fixture(scope="module")
def schema(postgresql_url: str) -> Iterator[str]:
    yield "caller_transactions"
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS caller_transactions CASCADE")


@pytest.fixture(autouse=True)
def orders(postgresql_url: str, schema: str) -> None:
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        empty(connection, schema)
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id integer)")
        connection.execute("TRUNCATE orders")


def count_orders(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM orders").fetchone()
        assert row
        return int(row[0])


async def claim(store: PostgreSQLStore, limit: int = 10) -> list[Claim]:
    request = ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=limit)
    return await store.claim_next_events(request)


@EACH
async def test_event_and_order_are_one_commit(store: PostgreSQLStore, postgresql_url: str, library: Any) -> None:
    new = [new_event("order.placed", {"id": 7}, tags=["eu"], priority=3, idempotency_key="k"), new_event("order.paid")]
    async with library(postgresql_url) as mine:
        events = await store.add_events(new, connection=mine.connection)
        assert await store.get_event(events[0].event_id) is None
        assert await claim(store) == []
        await mine.commit()
    assert [await store.get_event(event.id) for event in events] == events
    assert count_orders(postgresql_url) == 1
    assert [one.event.id for one in await claim(store)] == [event.id for event in events]


@EACH
async def test_a_rollback_takes_the_events_back(store: PostgreSQLStore, postgresql_url: str, library: Any) -> None:
    new = [new_event("order.placed", idempotency_key="k")]
    async with library(postgresql_url) as mine:
        await store.add_events(new, connection=mine.connection)
        await mine.rollback()
    assert count_orders(postgresql_url) == 0
    assert (await store.counts()).pending == 0
    assert (await store.read_log()).entries == []
    assert len(await store.add_events(new)) == 1


@EACH
async def test_effect_and_settlement_are_one_commit(store: PostgreSQLStore, postgresql_url: str, library: Any) -> None:
    await store.add_events([new_event("order.placed"), new_event("order.paid")])
    one, two = await claim(store)
    settlements: list[Settlement] = [Complete(one.ref, status_code=200), Fail(two.ref, "no \x00 such order", 60.0)]
    async with library(postgresql_url) as mine:
        answer = await store.settle_events(settlements, connection=mine.connection)
        assert [outcome.status for outcome in answer.outcomes if isinstance(outcome, Settled)] == [
            EventStatus.COMPLETED,
            EventStatus.PENDING,
        ]
        assert (await store.counts()).processing == 2
        await mine.commit()
    assert count_orders(postgresql_url) == 1
    counts = await store.counts()
    assert (counts.pending, counts.processing, counts.completed) == (1, 0, 1)


@EACH
async def test_finalize_and_effect_are_one_commit(store: PostgreSQLStore, postgresql_url: str, library: Any) -> None:
    queue = EventQueue(store)
    await queue.publish("order.placed")
    event = await queue.poll()
    assert event is not None
    async with library(postgresql_url) as mine:
        await queue.finalize(event.id, connection=mine.connection)
        assert (await store.counts()).processing == 1
        await mine.commit()
    assert count_orders(postgresql_url) == 1
    assert (await store.counts()).completed == 1


@EACH
async def test_the_fence_is_checked_in_the_callers_transaction(
    store: PostgreSQLStore, postgresql_url: str, library: Any
) -> None:
    await store.add_events([new_event("order.placed")])
    (lost,) = await claim(store)
    await store.reset_event(lost.event.id, reason="stuck")
    (taken,) = await claim(store)
    async with library(postgresql_url) as mine:
        answer = await store.settle_events([Complete(lost.ref)], connection=mine.connection)
        assert isinstance(answer.outcomes[0], LeaseLost)
        await mine.commit()
    assert count_orders(postgresql_url) == 1
    assert await store.get_event(lost.event.id) == taken.event


@EACH
async def test_a_known_event_is_returned_on_the_callers_connection(
    store: PostgreSQLStore, postgresql_url: str, library: Any
) -> None:
    known = new_event("order.placed", {"id": 7}, idempotency_key="k")
    first = await store.add_events([known])
    async with library(postgresql_url) as mine:
        again = await store.add_events([known, new_event("order.paid")], connection=mine.connection)
        await mine.commit()
    assert again[0] == first[0]
    assert (await store.counts()).pending == 2


async def test_a_sleeping_worker_wakes_after_the_callers_commit(
    url: str, store: PostgreSQLStore, postgresql_url: str
) -> None:
    other = PostgreSQLStore.from_url(url)
    await other.open()
    waiting = asyncio.create_task(other.wait_for_work("default", timeout=40.0))
    async with psycopg_async(postgresql_url) as mine:
        await store.add_events([new_event("order.placed")], connection=mine.connection)
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await mine.commit()
        assert await waiting
    await other.close()


def test_django_s_own_atomic_block_takes_an_event_along(url: str, postgresql_url: str) -> None:
    from django.db import transaction  # type: ignore[import-untyped]

    django_connection(postgresql_url)

    async def publish(connection: object) -> None:
        store = PostgreSQLStore.from_url(url)
        await store.open()
        try:
            await store.add_events([new_event("order.placed")], connection=connection)
        finally:
            await store.close()

    async def pending() -> int:
        store = PostgreSQLStore.from_url(url)
        await store.open()
        counts = await store.counts()
        await store.close()
        return counts.pending

    with transaction.atomic():
        asyncio.run(publish(transaction.get_connection()))
        transaction.set_rollback(True)
    assert asyncio.run(pending()) == 0
    with transaction.atomic():
        asyncio.run(publish(transaction.get_connection()))
    assert asyncio.run(pending()) == 1
    with pytest.raises(StoreError, match=r"begin a transaction first.*pass transaction.get_connection"):
        asyncio.run(publish(transaction.get_connection()))
    transaction.get_connection().close()


@pytest.mark.parametrize("wrong", ["postgresql://…", 7, object()])
async def test_what_is_no_connection_is_refused(store: PostgreSQLStore, wrong: object) -> None:
    with pytest.raises(ConfigurationError, match=r"must be a connection to it from psycopg 3.*SQLAlchemy.*Django"):
        await store.add_events([new_event("order.placed")], connection=wrong)


async def test_a_connection_without_a_transaction_is_refused(store: PostgreSQLStore, postgresql_url: str) -> None:
    event = new_event("order.placed")
    with psycopg.connect(postgresql_url, autocommit=True) as connection:
        with pytest.raises(StoreError, match="begin a transaction first"):
            await store.add_events([event], connection=connection)
        with connection.transaction():
            await store.add_events([event], connection=connection)
    plain = await asyncpg.connect(postgresql_url)
    with pytest.raises(StoreError, match="begin a transaction first"):
        await store.settle_events([], connection=plain)
    await plain.close()
    engine = create_async_engine(
        sqlalchemy_url(postgresql_url, "asyncpg"), poolclass=NullPool, isolation_level="AUTOCOMMIT"
    )
    async with engine.connect() as connection_:
        with pytest.raises(StoreError, match="begin a transaction first"):
            await store.add_events([new_event("order.placed")], connection=connection_)
    assert (await store.counts()).pending == 1


async def test_a_connection_to_another_database_is_refused_and_lives_on(
    store: PostgreSQLStore, postgresql_url: str
) -> None:
    with psycopg.connect(postgresql_url, autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS elsewhere")
        admin.execute("CREATE DATABASE elsewhere")
    with psycopg.connect(postgresql_url.replace("/postgres?", "?").rsplit("/", 1)[0] + "/elsewhere") as connection:
        with pytest.raises(ConfigurationError, match=r"'elsewhere'.*connect to that one"):
            await store.add_events([new_event("order.placed")], connection=connection)
        assert connection.execute("SELECT 1").fetchone() == (1,)
    with psycopg.connect(postgresql_url, autocommit=True) as admin:
        admin.execute("DROP DATABASE elsewhere")


async def test_a_claim_does_not_wait_for_the_callers_commit(store: PostgreSQLStore, postgresql_url: str) -> None:
    request = ClaimRequest(bus="default", worker_id="w", token=new_token())
    alone = pytest.raises(ConfigurationError, match="claim in a call of its own")
    with psycopg.connect(postgresql_url) as connection, alone:
        await store.settle_events([], then_claim=request, connection=connection)

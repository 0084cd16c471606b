"""A publisher and the beginning of a wait do not miss each other, whichever commits first."""

import asyncio
from contextlib import suppress
from typing import Any

import asyncpg
import psycopg
import pytest

from durabus.errors import StoreError
from durabus.model.claim import Claim, ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.settlement import Release
from durabus.model.statuses import ResultStatus
from durabus.model.wait import met_event, new_wait, waiting
from durabus.stores.postgresql.connection import PostgreSQLSession
from durabus.stores.postgresql.store import PostgreSQLStore

NAME = "order > wait_for"
LONG = 1000.0
LOOKS = 100


async def claim(store: PostgreSQLStore) -> list[Claim]:
    return await store.claim_next_events(
        ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=10, lease=60.0)
    )


async def begin_to_wait(store: PostgreSQLStore) -> Claim:
    await store.add_events([new_event("order.placed")])
    (claimed,) = await claim(store)
    return claimed


async def release(store: PostgreSQLStore, claimed: Claim) -> None:
    wait = waiting(NAME, new_wait("default", "payment.settled", {"order_id": 7}, None))
    await store.settle_events([Release(claimed.ref, LONG, (wait,))])


async def met_by(store: PostgreSQLStore, waiter: Claim) -> int:
    """Claim as a worker that polls, until the wait is met. Return the number of the event that met it."""
    for _ in range(LOOKS):
        await claim(store)
        (result,) = await store.list_results(waiter.event.id)
        if result.status is ResultStatus.KEPT:
            found = met_event(result.value_json or "", "default")
            assert found is not None
            return found.id
        await asyncio.sleep(0.02)
    raise AssertionError("the wait was missed")


async def all_checked(store: PostgreSQLStore, admin: psycopg.Connection) -> None:
    """Claim until the store need not look again for any wait."""
    for _ in range(LOOKS):
        assert await claim(store) == []
        if admin.execute("SELECT count(*) FROM unchecked_waits").fetchone() == (0,):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the store still has waits to look for")


@pytest.mark.parametrize("looks", [0, 3])
async def test_a_publisher_that_was_open_when_the_wait_began_is_not_missed(
    store: PostgreSQLStore, postgresql_url: str, looks: int
) -> None:
    waiter = await begin_to_wait(store)
    connection = await asyncpg.connect(postgresql_url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        (paid,) = await store.add_events([new_event("payment.settled", {"order_id": 7})], connection=connection)
        await release(store, waiter)
        for _ in range(looks):
            assert await claim(store) == []
        await transaction.commit()
    finally:
        await connection.close()
    assert await met_by(store, waiter) == paid.id


async def test_an_event_that_is_older_and_commits_later_is_not_missed(
    store: PostgreSQLStore, postgresql_url: str
) -> None:
    """The event has the smaller id, and its transaction ends long after the wait began."""
    connection = await asyncpg.connect(postgresql_url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        (paid,) = await store.add_events([new_event("payment.settled", {"order_id": 7})], connection=connection)
        waiter = await begin_to_wait(store)
        assert paid.id < waiter.event.id
        await release(store, waiter)
        for _ in range(3):
            assert await claim(store) == []
        await transaction.commit()
    finally:
        await connection.close()
    assert await met_by(store, waiter) == paid.id


async def test_a_publisher_that_began_early_and_stores_late_meets_the_wait(
    store: PostgreSQLStore, postgresql_url: str
) -> None:
    """It wrote something else before. Several events, also one in a savepoint, are stored in one transaction."""
    connection = await asyncpg.connect(postgresql_url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await store.add_events([new_event("other")], connection=connection)
        waiter, second = await begin_to_wait(store), await begin_to_wait(store)
        await store.add_events([new_event("noise")])
        async with connection.transaction():
            (paid, _) = await store.add_events(
                [new_event("payment.settled", {"order_id": 7}), new_event("payment.settled", {"order_id": 8})],
                connection=connection,
            )
        await release(store, waiter)
        await release(store, second)
        await transaction.commit()
    finally:
        await connection.close()
    assert [await met_by(store, one) for one in (waiter, second)] == [paid.id, paid.id]


async def test_an_event_that_was_there_before_the_waiting_one_stays_out_of_a_later_look(
    store: PostgreSQLStore, postgresql_url: str, admin: psycopg.Connection
) -> None:
    """A transaction that is open all the while makes the store look again."""
    connection = await asyncpg.connect(postgresql_url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await store.add_events([new_event("other")], connection=connection)
        await store.add_events([new_event("payment.settled", {"order_id": 7})])
        (early,) = await claim(store)
        await store.settle_events([Release(early.ref, LONG)])
        waiter = await begin_to_wait(store)
        (gone,) = await store.add_events([new_event("payment.settled", {"order_id": 7}, delay=LONG)])
        await store.cancel_event(gone.id, reason="not wanted")
        await release(store, waiter)
        assert await claim(store) == []
        await transaction.commit()
    finally:
        await connection.close()
    assert [one.event.type for one in await claim(store)] == ["other"]
    await all_checked(store, admin)
    (result,) = await store.list_results(waiter.event.id)
    assert result.status is ResultStatus.WAITING


async def test_a_publisher_that_dies_after_its_first_statement_has_met_the_wait(
    store: PostgreSQLStore, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publish is one statement: it stores the event and meets the waits for it, or does neither."""
    waiter = await begin_to_wait(store)
    await release(store, waiter)
    await all_checked(store, admin)

    async def dies(_session: PostgreSQLSession, name: str, *_arguments: Any) -> Any:
        raise StoreError(f"the process is gone before it sends {name}")

    with monkeypatch.context() as patch:
        patch.setattr(PostgreSQLSession, "all", dies)
        with suppress(StoreError):
            await store.add_events([new_event("payment.settled", {"order_id": 7})])
    assert await met_by(store, waiter) is not None


async def test_a_publisher_that_rolls_back_meets_no_wait(
    store: PostgreSQLStore, postgresql_url: str, admin: psycopg.Connection
) -> None:
    waiter = await begin_to_wait(store)
    await release(store, waiter)
    connection = await asyncpg.connect(postgresql_url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await store.add_events([new_event("payment.settled", {"order_id": 7})], connection=connection)
        await transaction.rollback()
    finally:
        await connection.close()
    await all_checked(store, admin)
    (result,) = await store.list_results(waiter.event.id)
    assert result.status is ResultStatus.WAITING


async def test_a_claim_that_is_settled_meanwhile_does_not_lose_the_event_that_met_its_wait(
    store: PostgreSQLStore, postgresql_url: str
) -> None:
    """The publisher locks the waiting event, so its release comes after the commit, and sees that the wait is met."""
    waiter = await begin_to_wait(store)
    wait = waiting(NAME, new_wait("default", "payment.settled", {"order_id": 7}, None))
    await store.settle_events([Release(waiter.ref, 0.0, (wait,))])
    (again,) = await claim(store)
    connection = await asyncpg.connect(postgresql_url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await store.add_events([new_event("payment.settled", {"order_id": 7})], connection=connection)
        releasing = asyncio.create_task(store.settle_events([Release(again.ref, LONG, (wait,))]))
        done, _ = await asyncio.wait([releasing], timeout=0.2)
        assert not done
        await transaction.commit()
        await asyncio.wait_for(releasing, 20)
    finally:
        await connection.close()
    assert waiter.event.id in [one.event.id for one in await claim(store)]

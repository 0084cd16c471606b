"""A publisher and the beginning of a wait do not miss each other, whichever commits first."""

import asyncio

import asyncpg
import psycopg
import pytest

from durabus.model.claim import Claim, ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.settlement import Release
from durabus.model.statuses import ResultStatus
from durabus.model.wait import met_event, new_wait, waiting
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


async def claimed_again(store: PostgreSQLStore, waiter: Claim) -> Claim:
    """Claim as a worker that polls, until the waiting event comes."""
    for _ in range(LOOKS):
        for one in await claim(store):
            if one.event.id == waiter.event.id:
                return one
        await asyncio.sleep(0.02)
    raise AssertionError("the wait was missed")


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
    again = await claimed_again(store, waiter)
    (result,) = again.results
    assert result.status is ResultStatus.KEPT
    found = met_event(result.value_json or "", "default")
    assert found is not None
    assert found.id == paid.id


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
    for _ in range(LOOKS):
        assert await claim(store) == []
        row = admin.execute("SELECT count(*) FROM unchecked_waits").fetchone()
        if row == (0,):
            break
        await asyncio.sleep(0.02)
    assert row == (0,)
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

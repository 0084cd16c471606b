"""Claims share the queue: a claim skips events that another open transaction has locked."""

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import NewEvent, new_event
from durabus.stores.postgresql.store import PostgreSQLStore

WITHOUT_WAITING = 5.0
"""Seconds. A claim takes milliseconds; one that waits for the other transaction never returns."""
EVENTS = {
    "fresh": lambda: new_event("a"),
    "returned": lambda: new_event("a", priority=5),
    "tagged": lambda: new_event("a", tags=["vip"]),
    "returned-tagged": lambda: new_event("a", priority=5, tags=["vip"]),
    "due": lambda: new_event("a", delay=0.001),
}


@pytest.fixture
def other(postgresql_url: str, schema: str) -> Iterator[psycopg.Connection]:
    """A connection that claims in a transaction that stays open."""
    with psycopg.connect(postgresql_url, options=f"-c search_path={schema}") as connection:
        yield connection
        connection.rollback()


def request(limit: int = 10, *, tagged: bool = False, lease: float = 30.0) -> ClaimRequest:
    tags = ("vip",) if tagged else ()
    return ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=limit, tags=tags, lease=lease)


async def claimed(store: PostgreSQLStore, asked: ClaimRequest) -> list[int]:
    async with asyncio.timeout(WITHOUT_WAITING):
        return [claim.event.id for claim in await store.claim_next_events(asked)]


def lock(other: psycopg.Connection, ids: list[int]) -> None:
    assert len(other.execute("SELECT id FROM events WHERE id = ANY (%s) FOR UPDATE", [ids]).fetchall()) == len(ids)


async def test_a_claim_takes_what_an_unfinished_claim_left(store: PostgreSQLStore, other: psycopg.Connection) -> None:
    events = [event.id for event in await store.add_events([new_event("a") for _ in range(4)])]
    taken = other.execute(
        "SELECT id FROM claim_next_events(NULL, 'default', 'other', 'token', 2, 30, NULL, NULL, 0, true, true)"
    ).fetchall()
    assert [id_ for (id_,) in taken] == events[:2]
    assert await claimed(store, request()) == events[2:]


@pytest.mark.parametrize("kind", EVENTS)
async def test_a_locked_event_is_passed_by(store: PostgreSQLStore, other: psycopg.Connection, kind: str) -> None:
    new: list[NewEvent] = [EVENTS[kind]() for _ in range(4)]
    events = [event.id for event in await store.add_events(new)]
    lock(other, events[:2])
    assert await claimed(store, request(tagged="tagged" in kind)) == events[2:]


async def test_a_locked_event_is_not_waited_for_by_its_id(store: PostgreSQLStore, other: psycopg.Connection) -> None:
    (event,) = await store.add_events([new_event("a")])
    lock(other, [event.id])
    asked = ClaimRequest(bus="default", worker_id="w", token=new_token(), event_id=event.event_id)
    assert await claimed(store, asked) == []


async def lost_claims(store: PostgreSQLStore) -> list[int]:
    """Four claims with leases that are over."""
    events = [event.id for event in await store.add_events([new_event("a") for _ in range(4)])]
    assert await claimed(store, request(lease=1e-6)) == events
    return events


async def test_a_claim_skips_expired_claims_that_another_claim_takes_back(
    store: PostgreSQLStore, other: psycopg.Connection
) -> None:
    events = await lost_claims(store)
    lock(other, events[:2])
    assert await claimed(store, request()) == events[2:]


async def test_the_sweep_skips_expired_claims_that_another_claim_takes_back(
    store: PostgreSQLStore, other: psycopg.Connection
) -> None:
    lock(other, (await lost_claims(store))[:2])
    async with asyncio.timeout(WITHOUT_WAITING):
        assert await store.expire_events() == 2

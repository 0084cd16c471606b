"""Leases are judged by the server's clock, and instants are what the server keeps: microseconds."""

import asyncio

import psycopg
from msgspec.structs import replace

from durabus.model.claim import ClaimRequest, HandlerClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.settlement import Complete, Fail, Release
from durabus.stores.postgresql.claims import Scans
from durabus.stores.postgresql.store import PostgreSQLStore


def request(**options: object) -> ClaimRequest:
    return replace(ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=10), **options)


async def test_now_is_the_servers_clock(store: PostgreSQLStore, admin: psycopg.Connection) -> None:
    before = admin.execute("SELECT date_part('epoch', clock_timestamp())").fetchone()
    now = await store.now()
    after = admin.execute("SELECT date_part('epoch', clock_timestamp())").fetchone()
    assert before
    assert after
    assert before[0] <= now <= after[0]


async def test_a_lease_ends_by_the_servers_clock(store: PostgreSQLStore) -> None:
    await store.add_events([new_event("a")])
    (claim,) = await store.claim_next_events(request(lease=2.0))
    assert await store.claim_next_events(request()) == []
    await asyncio.sleep(2.1)
    (taken,) = await store.claim_next_events(request())
    assert taken.event.fence == claim.event.fence + 1
    assert taken.event.errors == ("lease expired (worker w)",)


async def test_every_instant_is_returned_as_it_will_be_read(store: PostgreSQLStore) -> None:
    delay = 12.345678901234
    (event,) = await store.add_events([new_event("a", delay=delay)])
    assert await store.get_event(event.id) == event
    (one,) = await store.add_events([new_event("b")])
    assert await store.get_event(one.id) == one
    (claim,) = await store.claim_next_events(request(lease=7.123456789))
    assert await store.get_event(one.id) == claim.event
    (expires,) = await store.renew_event_claims([claim.ref], lease=9.87654321)
    found = await store.get_event(one.id)
    assert found
    assert found.expires_ts == expires
    (started,) = await store.start_events([claim.ref])
    assert await store.get_event(one.id) == started
    asked = HandlerClaimRequest(
        event=claim.ref, handler_ids=("h",), worker_id="w", token=new_token(), lease=3.1415926535
    )
    handler = await store.claim_next_handler_result(asked)
    assert handler
    assert (await store.list_results(one.id))[0].expires_ts == handler.expires_ts
    lock = await store.claim_lock("k", worker_id="w", token=new_token(), lease=2.7182818284)
    assert lock
    assert [one.expires_ts for one in await store.list_locks() if one.key == "k"] == [lock.expires_ts]
    fail = Fail(claim.ref, "no", delay)
    first = await store.settle_events([fail])
    assert await store.settle_events([fail]) == first
    entry = (await store.read_event_log(one.id))[-1]
    found = await store.get_event(one.id)
    assert found
    assert entry.next_retry_ts == found.due_ts == first.outcomes[0].next_retry_ts  # type: ignore[union-attr]


async def test_a_claim_below_the_floor_is_found_again_as_soon_as_a_claim_is_not_full(store: PostgreSQLStore) -> None:
    """When a full scan is slow, claims begin where the last one ended. No event is lost by that."""
    store._scans = Scans(always_whole=False)
    store._scans._whole_again["default"] = float("inf")
    await store.add_events([new_event("a") for _ in range(10)])
    first = await store.claim_next_events(request(limit=4))
    assert store._scans._floors["default"] == first[-1].event.id
    await store.settle_events([Release(first[0].ref), Complete(first[1].ref)])
    again = await store.claim_next_events(request(limit=3))
    assert [claim.event.id for claim in again] == [
        first[0].event.id,
        first[-1].event.id + 1,
        first[-1].event.id + 2,
    ]
    rest = await store.claim_next_events(request(limit=50))
    assert len(rest) == 4
    assert await store.claim_next_events(request(limit=50)) == []


async def test_a_late_commit_below_the_floor_is_claimed(store: PostgreSQLStore, postgresql_url: str) -> None:
    store._scans = Scans(always_whole=False)
    with psycopg.connect(postgresql_url) as slow:
        (late,) = await store.add_events([new_event("late")], connection=slow)
        await store.add_events([new_event("early") for _ in range(3)])
        assert len(await store.claim_next_events(request(limit=3))) == 3
        store._scans._whole_again["default"] = float("inf")
        slow.commit()
    (claim,) = await store.claim_next_events(request())
    assert claim.event.id == late.id

"""Statements that run for each event are never compiled, and find their rows by the index that is meant for them.

The tests run on the embedded server and on the distribution's, whose `jit` is on: there, an expensive plan takes a
second.
"""

import secrets
from collections.abc import Iterator

import psycopg
import pytest
from tests.postgresql.plans import Plan, plans_of
from tests.servers.presence import distribution

from durabus import EventQuery
from durabus.model.claim import Claim, ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.settlement import Complete, Fail
from durabus.stores.postgresql.store import PostgreSQLStore

ROWS = 1_000_000
FILL = f"""
ALTER TABLE events SET UNLOGGED;
INSERT INTO events (
    id, event_id, bus, type, status, queue_part, priority, attempts, generation, fence, has_results, created_at,
    updated_at, due_at, lease_expires_at, token, payload
)
SELECT
    {ROWS} + n, gen_random_uuid(), 'full', 'order.placed', CASE WHEN n % 100 = 0 THEN 'PROCESSING' ELSE 'PENDING' END,
    CASE WHEN n % 100 = 0 OR n % 100 = 1 THEN 0 WHEN n % 100 = 2 THEN 2 ELSE 1 END, 0, 0, 0, 0, false, now(), now(),
    CASE WHEN n % 100 = 1 THEN now() + interval '1 day' ELSE now() END,
    CASE WHEN n % 100 = 0 THEN now() + interval '1 day' END, CASE WHEN n % 100 = 0 THEN 't' || n / 1000 END, '{{}}'
FROM generate_series(1, {ROWS}) AS n;
SELECT setval('event_ids', {3 * ROWS});
"""
INTENDED = {
    "e.token = p_token": "events_token",
    "e.lease_expires_at <= v_now": "events_leased",
    "e.queue_part = 0 AND e.status = 'PENDING' AND e.due_at <= v_now": "events_delayed",
    "e.queue_part = 2\n": "events_returned",
    "e.queue_part = 1 AND (-e.priority": "events_fresh",
    "e.ordering_key IS NOT NULL)": "events_ordering_key",
    "WITH taken AS": "events_id",
    "WITH done AS": "events_id",
    "ORDER BY id FOR UPDATE": "events_id",
    "SET started_at =": "events_id",
    "SET lease_expires_at =": "events_id",
    "SET\n    status = 'PENDING'": "events_id",
    ".events AS event ON event.id = given.id": "events_id",
    ".events WHERE id < $1 AND bus = $3 ORDER BY id DESC": "events_id",
}
"""Words of a statement, and the index by which it reads the table of live events, whatever the table holds."""
FEW = 1_000
"""The most rows that a step may read. No step here is about more than twenty events."""
UNTIL_PLANS_ARE_KEPT = 6
"""How often a prepared statement runs before the server may keep one plan for all values."""


@pytest.fixture(params=["embedded", "distribution"])
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a new schema on each of the servers."""
    if request.param == "embedded":
        yield from _schema(request.getfixturevalue("postgresql_url"))
    else:
        with distribution() as server:
            yield from _schema(server.url)


def _schema(url: str) -> Iterator[str]:
    name = f"hot_{secrets.token_hex(4)}"
    yield f"{url}?schema={name}&pool=1&listen=off"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


async def claim(store: PostgreSQLStore, limit: int) -> list[Claim]:
    request = ClaimRequest(bus="full", worker_id="w", token=new_token(), limit=limit)
    return await store.claim_next_events(request)


async def do_all_that_an_event_needs(store: PostgreSQLStore) -> None:
    await store.add_events([new_event("order.placed", bus="full")])
    await store.add_events([new_event("order.placed", bus="full") for _ in range(20)])
    await store.add_events([new_event("order.placed", bus="full", idempotency_key=secrets.token_hex(8))])
    claims = await claim(store, 10)
    assert len(claims) == 10
    refs = [one.ref for one in claims]
    await store.start_events(refs)
    await store.renew_event_claims(refs, lease=30.0)
    settlements = [Complete(ref, execution_time_ms=1.0) for ref in refs[:5]]
    request = ClaimRequest(bus="full", worker_id="w", token=new_token(), limit=5)
    more = (await store.settle_events(settlements, then_claim=request)).claims
    await store.settle_events([Complete(one.ref, execution_time_ms=1.0) for one in more[2:]])
    await store.settle_events([Complete(one.ref, execution_time_ms=1.0) for one in more[:2]], with_entries=True)
    await store.settle_events([Fail(ref, "not today", 0.0) for ref in refs[5:7]])
    await store.settle_events([Fail(refs[7], "not today", 0.0)], with_entries=True)
    await store.settle_events([Fail(ref, "never", None) for ref in refs[8:]])
    assert (await store.find(EventQuery(bus="full", limit=5))).events
    await store.wait_for_work("full", timeout=0.0)


def complaints(plans: list[Plan]) -> Iterator[str]:
    yield from (f"compiled: {plan.text}" for plan in plans if plan.compiled)
    yield from (f"{plan.rows('events')} rows: {plan.text}" for plan in plans if plan.rows("events") > FEW)
    for words, index in INTENDED.items():
        found = [plan.indexes("events") for plan in plans if words in plan.text]
        if not found:
            yield f"not seen: {words}"
        yield from (f"by {by}, not by {index}: {words}" for by in found if by != {index})


@pytest.mark.timeout(300)  # a million rows, on a machine that does other things too
async def test_nothing_on_the_road_of_an_event_is_compiled_or_walks_another_index(place: str) -> None:
    """The tables are empty or have a million rows, before and after ANALYZE, with new plans and with kept ones."""
    schema = place.partition("schema=")[2].partition("&")[0]
    patient, found = PostgreSQLStore.from_url(place), list[str]()
    await patient.open()
    with psycopg.connect(place.partition("?")[0], autocommit=True, options=f"-c search_path={schema}") as admin:
        admin.execute("ALTER TABLE events SET UNLOGGED")  # a million rows that no test needs after a crash
        for stage, change in (
            *(("empty", "SELECT 1"), ("empty, analyzed", "VACUUM ANALYZE")),
            *(("full", FILL), ("full, analyzed", "VACUUM ANALYZE")),
        ):
            admin.execute(change.encode())
            fresh = PostgreSQLStore.from_url(place)
            await fresh.open()
            async with plans_of(patient) as kept, plans_of(fresh) as made:
                await do_all_that_an_event_needs(patient)
                await do_all_that_an_event_needs(fresh)
            await fresh.close()
            for name, plans in (("kept plans", kept), ("new plans", made)):
                found += [f"{stage}, {name}: {one}" for one in complaints(plans)]
            for _ in range(UNTIL_PLANS_ARE_KEPT):
                await do_all_that_an_event_needs(patient)
    await patient.close()
    assert not found, "\n".join(found)

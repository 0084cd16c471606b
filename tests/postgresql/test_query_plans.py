"""The cost of a statement does not depend on other rows: with 20,000 events in all stages, none reads a whole table."""

import asyncio
from collections.abc import Iterator
from importlib.resources import files

import psycopg
import pytest

from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import ADDRESSED, UNREAD_FOR, new_event
from durabus.model.settlement import Complete
from durabus.model.statuses import EventMode
from durabus.store.connect import open_store
from durabus.stores.postgresql.claims import WHOLE as EVERYWHERE
from durabus.stores.postgresql.claims import claim_arguments, claims_of
from durabus.stores.postgresql.connection import own_session
from durabus.stores.postgresql.layout import Statements
from durabus.stores.postgresql.settlements import plain_completions
from durabus.stores.postgresql.store import PostgreSQLStore
from durabus.stores.sql.statements import NAME, statements

STATEMENTS = sorted(statements("durabus.stores.postgresql"))
SCHEMA = "plans"
FILL = """
INSERT INTO published (id, event_id, bus, type, at)
SELECT n, gen_random_uuid(), 'bus-' || n % 50, 'order.placed', now() FROM generate_series(1, 20000) AS n;
INSERT INTO events (
    id, event_id, bus, type, status, queue_part, priority, attempts, generation, fence, has_results, created_at,
    updated_at, due_at, lease_expires_at, token, tags, payload
)
SELECT
    id, event_id, bus, type, CASE WHEN id % 10 = 0 THEN 'PROCESSING' ELSE 'PENDING' END,
    CASE WHEN id % 10 = 0 OR id % 10 = 1 THEN 0 WHEN id % 10 = 2 THEN 2 ELSE 1 END, 0, 0, 0, 0, false, at, at,
    CASE WHEN id % 10 = 1 THEN at + interval '1 day' ELSE at END,
    CASE WHEN id % 10 = 0 THEN at + interval '1 day' END, CASE WHEN id % 10 = 0 THEN 't' || id / 1000 END,
    CASE WHEN id % 100 = 5 THEN ARRAY['rare'] WHEN id % 2 = 1 THEN ARRAY['often'] END, '{}'
FROM published;
INSERT INTO event_log (
    tx, id, event_id, bus, type, action, status, attempt, generation, fence, at, created_at, completed, payload
)
SELECT
    tx, -id, event_id, bus, type, 'COMPLETED', 'COMPLETED', 1, 0, 1, at, at, true, '{}'
FROM published;
INSERT INTO dead_letters (
    id, event_id, bus, type, status, fence, created_at, updated_at, due_at, attempts, generation, priority, payload
)
SELECT 200000 + id, event_id, bus, type, 'FAILED', 1, at, at, at, 1, 0, 0, '{}' FROM published;
INSERT INTO event_results (id, handler_id, status, fence, attempts) SELECT id, 'h', 'SUCCEEDED', 0, 1 FROM published;
INSERT INTO idempotency_keys (id, bus, idempotency_key) SELECT id, bus, 'k' || id FROM published;
INSERT INTO locks (key, fence, expires_at, worker_id) SELECT 'k' || id, id, at, 'w' FROM published;
SELECT setval('event_ids', 1000000);
ANALYZE;
"""
COUNT_PARAMETERS = "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 'asked'"
WHOLE = {
    "cleanup_results": "event_results, from the oldest: most of them are what it looks for",
    "completed_until": "in index order, up to the limit",
    "unknown_until": "maintenance, off the road",
    "cut_log": "a stretch of the log that somebody asked for",
    "log_lag": "a stretch of the log that somebody asked for",
    "log_head": "in index order, one entry",
    "read_log": "in index order, up to the limit",
    "expired_events_of_all": "the events somebody works on, never the backlog",
}


@pytest.fixture(scope="module")
def filled(postgresql_url: str) -> Iterator[psycopg.Connection]:
    async def install() -> None:
        await (await open_store(f"{postgresql_url}?schema={SCHEMA}")).close()

    with psycopg.connect(postgresql_url, autocommit=True) as admin:
        admin.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    asyncio.run(install())
    with psycopg.connect(postgresql_url, autocommit=True, options=f"-c search_path={SCHEMA}") as connection:
        connection.execute(FILL)
        yield connection
        connection.execute(f"DROP SCHEMA {SCHEMA} CASCADE")


def scans(connection: psycopg.Connection, sql: str) -> set[str]:
    """Return the tables that the plan reads from one end to the other."""
    connection.execute("SET plan_cache_mode = force_generic_plan")
    connection.execute(f"PREPARE asked AS {sql}")
    types = connection.execute(COUNT_PARAMETERS).fetchone()
    values = f"({', '.join(['NULL'] * types[0])})" if types and types[0] else ""
    rows = connection.execute(f"EXPLAIN EXECUTE asked{values}", prepare=False).fetchall()
    connection.execute("DEALLOCATE asked")
    lines = [str(row[0]) for row in rows]
    found = {line.split("Seq Scan on ")[1].split()[0] for line in lines if "Seq Scan on" in line}
    return found & large_tables(connection)


def large_tables(connection: psycopg.Connection) -> set[str]:
    """Return the tables with rows. The empty partitions of the log may be read in any way."""
    rows = connection.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND reltuples > 1000", [SCHEMA]
    )
    return {name for (name,) in rows}


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_statement_reads_a_whole_table(filled: psycopg.Connection, name: str) -> None:
    if name in ("create_bookkeeping", "actual_objects", "changed_objects"):
        return  # of the catalogue, when a store is opened
    found = scans(filled, Statements(SCHEMA)[name])
    assert not found or name in WHOLE, found


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_statement_says_what_it_is_for(name: str) -> None:
    parts = files("durabus.stores.postgresql").joinpath("statements").iterdir()
    assert any(f"{NAME}{name}\n-- " in part.read_text() for part in parts)


READS = (
    "SELECT sum(seq_tup_read), sum(idx_tup_fetch) FROM pg_stat_xact_user_tables "
    "WHERE schemaname = 'plans' AND relname ~ '^(events|event_log|published|dead_letters|locks)'"
)


async def test_the_functions_touch_only_what_they_take(filled: psycopg.Connection, postgresql_url: str) -> None:
    """Claiming 50 of 14,000 and completing them reads a few hundred rows, by indexes alone."""
    store = PostgreSQLStore.from_url(f"{postgresql_url}?schema={SCHEMA}")
    await store.open()
    cycles = (("bus-3", (), "parallel"), ("bus-5", ("rare",), "parallel"), ("bus-7", ("often",), "bus-serial"))
    for bus, tags, mode in cycles:
        reads = await reads_of_a_cycle(store, bus, tags, EventMode(mode))
        assert reads[0] == 0, (bus, reads)
        assert reads[1] < 5_000, (bus, reads)
    await store.close()


async def reads_of_a_cycle(store: PostgreSQLStore, bus: str, tags: tuple[str, ...], mode: EventMode) -> tuple[int, int]:
    pool = store._pool
    assert pool
    connection = await pool.take()
    sql = Statements(SCHEMA)
    request = ClaimRequest(bus=bus, worker_id="w", token=new_token(), limit=20, tags=tags, mode=mode)
    async with connection.transaction():
        rows = await connection.fetch(sql["claim_next_events"], None, *claim_arguments(request, EVERYWHERE), None)
        claims = await claims_of(own_session(connection, sql, now=None), request, rows)
        assert len(claims) == 20
        done = plain_completions([Complete(claim.ref, execution_time_ms=1.0) for claim in claims])
        await connection.fetch(sql["complete_events"], None, None, *done)
        row = (await connection.fetch(READS))[0]
    pool.give_back(connection)
    return int(row[0] or 0), int(row[1] or 0)


async def test_trimming_touches_only_what_it_takes(filled: psycopg.Connection, postgresql_url: str) -> None:
    store = PostgreSQLStore.from_url(f"{postgresql_url}?schema={SCHEMA}")
    await store.open()
    pool = store._pool
    assert pool
    connection = await pool.take()
    async with connection.transaction():
        rows = await connection.fetch(
            Statements(SCHEMA)["trim_excess"],
            *(["bus-9", "bus-8"], [300, 0], [50, 10], ["node", None], None, UNREAD_FOR, ADDRESSED),
        )
        assert sorted(map(tuple, rows)) == [("bus-8", 10), ("bus-9", 50)]
        sequential, indexed = (await connection.fetch(READS))[0]
    pool.give_back(connection)
    await store.close()
    assert sequential == 0
    assert indexed < 1_000


async def test_the_claim_does_not_walk_the_unique_index_on_id(filled: psycopg.Connection) -> None:
    """The trap: ordered by id alone, the planner walks past every row that is claimed already."""
    plan = filled.execute(
        "EXPLAIN SELECT id FROM events WHERE bus = 'bus-3' AND queue_part = 1 AND (-priority, id) > (0, 0) "
        "ORDER BY -priority, id LIMIT 50 FOR UPDATE SKIP LOCKED"
    ).fetchall()
    text = "\n".join(str(row[0]) for row in plan)
    assert "Index Scan using events_fresh" in text
    assert "Sort" not in text


async def test_a_claim_takes_no_more_than_its_limit_whatever_the_planner_does(store: PostgreSQLStore) -> None:
    await store.add_events([new_event("a") for _ in range(20)])
    for _ in range(10):
        claims = await store.claim_next_events(ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=1))
        assert len(claims) == 1
    assert (await store.counts()).processing == 10


def test_a_function_with_planner_settings_is_never_compiled(filled: psycopg.Connection) -> None:
    """Before PostgreSQL 18, a plan that must use a disabled method counts as endlessly expensive."""
    rows = filled.execute(
        "SELECT proname, proconfig FROM pg_proc WHERE pronamespace = %s::regnamespace AND proconfig IS NOT NULL",
        [SCHEMA],
    ).fetchall()
    told = {name: settings for name, settings in rows if any(one.startswith("enable_") for one in settings)}
    assert len(told) >= 8
    assert [name for name, settings in told.items() if "jit=off" not in settings] == []

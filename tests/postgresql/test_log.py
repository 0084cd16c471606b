"""The log in the order of transactions: what commits late is never skipped, and what holds it back can be measured."""

import asyncio
import random
import threading

import psycopg
import pytest

from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.log_entry import LogEntry
from durabus.model.settlement import Complete, Release
from durabus.store.log import START
from durabus.stores.postgresql.store import PostgreSQLStore

WRITERS = 8


async def read_to_the_end(store: PostgreSQLStore, writing: threading.Event, limit: int) -> list[LogEntry]:
    seen: list[LogEntry] = []
    after = START
    while True:
        over = not writing.is_set()
        page = await store.read_log(after=after, limit=limit)
        seen += page.entries
        after = page.next
        if over and not page.entries:
            return seen
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("turns", "at_once", "page"),
    [
        pytest.param(12, 5, 37, id="hundreds"),
        pytest.param(330, 100, 1_000, id="200,000", marks=[pytest.mark.long, pytest.mark.timeout(300)]),
    ],
)
async def test_a_reader_sees_everything_once_while_eight_writers_commit_late(
    postgresql_url: str, store: PostgreSQLStore, turns: int, at_once: int, page: int
) -> None:
    async def write(number: int) -> None:
        """Take ids and positions in a transaction, then wait while other transactions take larger ones and commit."""
        chance = random.Random(number)
        connection = await psycopg.AsyncConnection.connect(postgresql_url)
        async with connection:
            for _ in range(turns):
                batch = [new_event("a", bus=f"bus-{number}") for _ in range(at_once)]
                await store.add_events(batch, connection=connection)
                await asyncio.sleep(chance.uniform(0, 0.05))
                await (connection.rollback() if chance.random() < 0.2 else connection.commit())
                if chance.random() < 0.5:
                    request = ClaimRequest(bus=f"bus-{number}", worker_id="w", token=new_token(), limit=at_once - 2)
                    claims = await store.claim_next_events(request)
                    await store.settle_events([Complete(claim.ref) for claim in claims])

    writing = threading.Event()
    writing.set()
    readers = [asyncio.create_task(read_to_the_end(store, writing, page)) for _ in range(2)]
    async with asyncio.TaskGroup() as writers:
        for number in range(WRITERS):
            writers.create_task(write(number))
    writing.clear()
    first, second = await asyncio.gather(*readers)
    whole = (await store.read_log(limit=10 * WRITERS * turns * at_once)).entries
    assert len(whole) > WRITERS * turns * at_once * 0.76
    assert first == second == whole
    assert len({entry.position for entry in whole}) == len(whole)
    trails: dict[str, list[str]] = {}
    for entry in whole:
        trails.setdefault(entry.event_id, []).append(entry.action.value)
    for trail in trails.values():
        assert trail in (["PUBLISHED"], ["PUBLISHED", "PICKED"], ["PUBLISHED", "PICKED", "COMPLETED"])


async def test_a_late_commit_is_not_skipped_by_a_reader_that_is_already_past_its_id(
    store: PostgreSQLStore, postgresql_url: str
) -> None:
    with psycopg.connect(postgresql_url) as slow:
        (late,) = await store.add_events([new_event("late")], connection=slow)
        (early,) = await store.add_events([new_event("early")])
        assert early.id > late.id
        page = await store.read_log()
        assert page.entries == []
        assert await store.log_head() == START
        slow.commit()
    entries = (await store.read_log(after=page.next)).entries
    assert [entry.type for entry in entries] == ["late", "early"]


async def test_counts_do_not_count_rows(store: PostgreSQLStore, admin: psycopg.Connection) -> None:
    for _ in range(3):
        await store.add_events([new_event("a") for _ in range(4)])
    request = ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=5)
    claims = await store.claim_next_events(request)
    await store.settle_events([Complete(claim.ref) for claim in claims[:2]])
    expected = await store.counts()
    assert (expected.pending, expected.processing, expected.completed) == (7, 3, 2)
    admin.execute("SELECT add_up_counts()")
    assert admin.execute("SELECT count(*) FROM event_count_notes").fetchone() == (0,)
    assert await store.counts() == await store.counts("default") == expected
    admin.execute("DELETE FROM events")
    assert await store.counts() == expected


async def test_buses_that_are_gone_leave_no_numbers(store: PostgreSQLStore, admin: psycopg.Connection) -> None:
    (event,) = await store.add_events([new_event("a", bus="short")])
    admin.execute("SELECT add_up_counts()")
    await store.remove_event(event.id)
    admin.execute("SELECT add_up_counts()")
    assert admin.execute("SELECT * FROM event_counts").fetchall() == []


async def trail_of_all(store: PostgreSQLStore) -> list[str]:
    return [entry.action for entry in (await store.read_log()).entries]


async def test_a_claim_by_an_early_transaction_stands_after_the_release_it_follows(
    store: PostgreSQLStore, postgresql_url: str, schema: str
) -> None:
    await store.add_events([new_event("a")])
    (claim,) = await store.claim_next_events(ClaimRequest(bus="default", worker_id="w1", token=new_token()))
    async with await psycopg.AsyncConnection.connect(postgresql_url) as early:
        # as in complete_and_claim_events: the number is taken by the completions, and then it claims
        await early.execute("SELECT pg_current_xact_id()")
        await store.settle_events([Release(claim.ref)])
        arguments = "NULL, 'default', 'w2', 'another token', 1, 30, NULL, NULL, 0, false, true"
        claimed = await early.execute(f"SELECT id FROM {schema}.claim_next_events({arguments})".encode())
        assert claimed.rowcount == 1
    assert await trail_of_all(store) == ["PUBLISHED", "PICKED", "RELEASED", "PICKED"]


async def test_a_completion_in_an_early_transaction_of_the_caller_stands_after_its_claim(
    store: PostgreSQLStore, postgresql_url: str
) -> None:
    await store.add_events([new_event("a")])
    async with await psycopg.AsyncConnection.connect(postgresql_url) as early:
        await early.execute("SELECT pg_current_xact_id()")
        (claim,) = await store.claim_next_events(ClaimRequest(bus="default", worker_id="w1", token=new_token()))
        await store.settle_events([Complete(claim.ref)], connection=early)
    assert await trail_of_all(store) == ["PUBLISHED", "PICKED", "COMPLETED"]


async def test_a_late_settlement_is_not_skipped_by_a_reader_that_is_past_a_later_claim(
    store: PostgreSQLStore, postgresql_url: str
) -> None:
    await store.add_events([new_event("late"), new_event("early")])
    (late,) = await store.claim_next_events(ClaimRequest(bus="default", worker_id="me:1", token=new_token()))
    page = await store.read_log()
    with psycopg.connect(postgresql_url) as slow:
        await store.settle_events([Complete(late.ref)], connection=slow)
        await store.claim_next_events(ClaimRequest(bus="default", worker_id="me:1", token=new_token()))
        page = await store.read_log(after=page.next)
        assert page.entries == []
        slow.commit()
    entries = (await store.read_log(after=page.next)).entries
    assert {(entry.type, entry.action.value) for entry in entries} == {("late", "COMPLETED"), ("early", "PICKED")}

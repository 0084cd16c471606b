"""The cost of a statement does not depend on other rows."""

import re
import sqlite3
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import pytest

from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.query import EventQuery
from durabus.model.settlement import Complete, Fail
from durabus.stores.sql.statements import NAME, statements
from durabus.stores.sqlite import events, schema
from durabus.stores.sqlite.claims import claim_next_events
from durabus.stores.sqlite.connection import Transaction
from durabus.stores.sqlite.events import find
from durabus.stores.sqlite.layout import SQL
from durabus.stores.sqlite.publishing import add_events
from durabus.stores.sqlite.settlements import settle_events

STATEMENTS = sorted(statements("durabus.stores.sqlite"))
SCANS = {
    "cleanup_results": "event_results, from the oldest: most of them are what it looks for",
    "counts": "one row a bus, and the events somebody works on",
    "expired_events_of_all": "the events somebody works on, never the backlog",
    "last_position": "sqlite_sequence has one row",
    "list_dead_letters": "in index order, up to the limit",
    "woken_parents": "the parents that this very transaction has made due",
}


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection, Path("memory"), now=0.0)
    yield connection
    connection.close()


def plan_of(db: sqlite3.Connection, sql: str) -> list[str]:
    names = re.findall(r":(\w+)", sql)
    numbered = [int(number) for number in re.findall(r"\?(\d+)", sql)]
    values = dict.fromkeys(names) if names else [None] * (max(numbered) if numbered else sql.count("?"))
    return [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", values)]


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_statement_reads_a_whole_table(db: sqlite3.Connection, name: str) -> None:
    plan = plan_of(db, SQL[name])
    tables = {table for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    aliases = tables | {"event", "result"}
    scans = [step for step in plan if (words := step.split())[0] == "SCAN" and words[1] in aliases]
    assert bool(scans) == (name in SCANS), plan


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_statement_says_what_it_is_for(name: str) -> None:
    parts = files("durabus.stores.sqlite").joinpath("statements").iterdir()
    assert any(f"{NAME}{name}\n-- " in part.read_text() for part in parts)


def test_a_claim_walks_the_ready_index_and_sorts_nothing(db: sqlite3.Connection) -> None:
    assert plan_of(db, SQL["next_events"]) == ["SEARCH events USING INDEX events_ready (bus=?)"]
    assert plan_of(db, SQL["next_events_by_tag"]) == ["SEARCH event_tags USING PRIMARY KEY (bus=? AND tag=?)"]


class Meter:
    """Counts what SQLite's virtual machine does, which no neighbour on the machine can change."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.steps = 0

    def __enter__(self) -> Self:
        self.steps = 0
        self._db.set_progress_handler(self._count, 100)
        return self

    def __exit__(self, *_: object) -> None:
        self._db.set_progress_handler(None, 0)

    def _count(self) -> int:
        self.steps += 1
        return 0


def cost_of_a_cycle(db: sqlite3.Connection, tx: Transaction, tags: tuple[str, ...]) -> int:
    """Return the cost of a cycle: publish 10, claim 100, fail one, complete the rest, find a page."""
    with Meter(db) as meter:
        add_events(tx, [new_event("order.placed", tags=["eu"]) for _ in range(10)])
        request = ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=100, tags=tags)
        claims = claim_next_events(tx, request)
        assert len(claims) == 100
        settle_events(tx, [Fail(claims[0].ref, "boom", 60.0), *(Complete(claim.ref) for claim in claims[1:])])
        find(tx, EventQuery(bus="default", limit=20))
    return meter.steps


@pytest.mark.parametrize("tags", [(), ("eu", "us")], ids=["any", "by tag"])
def test_a_hundred_times_the_backlog_does_not_make_a_claim_dearer(
    db: sqlite3.Connection, tags: tuple[str, ...]
) -> None:
    tx = Transaction(db, now=1.0)
    db.execute("BEGIN")
    add_events(tx, [new_event("order.placed", tags=["eu"]) for _ in range(500)])
    small = cost_of_a_cycle(db, tx, tags)
    for _ in range(50):
        add_events(tx, [new_event("order.placed", tags=["eu"]) for _ in range(500)])
        add_events(tx, [new_event("order.placed", tags=["eu"], delay=3600) for _ in range(250)])
        add_events(tx, [new_event("order.placed", bus="other") for _ in range(250)])
    large = cost_of_a_cycle(db, tx, tags)
    assert large <= 1.5 * small, (small, large)


def test_a_page_is_found_without_reading_the_whole_backlog(db: sqlite3.Connection) -> None:
    tx = Transaction(db, now=1.0)
    add_events(tx, [new_event("order.placed") for _ in range(20_000)])
    with Meter(db) as meter:
        assert len(find(tx, EventQuery(limit=20)).events) == 20
    assert meter.steps < 100


def test_a_small_bus_is_found_without_reading_a_large_one(db: sqlite3.Connection) -> None:
    tx = Transaction(db, now=1.0)
    add_events(tx, [new_event("mail.sent", bus="small") for _ in range(5)])
    add_events(tx, [new_event("order.placed", bus="large") for _ in range(20_000)])
    with Meter(db) as meter:
        assert len(find(tx, EventQuery(bus="small")).events) == 5
    assert meter.steps < 50


@pytest.fixture
def stretch(monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of ids that one read looks at."""
    monkeypatch.setattr(events, "LOOKED_AT", 500)
    return 500


@pytest.mark.parametrize("bus", ["default", None])
@pytest.mark.parametrize(
    "conditions", [{"tags": ("rare",)}, {"type": "rare"}, {"type": "rare.*"}, {"created_until_ts": 0.0}]
)
def test_a_search_that_finds_nothing_looks_at_some_ids_at_a_time(
    db: sqlite3.Connection, stretch: int, bus: str | None, conditions: dict[str, Any]
) -> None:
    tx = Transaction(db, now=1.0)
    db.execute("BEGIN")
    add_events(tx, [new_event("order.placed", tags=["eu"]) for _ in range(4 * stretch)])
    request = ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=4 * stretch)
    settle_events(tx, [Complete(claim.ref) for claim in claim_next_events(tx, request)])
    before, steps = None, list[int]()
    while before is not None or not steps:
        with Meter(db) as meter:
            events, before = find(tx, EventQuery(bus=bus, before_id=before, **conditions))
        assert events == []
        steps.append(meter.steps)
    assert len(steps) == 4
    assert max(steps) < 2 * min(steps)


def test_ids_that_are_gone_are_passed_over(db: sqlite3.Connection, stretch: int) -> None:
    tx = Transaction(db, now=1.0)
    db.execute("BEGIN")
    (first,) = add_events(tx, [new_event("a", tags=["rare"])])
    gone = add_events(tx, [new_event("a") for _ in range(5 * stretch)])
    (last,) = add_events(tx, [new_event("b")])
    tx.many("DELETE FROM events WHERE id = ?", [(event.id,) for event in gone])
    assert find(tx, EventQuery(tags=("rare",))) == ([], last.id - stretch + 1)
    assert find(tx, EventQuery(tags=("rare",), before_id=last.id - stretch + 1)) == ([first], None)

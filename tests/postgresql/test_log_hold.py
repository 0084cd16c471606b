"""A transaction that is kept open holds up the readers of the log. Doctor, metric and dashboard name its session."""

import logging
from collections.abc import AsyncIterator, Iterator

import msgspec
import psycopg
import pytest

from durabus import EventLogProjectionBuilder, ManualClock
from durabus.http.dashboard.overview_page import held
from durabus.http.metrics import HttpMetrics
from durabus.maintenance.services import HorizonWatch
from durabus.model.event import new_event
from durabus.model.log_entry import HELD_AFTER, LogHold
from durabus.model.query import Counts
from durabus.store.checks import examine
from durabus.store.log import START
from durabus.stores.postgresql import checks, log
from durabus.stores.postgresql.log import Holds
from durabus.stores.postgresql.store import PostgreSQLStore
from durabus.views.stats import StoreMetrics

LONG = HELD_AFTER + 1.0


@pytest.fixture
async def timed(url: str, clock: ManualClock) -> AsyncIterator[PostgreSQLStore]:
    """A store whose time stands still until the test moves it."""
    opened = PostgreSQLStore.from_url(url, clock=clock)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def idle(postgresql_url: str) -> Iterator[psycopg.Connection]:
    """A session of another program, with a transaction that stays open."""
    with psycopg.connect(postgresql_url, application_name="reports") as connection:
        connection.execute("SELECT pg_current_xact_id()")
        yield connection
        connection.rollback()


@pytest.fixture
def projection(timed: PostgreSQLStore) -> EventLogProjectionBuilder:
    return EventLogProjectionBuilder(timed, name="view", apply=lambda entries: None)


async def test_the_holder_is_known_by_pid_age_and_application(
    timed: PostgreSQLStore, clock: ManualClock, idle: psycopg.Connection
) -> None:
    await timed.add_events([new_event("a")])
    clock.advance(LONG)
    hold = await timed.log_hold()
    assert hold is not None
    assert (hold.pid, hold.application, hold.waiting) == (idle.info.backend_pid, "reports", LONG)
    assert 0 <= hold.age < 60
    idle.commit()
    assert await timed.log_hold() is None


async def test_a_transaction_that_commits_soon_is_no_holder(
    timed: PostgreSQLStore, clock: ManualClock, idle: psycopg.Connection
) -> None:
    await timed.add_events([new_event("a")])
    clock.advance(HELD_AFTER / 2)
    assert await timed.log_hold() is None


async def test_an_open_transaction_is_no_holder_if_no_entry_waits_for_it(
    timed: PostgreSQLStore, clock: ManualClock, idle: psycopg.Connection
) -> None:
    clock.advance(LONG)
    assert await timed.log_hold() is None


async def test_the_lag_of_a_projection_is_not_known_meanwhile(
    timed: PostgreSQLStore, clock: ManualClock, idle: psycopg.Connection, projection: EventLogProjectionBuilder
) -> None:
    await timed.add_events([new_event("a"), new_event("b")])
    clock.advance(LONG)
    assert (await projection.status()).lag is None
    idle.commit()
    assert (await projection.status()).lag == 2


async def test_a_reader_that_gets_nothing_warns_once_of_each_holder(
    timed: PostgreSQLStore,
    clock: ManualClock,
    idle: psycopg.Connection,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log, "LOOK_EVERY", 0.0)
    caplog.set_level(logging.INFO, "durabus.postgresql")
    await timed.add_events([new_event("a")])
    clock.advance(LONG)
    for _ in range(3):
        assert (await timed.read_log()).entries == []
    (warning,) = caplog.records
    assert warning.levelname == "WARNING"
    assert f"the transaction of pid {idle.info.backend_pid} (reports), open for 0 s" in warning.getMessage()
    idle.commit()
    page = await timed.read_log()
    assert len(page.entries) == 1
    await timed.read_log(after=page.next)
    assert caplog.messages[1:] == ["the log can be read to its end again"]
    idle.execute("SELECT pg_current_xact_id()")
    await timed.add_events([new_event("b")])
    clock.advance(LONG)
    await timed.read_log(after=page.next)
    assert len(caplog.records) == 3


async def test_a_process_that_reads_nothing_warns_once_of_each_holder(
    timed: PostgreSQLStore, clock: ManualClock, idle: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    await timed.add_events([new_event("a")])
    clock.advance(LONG)
    watch = HorizonWatch(timed, every=10.0)
    for _ in range(3):
        await watch.run_once()
    (warning,) = caplog.records
    assert f"the transaction of pid {idle.info.backend_pid} (reports)" in warning.getMessage()


async def test_readers_ask_for_a_holder_now_and_then_only() -> None:
    asked = 0

    async def ask() -> LogHold | None:
        nonlocal asked
        asked += 1
        return None

    looking = Holds(ask)
    for _ in range(10):
        await looking.look()
    assert asked == 1


async def test_a_reader_that_gets_something_asks_for_no_holder(timed: PostgreSQLStore) -> None:
    await timed.add_events([new_event("a")])
    assert (await timed.read_log()).next != START
    assert timed._holds._next == 0.0


async def test_the_doctor_names_the_holder(
    store: PostgreSQLStore, url: str, idle: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "HELD_AFTER", 0.0)
    await store.add_events([new_event("a")])
    (found,) = await examine(url)
    assert (found.level, found.setting) == ("warning", "log")
    assert found.value.startswith("held back for ")
    assert f"pid {idle.info.backend_pid} (reports)" in found.advice
    idle.commit()
    assert await examine(url) == []


def test_metric_and_dashboard_show_the_holder() -> None:
    hold = LogHold(pid=7, application="reports", age=90.0, waiting=60.0)
    metrics = HttpMetrics()
    found = StoreMetrics(bus="default", counts=Counts(), log_hold=hold, missing_handlers=0)
    assert b"durabus_log_held_seconds 60.0" in metrics.text(found)
    assert b"durabus_log_held_seconds 0.0" in metrics.text(msgspec.structs.replace(found, log_hold=None))
    assert "pid 7 (reports), open for 90 s" in held(hold)[0].text
    assert held(None) == []

"""The log has one partition for each day; old ones are dropped whole, and nothing else goes with them."""

from collections.abc import AsyncIterator

import psycopg
import pytest

from durabus.clock import ManualClock
from durabus.maintenance.services import Partitions
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import Event, new_event
from durabus.model.settlement import Complete, Fail
from durabus.model.statuses import EventStatus
from durabus.store.log import ARCHIVE
from durabus.stores.postgresql import core
from durabus.stores.postgresql.store import PostgreSQLStore

DAY = 86_400.0
DAYS = (
    "SELECT day.relname FROM pg_inherits JOIN pg_class AS day ON day.oid = inhrelid "
    "WHERE inhparent = 'event_log'::regclass"
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(url: str, clock: ManualClock) -> AsyncIterator[PostgreSQLStore]:
    opened = PostgreSQLStore.from_url(url, clock)
    await opened.open()
    yield opened
    await opened.close()


async def ended(store: PostgreSQLStore, status: EventStatus, **options: object) -> Event:
    (event,) = await store.add_events([new_event("order.placed", **options)])  # type: ignore[arg-type]
    if status is not EventStatus.PENDING:
        request = ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=100)
        claim = next(one for one in await store.claim_next_events(request) if one.event.id == event.id)
        done = Complete(claim.ref) if status is EventStatus.COMPLETED else Fail(claim.ref, "no", None)
        await store.settle_events([done])
    found = await store.get_event(event.id)
    assert found
    return found


async def test_the_next_days_are_there_in_advance(store: PostgreSQLStore, admin: psycopg.Connection) -> None:
    days = {name for (name,) in admin.execute(DAYS)}
    assert days == {"event_log_rest", *(f"event_log_202311{day}" for day in range(14, 22))}
    await ended(store, EventStatus.COMPLETED)
    assert admin.execute("SELECT count(*) FROM event_log_20231114").fetchone() == (2,)
    assert admin.execute("SELECT count(*) FROM event_log_rest").fetchone() == (0,)


async def test_a_fleet_that_only_reads_has_the_days_it_will_need(
    store: PostgreSQLStore, admin: psycopg.Connection, clock: ManualClock
) -> None:
    clock.advance(30 * DAY)
    await Partitions(store).run_once()
    days = {name for (name,) in admin.execute(DAYS)}
    assert days >= {f"event_log_202312{day}" for day in range(14, 22)}
    assert await store.make_log_partitions() == 0
    clock.advance(DAY)
    assert await store.make_log_partitions() == 1


async def test_a_call_makes_no_partitions_while_maintenance_does(
    store: PostgreSQLStore, admin: psycopg.Connection, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "ADD_UP_EVERY", 1)
    store._partitions_until = 0.0
    await store.make_log_partitions()
    before = {name for (name,) in admin.execute(DAYS)}
    clock.advance(DAY)
    await store.log_head()
    assert {name for (name,) in admin.execute(DAYS)} == before
    store._partitions_until = 0.0
    await store.log_head()
    assert {name for (name,) in admin.execute(DAYS)} > before


async def test_a_day_without_a_table_of_its_own_loses_nothing(
    store: PostgreSQLStore, admin: psycopg.Connection, clock: ManualClock
) -> None:
    clock.advance(30 * DAY)
    event = await ended(store, EventStatus.COMPLETED)
    assert admin.execute("SELECT count(*) FROM event_log_rest").fetchone() == (2,)
    assert len(await store.read_event_log(event.id)) == 3
    admin.execute("SELECT make_log_partitions(%s, 7)", [clock.now()])
    assert await store.get_event(event.id) == event


async def test_old_days_go_with_what_was_completed_in_them(
    store: PostgreSQLStore, admin: psycopg.Connection, clock: ManualClock
) -> None:
    old = await ended(store, EventStatus.COMPLETED, idempotency_key="k")
    dead = await ended(store, EventStatus.FAILED)
    pending = await ended(store, EventStatus.PENDING)
    kept = [entry for entry in (await store.read_log()).entries if entry.id != old.id]
    assert await store.drop_log_days(older_than=0) == 0
    clock.advance(2 * DAY)
    assert await store.drop_log_days(older_than=DAY / 2) == 2
    assert await store.get_event(old.event_id) is None
    assert (await store.read_log()).entries == kept
    assert await store.get_event(dead.id) == dead
    assert await store.get_event(pending.id) == pending
    counts = await store.counts()
    assert (counts.pending, counts.completed, counts.failed) == (1, 0, 1)
    assert "event_log_20231114" not in {name for (name,) in admin.execute(DAYS)}
    again = await ended(store, EventStatus.COMPLETED, event_id=old.event_id, idempotency_key="k")
    assert again.id > old.id


async def test_a_day_that_an_archive_lacks_stays(store: PostgreSQLStore, clock: ManualClock) -> None:
    lock = await store.claim_lock("lake", worker_id="w", token=new_token(), lease=10 * DAY)
    assert lock is not None
    await store.save_position(f"{ARCHIVE}lake", "", lock=lock)
    old = await ended(store, EventStatus.COMPLETED)
    clock.advance(2 * DAY)
    await store.drop_log_days(older_than=DAY / 2)
    assert await store.get_event(old.id) == old
    await store.save_position(f"{ARCHIVE}lake", await store.log_head(), lock=lock)
    assert await store.drop_log_days(older_than=DAY / 2) >= 1
    assert await store.get_event(old.id) is None
    assert (await store.read_archives()).trimmed


async def test_an_event_that_ended_later_keeps_its_older_entries(store: PostgreSQLStore, clock: ManualClock) -> None:
    (event,) = await store.add_events([new_event("order.placed")])
    request = ClaimRequest(bus="default", worker_id="w", token=new_token(), lease=10 * DAY)
    (claim,) = await store.claim_next_events(request)
    clock.advance(2 * DAY)
    await store.settle_events([Complete(claim.ref)])
    trail = await store.read_event_log(event.id)
    assert await store.drop_log_days(older_than=DAY) == 1
    assert await store.read_event_log(event.id) == trail
    clock.advance(DAY)
    assert await store.drop_log_days(older_than=0) >= 1
    assert await store.get_event(event.id) is None
    assert (await store.read_log()).entries == []

"""Every write updates the counts of its bus, and they equal what counting the rows gives."""

import sqlite3
from pathlib import Path

from durabus.model.claim import Claim, ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.query import Counts
from durabus.model.settlement import Complete, Fail, Settlement
from durabus.stores.sqlite.store import SQLiteStore

COUNTED = """
SELECT bus, sum(live), sum(completed), sum(completed_with_errors), sum(failed), sum(cancelled) FROM (
    SELECT bus, 1 AS live, 0 AS completed, 0 AS completed_with_errors, 0 AS failed, 0 AS cancelled FROM events
    UNION ALL SELECT bus, 0, status = 'COMPLETED', 0, 0, status = 'CANCELLED' FROM event_log WHERE completed = 1
    UNION ALL SELECT bus, 0, 0, status = 'COMPLETED_WITH_ERRORS', status = 'FAILED', 0 FROM dead_letters
) GROUP BY bus ORDER BY bus
"""


def kept(admin: sqlite3.Connection) -> list[tuple[object, ...]]:
    """Return the stored counts, which must equal the counted rows."""
    noted: list[tuple[object, ...]] = admin.execute("SELECT * FROM event_counts ORDER BY bus").fetchall()
    assert noted == admin.execute(COUNTED).fetchall()
    return noted


async def claim(store: SQLiteStore, bus: str, limit: int) -> list[Claim]:
    return await store.claim_next_events(ClaimRequest(bus=bus, worker_id="w", token=new_token(), limit=limit))


async def test_every_road_of_an_event_is_noted(store: SQLiteStore, admin: sqlite3.Connection) -> None:
    events = await store.add_events([new_event("a.b", bus=bus) for bus in ("one", "two") for _ in range(5)])
    assert kept(admin) == [("one", 5, 0, 0, 0, 0), ("two", 5, 0, 0, 0, 0)]
    await store.add_events([new_event("a.b", bus="two", event_id=events[0].event_id)])  # known: nothing new
    first, second = await claim(store, "one", 5), await claim(store, "two", 4)
    both: list[Settlement] = [Complete(one.ref) for one in (*first[:3], *second[:2])]
    await store.settle_events([*both, Fail(first[3].ref, "no", None), Complete(first[4].ref, (), ("so",))])
    await store.settle_events([Complete(second[2].ref, (), (), None, 200), Complete(second[3].ref)])
    await store.settle_events(both)  # a repeat
    assert kept(admin) == [("one", 0, 3, 1, 1, 0), ("two", 1, 4, 0, 0, 0)]
    assert await store.counts("one") == Counts(completed=3, completed_with_errors=1, failed=1)
    await store.requeue_dead_letters([first[3].event.id])
    assert kept(admin) == [("one", 1, 3, 1, 0, 0), ("two", 1, 4, 0, 0, 0)]
    await store.remove_event(second[0].event.id)
    await store.remove_event(events[9].id)
    assert await store.cleanup_excess_events("one", keep=1) == 2
    assert kept(admin) == [("one", 1, 1, 1, 0, 0), ("two", 0, 3, 0, 0, 0)]
    await store.cancel_event(first[3].event.id, reason="not wanted")
    assert kept(admin) == [("one", 0, 1, 1, 0, 1), ("two", 0, 3, 0, 0, 0)]
    assert await store.cleanup_excess_events("one", keep=0) == 2
    assert kept(admin) == [("one", 0, 0, 1, 0, 0), ("two", 0, 3, 0, 0, 0)]


async def test_a_bus_without_events_has_no_row(store: SQLiteStore, admin: sqlite3.Connection) -> None:
    await store.add_events([new_event("a.b") for _ in range(4)])
    completed, failed, also_failed = await claim(store, "default", 3)
    await store.settle_events([Complete(completed.ref), *(Fail(one.ref, "no", None) for one in (failed, also_failed))])
    (pending,) = await claim(store, "default", 1)
    await store.trim_event_history("default", older_than=0)
    await store.purge_dead_letters_by_id([failed.event.id])
    await store.purge_dead_letters(created_until_ts=await store.now())
    assert kept(admin) == [("default", 1, 0, 0, 0, 0)]
    await store.remove_event(pending.event.id)
    assert kept(admin) == []


async def test_what_a_caller_rolls_back_was_never_noted(
    store: SQLiteStore, admin: sqlite3.Connection, file: Path
) -> None:
    own = sqlite3.connect(file)
    await store.add_events([new_event("a.b")], connection=own)
    own.rollback()
    own.close()
    assert kept(admin) == []
    assert await store.counts() == Counts()

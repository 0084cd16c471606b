"""What an administrator with a SQL prompt may see, do and break."""

import sqlite3
from pathlib import Path

from durabus.clock import ManualClock
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.handler import HandlerInfo
from durabus.model.settlement import Complete
from durabus.model.statuses import EventStatus
from durabus.stores.sqlite.store import SQLiteStore


def request(lease: float = 30.0) -> ClaimRequest:
    return ClaimRequest(bus="default", worker_id="host:7", token=new_token(), limit=10, lease=lease)


async def test_the_admin_queries_of_the_design_document(store: SQLiteStore, admin: sqlite3.Connection) -> None:
    await store.add_events([new_event("order.placed")])
    (claim,) = await store.claim_next_events(request())
    stuck = admin.execute(
        "SELECT id, attempts, worker_id FROM events "
        "WHERE status = 'PROCESSING' AND processing_started_at < strftime('%s', 'now') + 60"
    ).fetchall()
    assert stuck == [(claim.event.id, 1, "host:7")]
    admin.execute("UPDATE events SET status = 'PENDING' WHERE id = ?", (claim.event.id,))
    (again,) = await store.claim_next_events(request())
    assert again.event.id == claim.event.id
    assert again.event.fence == 2
    settled = await store.settle_events([Complete(claim.ref), Complete(again.ref)])
    assert isinstance(settled.outcomes[0], Exception)
    trail = admin.execute("SELECT action, status, attempt FROM event_log ORDER BY position").fetchall()
    assert trail[0] == ("PUBLISHED", "PENDING", 0)
    assert trail[-1] == ("COMPLETED", "COMPLETED", 2)


async def test_subscriptions_are_a_view(store: SQLiteStore, admin: sqlite3.Connection) -> None:
    await store.register_handlers("default", "n1", [HandlerInfo(handler_id="mail", pattern="user.*")], kept_for=None)
    rows = admin.execute("SELECT id, event_type FROM subscriptions").fetchall()
    assert rows == [("mail", "user.*")]


async def test_a_damaged_payload_can_still_be_claimed_and_settled(
    store: SQLiteStore, admin: sqlite3.Connection
) -> None:
    await store.add_events([new_event("order.placed", {"id": n}) for n in range(3)])
    admin.execute("UPDATE events SET payload = '{\"id\":' WHERE id = 1")
    admin.execute("UPDATE events SET payload = CAST(x'ff00fe' AS TEXT) WHERE id = 2")
    claims = await store.claim_next_events(request())
    assert [claim.event.id for claim in claims] == [1, 2, 3]
    assert claims[0].event.payload_json == '{"id":'
    assert claims[1].event.payload_json == "\ufffd\x00\ufffd"
    assert claims[2].event.payload == {"id": 2}
    await store.settle_events([Complete(claim.ref) for claim in claims])
    done = await store.get_event(2)
    assert done is not None
    assert done.status is EventStatus.COMPLETED


async def test_a_clock_that_is_set_back_does_not_make_leases_younger(file: Path) -> None:
    clock = ManualClock()
    store = SQLiteStore.from_url(f"sqlite:///{file}", clock)
    await store.open()
    await store.add_events([new_event("order.placed")])
    clock.advance(-3600)
    (claim,) = await store.claim_next_events(request())
    assert claim.event.picked_ts == claim.event.created_ts
    assert await store.now() == claim.event.created_ts
    await store.close()


async def test_ids_and_positions_are_never_given_twice(store: SQLiteStore) -> None:
    for expected in (1, 2, 3):
        (event,) = await store.add_events([new_event("order.placed")])
        assert event.id == expected
        (claim,) = await store.claim_next_events(request())
        await store.settle_events([Complete(claim.ref)])
        head = await store.log_head()
        assert int(head) == 3 * expected
        assert await store.cleanup_excess_events("default", keep=0) == 1
        assert await store.log_head() == ""
    (event,) = await store.add_events([new_event("order.placed")])
    assert await store.remove_event(event.id)
    assert (await store.add_events([new_event("order.placed")]))[0].id == 5


async def test_completed_events_survive_reopening(file: Path) -> None:
    store = SQLiteStore.from_url(f"sqlite:///{file}")
    await store.open()
    (event,) = await store.add_events([new_event("order.placed", {"id": 7}, metadata={"a": 1}, tags=["eu"])])
    (claim,) = await store.claim_next_events(request())
    await store.settle_events([Complete(claim.ref)])
    before = await store.get_event(event.id)
    await store.close()
    again = SQLiteStore.from_url(f"sqlite:///{file}")
    await again.open()
    assert await again.get_event(event.event_id) == before
    assert {path.name for path in file.parent.iterdir()} >= {"bus.db", "bus.db-durabus.lock"}
    await again.close()
    assert {path.name for path in file.parent.iterdir()} == {"bus.db", "bus.db-durabus.lock"}

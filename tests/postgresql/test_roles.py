"""The roles of roles.sql can do what they are for, and nothing else."""

from collections.abc import AsyncIterator
from importlib.resources import files
from urllib.parse import urlsplit

import psycopg
import pytest

from durabus.errors import StoreError
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.handler import HandlerInfo
from durabus.model.settlement import Complete, Fail
from durabus.stores.postgresql import log
from durabus.stores.postgresql.store import PostgreSQLStore

ROLES = files("durabus.stores.postgresql").joinpath("roles.sql").read_text()


@pytest.fixture
async def roles(
    store: PostgreSQLStore, schema: str, url: str, admin: psycopg.Connection
) -> AsyncIterator[dict[str, PostgreSQLStore]]:
    admin.execute(ROLES.replace("SCHEMA durabus", f"SCHEMA {schema}").replace("= durabus;", f"= {schema};"))
    stores: dict[str, PostgreSQLStore] = {}
    parts = urlsplit(url)
    for role in ("publisher", "worker", "reader"):
        admin.execute(f"DROP USER IF EXISTS some_{role}")
        admin.execute(f"CREATE USER some_{role} PASSWORD 'x' IN ROLE durabus_{role}")
        stores[role] = PostgreSQLStore.from_url(url.replace(f"{parts.username}:{parts.password}", f"some_{role}:x"))
        await stores[role].open()
    yield stores
    for role, opened in stores.items():
        await opened.close()
        admin.execute(f"DROP USER some_{role}")
    admin.execute("DROP OWNED BY durabus_publisher, durabus_worker, durabus_reader")
    admin.execute("DROP ROLE durabus_publisher, durabus_worker, durabus_reader")


def request() -> ClaimRequest:
    return ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=10)


async def test_a_publisher_publishes_and_claims_nothing(roles: dict[str, PostgreSQLStore]) -> None:
    publisher = roles["publisher"]
    new = [new_event("a", tags=["eu"], priority=1), new_event("b", idempotency_key="k")]
    events = await publisher.add_events(new)
    assert await publisher.add_events(new) == events
    assert await publisher.add_events([new_event("c")]) != []
    with pytest.raises(StoreError, match=r"may not do that.*roles\.sql"):
        await publisher.claim_next_events(request())
    with pytest.raises(StoreError, match="may not do that"):
        await publisher.remove_event(events[0].id)


async def test_a_worker_does_everything_a_bus_needs(roles: dict[str, PostgreSQLStore]) -> None:
    worker = roles["worker"]
    await worker.register_handlers("default", "n", [HandlerInfo(handler_id="h", pattern="*")], kept_for=30.0)
    await roles["publisher"].add_events([new_event("a"), new_event("b"), new_event("c")])
    one, two, _ = await worker.claim_next_events(request())
    await worker.settle_events([Complete(one.ref)], then_claim=request())
    await worker.settle_events([Fail(two.ref, "no", None)])
    await worker.requeue_dead_letters([two.event.id])
    lock = await worker.claim_lock("report", worker_id="w", token=new_token(), lease=30.0)
    assert lock
    await worker.save_position("report", await worker.log_head(), lock=lock)
    assert await worker.trim_event_history("default", older_than=0) == 1
    assert (await worker.counts()).processing == 1
    for _ in range(600):
        await worker.now()  # enough calls for the upkeep that comes along with them
    with pytest.raises(StoreError, match=r"may not do that|must be owner"):
        await worker.drop_log_days(older_than=-10 * 86_400)


async def test_a_reader_reads_everything_and_writes_nothing(roles: dict[str, PostgreSQLStore]) -> None:
    reader = roles["reader"]
    (event,) = await roles["publisher"].add_events([new_event("a")])
    assert await reader.get_event(event.id) == event
    assert len((await reader.read_log()).entries) == 1
    assert (await reader.counts()).pending == 1
    assert await reader.list_locks() == []
    assert (await reader.list_handlers("default")).handlers == []
    assert await reader.wait_for_work("default", timeout=5.0)
    for call in (
        reader.add_events([new_event("b")]),
        reader.claim_next_events(request()),
        reader.remove_event(event.id),
    ):
        with pytest.raises(StoreError, match="may not do that"):
            await call


async def test_a_reader_role_sees_which_session_holds_the_log_back(
    roles: dict[str, PostgreSQLStore], admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The role sees little of other sessions, but their pids and application names."""
    monkeypatch.setattr(log, "HELD_AFTER", 0.0)
    with admin.transaction():
        admin.execute("SET application_name = 'reports'; SELECT pg_current_xact_id()")
        await roles["publisher"].add_events([new_event("a")])
        hold = await roles["reader"].log_hold()
        assert hold is not None
        assert (hold.pid, hold.application, hold.age) == (admin.info.backend_pid, "reports", hold.waiting)

"""What the store knows of workers (live, late or gone) and of handlers (closed, failing or open)."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.api.support import Desk
from tests.dashboard.shop import Till, make_dead_letters, open_bus, publish

from durabus import EventStore, ManualClock, open_store
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.handler import HandlerInfo
from durabus.views.activity import WorkerSeen
from durabus.views.workers import workers_of

BUS = "default"
NOW = 1_000.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/bus.db"


@pytest.fixture
async def desk(url: str) -> AsyncIterator[Desk]:
    store = await open_store(url)
    async with Desk(store, ManualClock()) as made:
        yield made
    await store.close()


def breaker_of(page: str, handler: str) -> str:
    row = page.partition(f"<code>{handler}</code>")[2].partition("</tr>")[0]
    found = re.search(r"breaker-(\w+)", row)
    return found[1] if found else "not there"


async def test_a_handler_that_fails_on_everything_is_shown_as_open(desk: Desk, url: str) -> None:
    till = Till()
    async with open_bus(url, BUS, till) as bus:
        bus.subscribe("payment.*", lambda _event: None, id="till.file")
        await publish(desk.store, BUS, 6)
        page = ""
        while breaker_of(page, "till.take") != "open":
            page = (await desk.get("/dashboard/handlers")).text
    assert breaker_of(page, "till.file") == "closed"
    assert "drawer is stuck at order" in page


def test_workers_are_live_late_or_gone() -> None:
    seen = {
        "host:1": WorkerSeen(NOW - 5),
        "host:2": WorkerSeen(NOW - 60),
        "host:3": WorkerSeen(NOW - 300),
        "host:4": WorkerSeen(NOW - 3_000),
    }
    workers = {worker.worker_id: worker for worker in workers_of(NOW, [], [], seen)}
    assert [workers[f"host:{n}"].state for n in (1, 2, 3, 4)] == ["live", "late", "gone", "gone"]
    assert [workers[f"host:{n}"].hidden for n in (1, 2, 3, 4)] == [False, False, False, True]


def test_an_idle_worker_that_announces_its_handlers_is_live() -> None:
    announced = [HandlerInfo(handler_id="h", pattern="*", node="host:1:abcd1234", last_seen_ts=NOW - 8)]
    (worker,) = workers_of(NOW, [], announced, {"host:1": WorkerSeen(NOW - 500)})
    assert (worker.worker_id, worker.state, worker.handlers) == ("host:1", "live", 1)


async def test_a_worker_that_let_its_lease_go_by_is_late_however_recently_it_spoke() -> None:
    clock = ManualClock()
    store: EventStore = await open_store("memory://", clock=clock)
    await publish(store, BUS, 2)
    claims = await store.claim_next_events(
        ClaimRequest(bus=BUS, worker_id="host:1", token=new_token(), lease=10, limit=2)
    )
    await store.renew_event_claims([claims[0].ref], lease=600)
    events = [event for claim in claims if (event := await store.get_event(claim.event.id)) is not None]
    (worker,) = workers_of(clock.now() + 5, events, [], {})
    assert (worker.state, worker.overdue) == ("live", 0)
    (worker,) = workers_of(clock.now() + 11, events, [], {})
    assert (worker.state, worker.overdue, len(worker.held)) == ("late", 1, 2)
    await store.close()


async def test_many_purges_have_to_be_typed(desk: Desk) -> None:
    await publish(desk.store, BUS, 1_001)
    await make_dead_letters(desk.store, BUS)
    await make_dead_letters(desk.store, BUS)
    page = (await desk.get("/dashboard/dead-letters/confirm?operation=purge")).text
    assert "Purge 1,001 dead letters?" in page
    assert 'name="typed" required pattern="purge"' in page
    form = {"operation": "purge", "number": "1001"}
    home = {"Origin": "http://127.0.0.1", "Accept": "application/json"}
    refused = await desk.http.post("/dashboard/dead-letters/step", data=form, headers=home)
    assert refused.status_code == 400
    assert "nothing was deleted" in refused.json()["detail"]
    assert (await desk.store.counts()).failed == 1_001
    taken = await desk.http.post("/dashboard/dead-letters/step", data={**form, "typed": "purge"}, headers=home)
    assert taken.json()["done"] == 1_001 - (await desk.store.counts()).failed


async def test_without_the_script_a_person_presses_on(desk: Desk) -> None:
    await publish(desk.store, BUS, 700)
    await make_dead_letters(desk.store, BUS)
    home = {"Origin": "http://127.0.0.1"}
    page = (await desk.http.post("/dashboard/dead-letters/step", data={"operation": "retry"}, headers=home)).text
    assert "<h1>600 retried</h1>" in page
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', page))
    page = (await desk.http.post("/dashboard/dead-letters/step", data=fields, headers=home)).text
    assert "<h1>700 retried</h1>" in page
    assert "Continue" not in page
    assert (await desk.store.counts()).pending == 700


async def test_a_handler_that_no_live_node_has_is_missing_on_the_page_and_in_the_metrics(url: str) -> None:
    clock = ManualClock()
    store = await open_store(url, clock=clock)
    for node, seconds in (("web-1:42:ab", 60.0), ("web-2:43:cd", 0.0)):
        handler = HandlerInfo(handler_id=f"on.{node[:5]}", pattern="*")
        await store.register_handlers(BUS, node, [handler], kept_for=None)
        clock.advance(seconds)
    async with Desk(store, clock) as desk:
        page = (await desk.get("/dashboard/handlers")).text
        metrics = (await desk.get("/metrics")).text
    await store.close()
    gone, alive = (page.partition(f"<code>on.{name}</code>")[2].partition("</tr>")[0] for name in ("web-1", "web-2"))
    assert ("missing" in gone, "missing" in alive) == (True, False)
    assert "durabus handlers forget" in page
    assert 'durabus_handlers_missing{bus="default"} 1.0' in metrics

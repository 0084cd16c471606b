"""``durabus worker`` and a server look after the store with the same services."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import ModuleType
from typing import Any

import pytest

from durabus import Event, EventBus, EventStore, ManualClock, new_event, open_store
from durabus.cli.worker import worker
from durabus.errors import ConfigurationError, StoreUnavailableError
from durabus.http import Settings, create_app
from durabus.maintenance import services
from durabus.maintenance.services import (
    Expiry,
    HorizonWatch,
    Maintenance,
    MaintenanceService,
    Partitions,
    Retention,
)
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.log_entry import LogHold
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete
from durabus.model.statuses import EventStatus, ResultStatus

OFTEN = 0.001


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[EventStore]:
    opened = await open_store("memory://", clock=clock)
    yield opened
    await opened.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000.0)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "EVERY", OFTEN)
    monkeypatch.setattr(services, "PARTITIONS_EVERY", OFTEN)


async def ignore(_event: Event) -> None:
    """Handle an event: do nothing. A bus without a handler has no worker."""


@asynccontextmanager
async def worker_command(store: EventStore) -> AsyncIterator[None]:
    module: Any = ModuleType("maintained")
    module.bus = EventBus(store, name="here")
    module.bus.subscribe("x", ignore)
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, module.__name__, module)
        command = asyncio.create_task(worker("maintained:bus"))
        yield
        command.cancel()
        await asyncio.gather(command, return_exceptions=True)


@asynccontextmanager
async def server(store: EventStore) -> AsyncIterator[None]:
    app = create_app(store, settings=Settings(bus="here", scan_every=OFTEN))
    await app.api.begin()
    yield
    await app.close()


RUNNERS = pytest.mark.parametrize("runner", [worker_command, server])


async def lose(store: EventStore, clock: ManualClock) -> int:
    """Store an event of another bus whose worker is gone."""
    (event,) = await store.add_events([new_event("a", bus="elsewhere")])
    await store.claim_next_events(ClaimRequest(bus="elsewhere", worker_id="host:1", token=new_token(), lease=60.0))
    clock.advance(61)
    return event.id


@RUNNERS
async def test_each_runner_returns_orphans_of_other_buses(
    store: EventStore, clock: ManualClock, runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_, found, look = await lose(store, clock), asyncio.Event(), store.expire_events

    async def look_and_tell(**options: Any) -> int:
        taken = await look(**options)
        if taken:
            found.set()
        return taken

    monkeypatch.setattr(store, "expire_events", look_and_tell)
    running: AbstractAsyncContextManager[None] = runner(store)
    async with asyncio.timeout(10), running:
        await found.wait()
    event = await store.get_event(id_)
    assert event is not None
    assert event.status is EventStatus.PENDING


@RUNNERS
async def test_each_runner_watches_the_horizon_of_the_log(
    store: EventStore, runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def log_hold() -> LogHold | None:
        asked.set()
        return None

    monkeypatch.setattr(store, "log_hold", log_hold)
    running: AbstractAsyncContextManager[None] = runner(store)
    async with asyncio.timeout(10), running:
        await asked.wait()


@RUNNERS
async def test_each_runner_makes_log_partitions(
    store: EventStore, runner: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "durabus.maintenance")
    missing, passes = 8, 0
    ready = asyncio.Event()

    async def make_log_partitions() -> int:
        nonlocal missing, passes
        made, missing, passes = missing, 0, passes + 1
        if passes > 1:
            ready.set()
        return made

    monkeypatch.setattr(store, "make_log_partitions", make_log_partitions)
    running: AbstractAsyncContextManager[None] = runner(store)
    async with asyncio.timeout(10), running:
        await ready.wait()
    assert [text for text in caplog.messages if "partitions" in text] == ["log partitions made: 8"]


@RUNNERS
async def test_no_runner_deletes_the_results_of_completed_events(
    store: EventStore, clock: ManualClock, runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (event,) = await store.add_events([new_event("a", bus="elsewhere")])
    request = ClaimRequest(bus="elsewhere", worker_id="host:1", token=new_token(), lease=60.0)
    (claim,) = await store.claim_next_events(request)
    result = HandlerResult(handler_id="h", status=ResultStatus.SUCCEEDED, value_json="7")
    await store.settle_events([Complete(claim.ref, (result,))])
    clock.advance(86_400)
    passes, looked = 0, asyncio.Event()

    async def log_hold() -> LogHold | None:
        nonlocal passes
        passes += 1
        if passes == 3:
            looked.set()
        return None

    monkeypatch.setattr(store, "log_hold", log_hold)
    running: AbstractAsyncContextManager[None] = runner(store)
    async with asyncio.timeout(10), running:
        await looked.wait()
    assert await store.list_results(event.id) == [result]


@pytest.mark.parametrize("kind", [Expiry, HorizonWatch, Partitions, Retention])
async def test_a_service_stops_before_its_start_and_as_often_as_it_is_asked(
    store: EventStore, kind: type[MaintenanceService]
) -> None:
    before = asyncio.all_tasks()
    service = kind(store)
    await service.stop()
    service.start()
    task = service.task
    service.start()
    assert service.task is task
    await service.stop()
    await service.stop()
    assert asyncio.all_tasks() == before
    await service.run_once()


@pytest.mark.parametrize("every", [0, -1.0, float("nan"), "often"])
async def test_an_interval_must_be_a_positive_duration(store: EventStore, every: Any) -> None:
    with pytest.raises(ConfigurationError, match="every="):
        Partitions(store, every=every)


@RUNNERS
async def test_nothing_runs_after_the_end(store: EventStore, runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before, begun = asyncio.all_tasks(), asyncio.Event()

    async def log_hold() -> LogHold | None:
        begun.set()
        await asyncio.Event().wait()
        return None

    monkeypatch.setattr(store, "log_hold", log_hold)
    async with asyncio.timeout(10), runner(store):
        await begun.wait()
    assert asyncio.all_tasks() == before


async def test_services_of_one_store_object_share_their_passes(
    store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = 0

    async def expire_events(**_options: Any) -> int:
        nonlocal passes
        passes += 1
        return 0

    monkeypatch.setattr(store, "expire_events", expire_events)
    now = 100.0
    monkeypatch.setattr(services, "monotonic", lambda: now)
    many = [Expiry(store, every=10.0) for _ in range(5)]
    due = [service._is_due() for service in many]
    assert due == [True, False, False, False, False]
    assert HorizonWatch(store, every=10.0)._is_due()
    now += 10.0
    assert [service._is_due() for service in many] == due


async def test_a_service_goes_on_after_any_failure_and_ends_with_its_store(
    store: EventStore, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[Exception] = [StoreUnavailableError("away"), RuntimeError("a bug")]

    class Fragile(MaintenanceService):
        doing = "a chore"

        async def run_once(self) -> None:
            if failures:
                raise failures.pop()
            await self._store.close()
            await self._store.now()

    service = Fragile(store, every=OFTEN)
    service.start()
    assert service.task is not None
    async with asyncio.timeout(10):
        await service.task
    await service.stop()
    await service.stop()
    (line,) = caplog.records
    assert line.getMessage() == "the maintenance of the store fails for 0.0 s now, trying again: a bug"
    assert line.exc_info is not None


async def test_all_services_of_a_store_that_is_away_share_one_line(
    store: EventStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, over = asyncio.Event(), asyncio.Event()
    asked: list[str] = []

    def away(name: str) -> Any:
        async def call(**_options: Any) -> None:
            asked.append(name)
            if over.is_set():
                return
            if len(asked) > 10 and len(set(asked)) == 2:
                failed.set()
            raise StoreUnavailableError("connection refused")

        return call

    for name in ("expire_events", "log_hold"):
        monkeypatch.setattr(store, name, away(name))
    services_of_store = Maintenance(store)
    services_of_store.start()
    async with asyncio.timeout(10):
        await failed.wait()
        (line,) = caplog.records
        assert line.getMessage().startswith("the maintenance of the store fails for 0.0 s now")
        caplog.clear()
        caplog.set_level("INFO", "durabus.maintenance")
        over.set()
        while not caplog.records:  # noqa: ASYNC110  (the next pass of each makes it)
            await asyncio.sleep(OFTEN)
    await services_of_store.stop()
    assert "the maintenance of the store fails no longer" in caplog.text

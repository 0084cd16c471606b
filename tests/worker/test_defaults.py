"""What a bus, a queue and a manager ask of their store with default options."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from durabus import Event, EventBus, EventManager, EventQueue
from durabus.model.claim import Claim, ClaimRequest
from durabus.model.handler import HandlerInfo
from durabus.stores.memory.store import MemoryStore
from durabus.worker.worker import Worker


class AskedStore(MemoryStore):
    """Remembers the durations that callers asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.leases: list[float] = []
        self.waits: list[float] = []
        self.kept_for: list[float | None] = []
        self.archived_after: list[float] = []
        self.waited = asyncio.Event()

    async def claim_next_events(self, request: ClaimRequest) -> list[Claim]:
        self.leases.append(request.lease)
        return await super().claim_next_events(request)

    async def wait_for_work(self, bus: str, *, timeout: float) -> bool:  # noqa: ASYNC109  (as the contract has it)
        if bus == "default":  # not the bus with the states of its schedules
            self.waits.append(timeout)
            self.waited.set()
        return await super().wait_for_work(bus, timeout=timeout)

    async def register_handlers(
        self, bus: str, node: str, handlers: Sequence[HandlerInfo], *, kept_for: float | None
    ) -> None:
        self.kept_for.append(kept_for)
        await super().register_handlers(bus, node, handlers, kept_for=kept_for)

    async def archive_buses(self, *, stopped_for: float, limit: int = 1000) -> int:
        self.archived_after.append(stopped_for)
        return await super().archive_buses(stopped_for=stopped_for, limit=limit)


async def handle(event: Event) -> None:
    pass


async def test_a_subscription_without_a_timeout_of_its_own_has_thirty_seconds() -> None:
    bus = EventBus(MemoryStore())
    bus.subscribe("user.*", handle)
    bus.on("order.*")(handle)
    bus.subscribe("never", handle, timeout=None)
    assert [handler.timeout for handler in bus._dispatcher.handlers] == [30.0, 30.0, None]


async def test_a_bus_claims_for_thirty_seconds_and_looks_again_after_one() -> None:
    store = AskedStore()
    async with EventBus(store) as bus:
        bus.subscribe("user.*", handle)
        await bus.publish("user.created")
        await store.waited.wait()
    assert set(store.leases) == {30.0}
    assert all(0.75 <= seconds <= 1.0 for seconds in store.waits)


async def test_a_bus_asks_that_its_handlers_be_remembered_for_five_minutes() -> None:
    store = AskedStore()
    bus = EventBus(store)
    bus.subscribe("user.*", handle)
    await bus.start()
    assert store.kept_for == [300.0]
    await bus.shutdown()


async def test_a_bus_that_no_node_serves_any_more_is_remembered_for_a_day() -> None:
    store = AskedStore()
    async with EventBus(store) as bus:
        bus.subscribe("user.*", handle)
    assert store.archived_after == [86_400.0]


@pytest.mark.parametrize(("asked", "given"), [({}, 30.0), ({"shutdown_timeout": 7}, 7.0)])
async def test_a_shutdown_gives_handlers_thirty_seconds(
    asked: dict[str, Any], given: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []
    stop = Worker.stop

    async def noted(worker: Worker, timeout: float) -> None:  # noqa: ASYNC109  (passed on)
        limits.append(timeout)
        await stop(worker, timeout)

    monkeypatch.setattr(Worker, "stop", noted)
    async with EventBus(MemoryStore(), **asked) as bus:
        bus.subscribe("user.*", handle)
    assert limits == [given]


@pytest.mark.parametrize(("asked", "given"), [({}, 0.1), ({"poll_delay": 8}, 8.0)])
async def test_a_manager_polls_ten_times_a_second_or_as_often_as_configured(
    asked: dict[str, Any], given: float
) -> None:
    store = AskedStore()
    manager = EventManager(EventQueue(store), **asked)
    manager.register("user.created", "one", handle)
    loop = asyncio.create_task(manager.run_process_loop())
    await store.waited.wait()
    manager.stop()
    await loop
    assert all(0.75 * given <= seconds <= given for seconds in store.waits)


async def test_a_manager_that_is_stopped_gives_handlers_thirty_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    stop = Worker.stop

    async def noted(worker: Worker, timeout: float) -> None:  # noqa: ASYNC109  (passed on)
        limits.append(timeout)
        await stop(worker, timeout)

    monkeypatch.setattr(Worker, "stop", noted)
    manager = EventManager(EventQueue(MemoryStore()))
    manager.stop()
    await manager.run_process_loop()
    assert limits == [30.0]


async def test_a_queue_and_its_manager_claim_for_a_minute() -> None:
    store = AskedStore()
    queue = EventQueue(store)
    await queue.publish("user.created")
    await queue.poll()
    manager = EventManager(queue)
    manager.register("user.created", "one", handle)
    await queue.publish("user.created")
    loop = asyncio.create_task(manager.run_process_loop())
    await store.waited.wait()
    manager.stop()
    await loop
    assert set(store.leases) == {60.0}

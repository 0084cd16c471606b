"""The store learns of a handler's success while the other handlers of its event still run."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.runtime.conftest import MakeBus

from durabus import Context, Event, EventStatus, EventStore, HandlerResult, ResultStatus, StoreError
from durabus.errors import LeaseLost
from durabus.model.result import first_success
from durabus.model.settlement import Keep


class Recorded:
    """Records what is kept, and may fail before it is."""

    def __init__(self, store: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self._keep = store.keep_results
        self.kept: list[Keep] = []
        self.any = asyncio.Event()
        self.fail = 0
        monkeypatch.setattr(store, "keep_results", self)

    async def __call__(self, kept: Sequence[Keep]) -> list[LeaseLost | None]:
        if self.fail:
            self.fail -= 1
            raise StoreError("the store is away")
        outcomes = await self._keep(kept)
        self.kept += kept
        self.any.set()
        return outcomes

    @property
    def ids(self) -> list[str]:
        return [result.handler_id for keep in self.kept for result in keep.results]


@pytest.fixture
def recorded(store: EventStore, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return Recorded(store, monkeypatch)


async def results_of(store: EventStore, event_id: str) -> dict[str, ResultStatus]:
    return {result.handler_id: result.status for result in await store.list_results(event_id)}


@pytest.mark.parametrize("handler_mode", ["serial", "parallel"])
async def test_the_store_knows_a_success_while_the_next_handler_runs(
    make_bus: MakeBus, store: EventStore, recorded: Recorded, handler_mode: str
) -> None:
    bus, go_on = make_bus(handler_mode=handler_mode), asyncio.Event()
    seen: list[HandlerResult] = []

    @bus.on("order.placed", id="first")
    async def first(event: Event) -> str:
        return "done"

    @bus.on("order.placed", id="second")
    async def second(event: Event) -> None:
        async with asyncio.timeout(20):
            while not seen:
                seen.extend(result for result in await store.list_results(event.id) if result.handler_id == "first")
                await asyncio.sleep(0.005)
        go_on.set()

    event_id = await bus.publish("order.placed")
    assert go_on.is_set()
    assert (seen[0].status, seen[0].value) == (ResultStatus.SUCCEEDED, "done")
    assert recorded.ids == ["first"]
    results = (await store.read_event_log(event_id))[-1].results
    assert sorted(result.handler_id for result in results) == ["first", "second"]


async def test_a_success_that_the_store_refused_is_written_again_while_the_next_handler_runs(
    make_bus: MakeBus, store: EventStore, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("durabus.worker.progress.PAUSE", 0.01)
    bus, recorded.fail = make_bus(), 2
    known: list[dict[str, ResultStatus]] = []

    @bus.on("order.placed", id="first")
    async def first(event: Event, ctx: Context) -> None:
        ctx.emit("child")

    @bus.on("order.placed", id="second")
    async def second(event: Event) -> None:
        await asyncio.wait_for(recorded.any.wait(), 5)
        known.append(await results_of(store, event.event_id))

    await bus.publish("order.placed")
    assert known == [{"first": ResultStatus.SUCCEEDED}]
    assert recorded.ids == ["first"]
    assert recorded.fail == 0


@pytest.mark.parametrize("url", ["memory"], indirect=True)
async def test_nothing_is_written_again_after_the_event_has_ended(
    make_bus: MakeBus, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("durabus.worker.progress.PAUSE", 0.01)
    bus, recorded.fail = make_bus(), 1

    @bus.on("order.placed", id="first")
    async def first(event: Event) -> None: ...

    @bus.on("order.placed", id="second")
    async def second(event: Event) -> None:
        async with asyncio.timeout(10):
            while recorded.fail:  # noqa: ASYNC110  (a failed write has no signal for a test)
                await asyncio.sleep(0)

    await bus.publish("order.placed")
    await asyncio.sleep(0.05)
    assert recorded.kept == []


async def test_the_log_shows_a_single_success_that_stores_no_result(make_bus: MakeBus, store: EventStore) -> None:
    bus = make_bus()

    @bus.on("order.placed", id="ship")
    async def ship(event: Event) -> None:
        return

    event_id = await bus.publish("order.placed")
    end = (await store.read_event_log(event_id))[-1]
    assert end.results == (first_success("ship", end.execution_time_ms),)
    assert end.execution_time_ms is not None
    assert await store.list_results(event_id) == []


async def test_an_event_that_ends_soon_keeps_nothing_before(
    make_bus: MakeBus, store: EventStore, recorded: Recorded
) -> None:
    bus = make_bus()
    for name in ("first", "second", "third"):

        @bus.on("order.placed", id=name)
        async def quick(event: Event) -> None: ...

    event_id = await bus.publish("order.placed")
    assert recorded.kept == []
    event = await store.get_event(event_id)
    assert event is not None
    assert event.status is EventStatus.COMPLETED


async def test_strict_results_are_stored_before_the_next_handler_begins(
    make_bus: MakeBus, store: EventStore, recorded: Recorded
) -> None:
    bus, before = make_bus(results="strict"), []

    @bus.on("order.placed", id="first")
    async def first(event: Event) -> None: ...

    @bus.on("order.placed", id="second")
    async def second(event: Event) -> None:
        before.append(await results_of(store, event.event_id))

    await bus.publish("order.placed")
    assert before == [{"first": ResultStatus.SUCCEEDED}]
    assert recorded.ids == ["first"]


async def test_a_success_is_kept_together_with_its_children(
    make_bus: MakeBus, store: EventStore, recorded: Recorded
) -> None:
    """A crash after that does not repeat the handler, so its child must not be lost."""
    bus, found = make_bus(), []

    @bus.on("order.placed", id="first")
    async def first(event: Event, ctx: Context) -> None:
        ctx.emit("child")

    @bus.on("order.placed", id="second")
    async def second(event: Event) -> None:
        before = await bus.find("child")
        await asyncio.wait_for(recorded.any.wait(), 20)
        found.extend([before, await bus.find("child")])

    @bus.on("child", id="child")
    async def child(event: Event) -> None: ...

    event_id = await bus.publish("order.placed")
    assert recorded.ids[0] == "first"
    assert found[0] is None
    assert found[1] is not None
    event = await store.get_event(event_id)
    assert event is not None
    assert event.errors == ()


async def test_a_step_waits_for_a_store_that_fails(make_bus: MakeBus, recorded: Recorded) -> None:
    bus = make_bus()
    calls: list[int] = []
    recorded.fail = 1

    @bus.on("job", id="job")
    async def job(event: Event, ctx: Context) -> None:
        await ctx.step("charge", calls.append, 1)

    await bus.publish("job")
    assert calls == [1]
    assert recorded.ids == ["job > charge"]

"""Chains of children that would go on for ever end at ``max_depth``, with an error that names them."""

import asyncio
from typing import Any

import pytest
from tests.runtime.conftest import MakeBus

from durabus import (
    ConfigurationError,
    Context,
    DLQInspector,
    Event,
    EventBus,
    EventFailed,
    EventQuery,
    EventStatus,
    EventStore,
    InvalidEventError,
    MaxDepthError,
)

PATIENT = {"max_retries": 3, "base_delay": 0.01}


async def depths(store: EventStore) -> list[int]:
    page = await store.find(EventQuery(limit=1000))
    return sorted(event.metadata.get("event_depth", 0) for event in page.events)


@pytest.mark.parametrize("mode", ["parallel", "bus-serial"])
async def test_a_handler_that_awaits_its_own_type_for_ever_ends_at_the_fiftieth_level(
    make_bus: MakeBus, store: EventStore, mode: str
) -> None:
    bus = make_bus(mode=mode, retry=PATIENT)

    async def again(event: Event) -> None:
        await bus.publish("again")

    bus.subscribe("again", again)
    await bus.publish("again")
    assert await depths(store) == list(range(51))
    (dead,) = (await DLQInspector(store).list()).events
    assert (dead.status, dead.attempts) == (EventStatus.COMPLETED_WITH_ERRORS, 1), "no further attempt would help"
    error = dead.last_error or ""
    assert "MaxDepthError: a child 'again' would be 51 levels below the first event of its chain" in error
    assert f"max_depth is 50: … > again {dead.metadata['event_chain'][-3].split()[1]} > again " in error
    assert f"> again {dead.event_id} > again. If handlers" in error
    assert "parent_id=None" in error


@pytest.mark.parametrize("how", ["bus.emit", "ctx.emit"])
async def test_children_that_no_handler_awaits_count_too(make_bus: MakeBus, store: EventStore, how: str) -> None:
    bus = make_bus(max_depth=5)

    async def again(event: Event, ctx: Context) -> None:
        (bus.emit if how == "bus.emit" else ctx.emit)("again")

    bus.subscribe("again", again)
    await bus.start()
    async with asyncio.timeout(20):
        await bus.emit("again")
    assert await depths(store) == list(range(6))
    assert (await DLQInspector(store).list()).total == 1


async def test_a_handler_that_awaits_the_result_of_a_chain_fails_with_it_and_is_not_retried(
    make_bus: MakeBus, store: EventStore
) -> None:
    bus, errors = make_bus(max_depth=5, retry=PATIENT), []

    async def again(event: Event) -> Any:
        try:
            return await bus.emit("again").result()
        except MaxDepthError as error:
            errors.append(str(error))
            raise

    bus.subscribe("again", again)
    await bus.start()
    with pytest.raises(EventFailed, match="6 levels below the first event"):
        await bus.emit("again").result()
    assert await depths(store) == list(range(6))
    assert len(errors) == 6
    assert len(set(errors)) == 1


async def test_the_depth_holds_between_nodes_and_through_forwards(make_bus: MakeBus, store: EventStore) -> None:
    one, two = make_bus(name="one", max_depth=6), make_bus(name="two", max_depth=6)
    there = make_bus(name="two", max_depth=6)

    async def back(event: Event) -> None:
        await one.emit("ping", idempotency_key=event.event_id).stored()

    one.forward(two, "ping")
    there.subscribe("ping", back)
    for bus in (one, there):
        await bus.start()
    async with asyncio.timeout(20):
        await one.emit("ping")
    assert await depths(store) == list(range(7))
    (dead,) = (await DLQInspector(store).list()).events
    assert dead.errors[-1].count("> ping ") == 4


async def test_an_event_without_a_parent_begins_a_new_chain(make_bus: MakeBus, store: EventStore) -> None:
    bus, runs, done = make_bus(max_depth=2), [], asyncio.Event()

    async def again(event: Event) -> None:
        runs.append(event.metadata.get("event_depth", 0))
        await bus.emit("leaf", None, event.metadata).stored()
        if len(runs) == 10:
            done.set()
        else:
            # The metadata are handed on as they are, as many do.
            await bus.emit("again", None, {**event.metadata, "event_depth": 2}, parent_id=None).stored()

    bus.subscribe("again", again)
    await bus.start()
    bus.emit("again")
    await asyncio.wait_for(done.wait(), 20)
    assert runs == [0] * 10


@pytest.mark.parametrize("max_depth", [0, -1, True, 2.5, None, "50"])
def test_an_invalid_max_depth_is_refused(max_depth: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_depth="):
        EventBus("memory://", max_depth=max_depth)


async def test_metadata_that_is_no_mapping_is_refused_inside_and_outside_of_handlers(make_bus: MakeBus) -> None:
    bus, refused = make_bus(), []

    async def handler(event: Event) -> None:
        with pytest.raises(InvalidEventError, match="must be a mapping") as error:
            bus.emit("child", None, ["a", "list"])  # type: ignore[arg-type]
        refused.append(error)

    bus.subscribe("parent", handler)
    with pytest.raises(InvalidEventError, match="must be a mapping"):
        await bus.publish("parent", None, ["a", "list"])  # type: ignore[arg-type]
    await bus.publish("parent")
    assert len(refused) == 1

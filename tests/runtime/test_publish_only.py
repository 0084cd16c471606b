"""What ``publish`` does not wait for: delayed events, and the work of processes that only publish."""

import asyncio
from typing import Any

import pytest
from tests.runtime.conftest import MakeBus

from durabus import ConfigurationError, Context, Event, EventBus, EventStatus, EventStore, SyncEventBus

HOUR = 3600


async def test_publish_stores_a_delayed_event_and_does_not_wait_for_it(make_bus: MakeBus, store: EventStore) -> None:
    bus = make_bus()
    bus.subscribe("reminder", lambda event: None)
    async with asyncio.timeout(5):
        event_id = await bus.publish("reminder", delay=HOUR)
        assert await bus.wait_until_idle()
    event = await store.get_event(event_id)
    assert event is not None
    assert event.status is EventStatus.PENDING


@pytest.mark.parametrize("mode", ["parallel", "bus-serial"])
@pytest.mark.parametrize("how", ["publish", "emit", "ctx.emit"])
async def test_a_delayed_event_of_a_handler_is_no_child_and_does_not_delay_its_parent(
    make_bus: MakeBus, mode: str, how: str
) -> None:
    """The handler works as a cron job: every run publishes the next."""
    bus = make_bus(mode=mode)

    async def tick(event: Event, ctx: Context) -> None:
        if how == "publish":
            await bus.publish("tick", delay=HOUR)
        else:
            await (bus.emit if how == "emit" else ctx.emit)("tick", delay=HOUR).stored()

    bus.subscribe("tick", tick)
    async with asyncio.timeout(5):
        await bus.start()
        first = await bus.emit("tick")
    assert (first.status, first.attempts) == (EventStatus.COMPLETED, 1)
    following = await bus.find("tick", where=lambda event: event.event_id != first.event_id)
    assert following is not None
    assert (following.parent_id, following.status) == (None, EventStatus.PENDING)


async def test_a_delayed_event_with_a_parent_given_by_hand_is_its_child(make_bus: MakeBus) -> None:
    bus, ended = make_bus(), []

    async def parent(event: Event) -> None:
        await bus.publish("child", delay=0.2, parent_id=event.event_id)

    bus.subscribe("parent", parent)
    bus.subscribe("child", lambda event: ended.append(event.type))
    await bus.publish("parent")
    assert ended == ["child"]


async def test_a_bus_that_only_publishes_claims_nothing_and_announces_nothing(
    make_bus: MakeBus, store: EventStore
) -> None:
    web = make_bus(serve=False)
    web.subscribe("order.placed", lambda event: None)
    await web.start()
    web.subscribe("order.paid", lambda event: None)
    async with asyncio.timeout(5):
        event_id = await web.publish("order.placed")
    event = await store.get_event(event_id)
    assert event is not None
    assert (event.status, event.fence) == (EventStatus.PENDING, 0)
    assert (await store.list_handlers("default")).handlers == []


async def test_the_handle_of_a_bus_that_only_publishes_learns_the_end_from_the_store(make_bus: MakeBus) -> None:
    web, worker = make_bus(serve=False), make_bus()

    def handle(event: Event) -> str:
        return f"{event.type} by the worker"

    def never(event: Event) -> str:
        return "in the web process"

    web.subscribe("order.placed", never)
    worker.subscribe("order.placed", handle)
    await web.start()
    handed_over = web.emit("order.placed")
    await worker.start()
    async with asyncio.timeout(10):
        assert await handed_over.result() == "order.placed by the worker"
        assert await web.wait_until_idle()


async def test_start_may_serve_a_bus_that_was_made_to_publish_only(make_bus: MakeBus) -> None:
    bus, seen = make_bus(serve=False), []
    bus.subscribe("order.placed", lambda event: seen.append(event.payload))
    await bus.publish("order.placed", 1)
    await bus.start(serve=True)
    await bus.publish("order.placed", 2)
    assert sorted(seen) == [1, 2]


def test_a_bus_for_scripts_may_only_publish_too(url: str) -> None:
    with SyncEventBus(url, serve=False) as bus:
        bus.subscribe("order.placed", lambda event: None)
        bus.publish("order.placed")
        found = bus.find("order.placed")
    assert found is not None
    assert found.status is EventStatus.PENDING


@pytest.mark.parametrize("serve", [None, 0, "no"])
def test_serve_is_yes_or_no(serve: Any) -> None:
    with pytest.raises(ConfigurationError, match="serve="):
        EventBus("memory://", serve=serve)

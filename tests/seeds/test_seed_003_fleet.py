"""Several buses on one store: equal names share the work, other names do not meet."""

import asyncio

import pytest
from tests.seeds.support import Recorder, status_of, stored, until, until_status

from durabus import Event, EventBus, EventQueue, EventStatus, EventStore


@pytest.fixture(autouse=True)
def _short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let events for other nodes rest 0.05 s instead of 1 s."""
    monkeypatch.setattr("durabus.worker.missing_handlers.REMOTE_DELAY", 0.05)


async def announced(store: EventStore, bus: EventBus, handler_id: str) -> None:
    async def known() -> bool:
        return handler_id in [info.handler_id for info in (await store.list_handlers(bus.name)).handlers]

    await until(known)


async def test_buses_with_different_names_do_not_see_each_others_events(store: EventStore) -> None:
    orders, mail = Recorder(), Recorder()
    async with EventBus(store, name="orders") as one, EventBus(store, name="mail") as two:
        one.subscribe("*", orders)
        two.subscribe("*", mail)
        await one.publish("placed")
        await two.publish("sent")
    assert (orders.types, mail.types) == (["placed"], ["sent"])
    assert [event.bus for event in orders.events + mail.events] == ["orders", "mail"]


async def test_a_queue_and_a_bus_of_one_name_share_their_events(store: EventStore) -> None:
    handler = Recorder()
    async with EventBus(store, name="orders") as bus:
        bus.subscribe("*", handler)
        event = await EventQueue(store, bus="orders").publish("placed")
        await until_status(store, event.id, EventStatus.COMPLETED)
    assert handler.calls == 1


async def test_every_event_is_handled_by_one_node_of_a_fleet(store: EventStore) -> None:
    handled: list[int] = []

    async def handler(event: Event) -> None:
        await asyncio.sleep(0)
        handled.append(event.payload["n"])

    async with EventBus(store) as one, EventBus(store) as two:
        one.subscribe("*", handler, id="h")
        two.subscribe("*", handler, id="h")
        producer = EventQueue(store)
        for n in range(50):
            await producer.publish("placed", {"n": n})

        async def all_done() -> bool:
            return (await store.counts()).completed == 50

        await until(all_done)
    assert sorted(handled) == list(range(50))


async def test_publish_returns_when_another_node_has_handled_the_event(store: EventStore) -> None:
    there = Recorder()
    async with EventBus(store) as here, EventBus(store) as elsewhere:
        elsewhere.subscribe("b", there, id="b")
        await announced(store, elsewhere, "b")
        here.subscribe("a", Recorder(), id="a")
        async with asyncio.timeout(20):
            event_id = await here.publish("b")
        assert await status_of(store, event_id) is EventStatus.COMPLETED
    assert there.calls == 1


async def test_an_event_that_only_another_node_handles_is_not_completed_here(store: EventStore) -> None:
    here, there = Recorder(), Recorder()
    async with EventBus(store) as one:
        one.subscribe("a", here, id="a")
        async with EventBus(store) as two:
            two.subscribe("b", there, id="b")
            await announced(store, two, "b")
        # the second node is away for a moment; its handler is still known
        event = await EventQueue(store).publish("b")

        async def given_back() -> bool:
            trail = [entry.action for entry in await store.read_event_log(event.id)]
            return "RELEASED" in trail

        await until(given_back)
        assert (await stored(store, event.id)).attempts <= 1
        async with EventBus(store) as two:
            two.subscribe("b", there, id="b")
            await until_status(store, event.id, EventStatus.COMPLETED)
    assert (here.calls, there.calls) == (0, 1)


async def test_a_handler_of_a_node_that_just_joined_is_known_at_once(store: EventStore) -> None:
    there = Recorder()
    async with EventBus(store) as one:
        one.subscribe("a", Recorder(), id="a")
        await one.publish("b")  # no handler: it is done, and the first node knows all handlers
        async with EventBus(store, poll_interval=0.01) as two:
            two.subscribe("b", there, id="b")
            await announced(store, two, "b")
            event = await EventQueue(store).publish("b")
            await until_status(store, event.id, EventStatus.COMPLETED)
    assert there.calls == 1


async def test_a_handler_that_was_unsubscribed_is_not_waited_for(store: EventStore) -> None:
    async with EventBus(store) as one, EventBus(store) as two:
        two.subscribe("b", Recorder(), id="b")
        await announced(store, two, "b")
        two.unsubscribe("b")

        async def forgotten() -> bool:
            return [info.handler_id for info in (await store.list_handlers("default")).handlers] == []

        await until(forgotten)
        one.subscribe("a", Recorder(), id="a")
        event_id = await one.publish("b")
        assert await status_of(store, event_id) is EventStatus.COMPLETED


async def test_every_handler_gets_the_event_whichever_node_has_it(store: EventStore) -> None:
    mail, audit = Recorder(), Recorder()
    async with EventBus(store) as one:
        one.subscribe("order.placed", mail, id="mail")
        await announced(store, one, "mail")
        async with EventBus(store) as two:
            two.subscribe("order.placed", audit, id="audit")
            await announced(store, two, "audit")
        async with EventBus(store) as three:
            three.subscribe("order.placed", mail, id="mail")
            async with EventBus(store) as four:
                four.subscribe("order.placed", audit, id="audit")
                event = await EventQueue(store).publish("order.placed")
                await until_status(store, event.id, EventStatus.COMPLETED)
    assert (mail.calls, audit.calls) == (1, 1)


async def test_a_handler_one_node_unsubscribed_still_gets_events_from_another(store: EventStore) -> None:
    there = Recorder()
    async with EventBus(store) as one, EventBus(store, poll_interval=0.01) as two:
        for bus in (one, two):
            bus.subscribe("order.placed", there, id="mail")
            bus.subscribe("other", Recorder(), id="other")
            await announced(store, bus, "mail")
        one.unsubscribe("mail")
        await asyncio.gather(*(one.publish("order.placed") for _ in range(20)))
    assert there.calls == 20


async def test_a_wider_pattern_under_the_same_id_is_waited_for(store: EventStore) -> None:
    old, new = Recorder(), Recorder()
    async with EventBus(store) as one:
        one.subscribe("order.placed", old, id="audit")
        async with EventBus(store, poll_interval=0.01) as two:
            two.subscribe("*", new, id="audit")
            await asyncio.gather(*(two.publish("order.paid") for _ in range(20)))
    assert (old.calls, new.calls) == (0, 20)

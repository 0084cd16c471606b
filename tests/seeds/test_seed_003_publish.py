"""Seed 003: publish persists, then dispatches, and returns when dispatch is over."""

import asyncio
from uuid import UUID

import pytest
from tests.seeds.support import ONCE, QUICK, Gate, Recorder, status_of, stored, until_status

from durabus import (
    ConfigurationError,
    Event,
    EventBus,
    EventFailed,
    EventStatus,
    EventStore,
    InvalidEventError,
    InvalidPayloadError,
    ResultStatus,
    open_store,
)

EVENT_ID = "0190163d-8694-739b-aea5-966c26f8ad91"


async def test_publish_persists_the_event_before_a_handler_sees_it(store: EventStore) -> None:
    seen: list[tuple[EventStatus, object]] = []

    async def handler(event: Event) -> None:
        found = await stored(store, event.event_id)
        seen.append((found.status, found.payload))

    async with EventBus(store) as bus:
        bus.subscribe("user.created", handler)
        await bus.publish("user.created", {"id": 1})
    assert seen == [(EventStatus.PROCESSING, {"id": 1})]


async def test_publish_returns_the_event_id_of_a_completed_event(store: EventStore) -> None:
    async with EventBus(store) as bus:
        bus.subscribe("user.created", Recorder())
        event_id = await bus.publish("user.created", {"id": 1})
        assert str(UUID(event_id)) == event_id
        assert await status_of(store, event_id) is EventStatus.COMPLETED


async def test_publish_waits_until_dispatch_is_over(store: EventStore) -> None:
    gate = Gate()
    async with EventBus(store) as bus:
        bus.subscribe("user.created", gate)
        publishing = asyncio.create_task(bus.publish("user.created"))
        await gate.entered.wait()
        assert not publishing.done()
        gate.opened.set()
        await publishing


async def test_publish_waits_for_the_retries_too(store: EventStore) -> None:
    handler = Recorder(failures=2)
    async with EventBus(store, retry=QUICK) as bus:
        bus.subscribe("user.created", handler)
        event_id = await bus.publish("user.created")
        assert handler.calls == 3
        assert await status_of(store, event_id) is EventStatus.COMPLETED


async def test_publish_returns_the_id_of_an_event_that_ended_in_the_dead_letters(store: EventStore) -> None:
    async with EventBus(store, retry=ONCE) as bus:
        bus.subscribe("user.created", Recorder(failures=1))
        event_id = await bus.publish("user.created")
        assert await status_of(store, event_id) is EventStatus.FAILED


async def test_an_event_has_the_fields_of_the_document(store: EventStore) -> None:
    handler = Recorder()
    async with EventBus(store) as bus:
        bus.subscribe("user.created", handler)
        event_id = await bus.publish("user.created", {"id": 1}, metadata={"source": "web"})
    (event,) = handler.events
    assert (event.event_id, event.type, event.payload) == (event_id, "user.created", {"id": 1})
    assert (event.metadata, event.retry_count, event.last_error) == ({"source": "web"}, 0, None)
    assert event.created_at.tzinfo is not None


async def test_publish_starts_a_bus_that_was_not_started(store: EventStore) -> None:
    bus, handler = EventBus(store), Recorder()
    bus.subscribe("user.created", handler)
    await bus.publish("user.created")
    await bus.shutdown()
    assert handler.calls == 1


async def test_a_bus_opens_and_closes_the_store_of_its_url(durable_url: str) -> None:
    async with EventBus(durable_url) as bus:
        bus.subscribe("user.created", Recorder())
        event_id = await bus.publish("user.created")
    store = await open_store(durable_url)
    assert await status_of(store, event_id) is EventStatus.COMPLETED
    await store.close()


@pytest.mark.parametrize(
    "payload",
    [object(), {"a": {1, 2}}, {1: "a"}, b"raw", float("nan"), float("inf"), 2**64, [lambda: None], {"x": b"raw"}],
    ids=["object", "set", "int-key", "bytes", "nan", "inf", "2**64", "function", "nested-bytes"],
)
async def test_a_payload_that_is_not_json_is_refused_and_nothing_is_stored(store: EventStore, payload: object) -> None:
    async with EventBus(store) as bus:
        bus.subscribe("user.created", Recorder())
        with pytest.raises(InvalidPayloadError):
            await bus.publish("user.created", payload)
        with pytest.raises(InvalidPayloadError):
            bus.emit("user.created", payload)
    assert (await store.read_log()).entries == []


async def test_a_payload_that_contains_itself_is_refused(store: EventStore) -> None:
    payload: dict[str, object] = {}
    payload["me"] = payload
    async with EventBus(store) as bus:
        with pytest.raises(InvalidPayloadError):
            await bus.publish("user.created", payload)


async def test_metadata_that_is_not_json_is_refused(store: EventStore) -> None:
    async with EventBus(store) as bus:
        with pytest.raises(InvalidPayloadError, match="metadata"):
            await bus.publish("user.created", metadata={"when": object()})
    assert (await store.read_log()).entries == []


@pytest.mark.parametrize("event_type", ["", "x" * 256, "a\nb"])
async def test_an_event_type_outside_its_limits_is_refused(store: EventStore, event_type: str) -> None:
    async with EventBus(store) as bus:
        with pytest.raises(InvalidEventError, match="event type"):
            await bus.publish(event_type)
    assert (await store.read_log()).entries == []


async def test_an_event_without_a_subscription_is_done(store: EventStore) -> None:
    async with EventBus(store) as bus:
        bus.subscribe("user.*", Recorder())
        event_id = await bus.publish("order.shipped")
        assert await status_of(store, event_id) is EventStatus.COMPLETED


async def test_a_bus_without_subscriptions_stores_and_never_claims(store: EventStore) -> None:
    async with EventBus(store, poll_interval=0.01) as bus:
        event_id = await bus.publish("user.created")
        await asyncio.sleep(0.05)
    event = await stored(store, event_id)
    assert (event.status, event.fence) == (EventStatus.PENDING, 0)


async def test_a_bus_that_lost_its_last_subscription_claims_no_more(store: EventStore) -> None:
    async with EventBus(store, poll_interval=0.01) as bus:
        subscription = bus.subscribe("user.created", Recorder())
        await bus.publish("user.created")
        bus.unsubscribe(subscription)
        async with asyncio.timeout(20):
            await bus.publish("user.created")  # a claim that was sent before may take it, and gives it back
            await asyncio.sleep(0.05)
            event_id = await bus.publish("user.created")
        await asyncio.sleep(0.05)
    event = await stored(store, event_id)
    assert (event.status, event.fence) == (EventStatus.PENDING, 0)


async def test_publishing_one_event_id_twice_stores_and_handles_one_event(store: EventStore) -> None:
    handler = Recorder()
    async with EventBus(store) as bus:
        bus.subscribe("user.created", handler)
        assert await bus.publish("user.created", event_id=EVENT_ID) == EVENT_ID
        assert await bus.publish("user.created", event_id=EVENT_ID) == EVENT_ID
    assert handler.calls == 1


async def test_publishing_one_event_id_twice_at_the_same_time_returns_to_both_callers(store: EventStore) -> None:
    handler = Recorder()
    async with EventBus(store) as bus:
        bus.subscribe("user.created", handler)
        async with asyncio.timeout(20):
            both = await asyncio.gather(*(bus.publish("user.created", event_id=EVENT_ID) for _ in range(2)))
    assert both == [EVENT_ID, EVENT_ID]
    assert handler.calls == 1


async def test_publishing_a_known_idempotency_key_waits_for_the_event_that_has_it(store: EventStore) -> None:
    gate = Gate()
    async with EventBus(store) as bus:
        bus.subscribe("user.created", gate)
        first = asyncio.create_task(bus.publish("user.created", idempotency_key="k"))
        await gate.entered.wait()
        second = asyncio.create_task(bus.publish("user.created", idempotency_key="k"))
        await asyncio.sleep(0.05)
        waited = not second.done()
        gate.opened.set()
        assert await first == await second
    assert waited
    assert gate.calls == 1


async def test_an_event_with_a_delay_is_handled_when_it_is_due(store: EventStore) -> None:
    handler = Recorder()
    async with EventBus(store) as bus:
        bus.subscribe("user.created", handler)
        event = await bus.emit("user.created", delay=0.05)
        trail = await store.read_event_log(event.event_id)
    assert trail[1].at_ts - trail[0].at_ts >= 0.05


async def test_emit_returns_at_once_and_the_handle_is_awaited_for_the_end(store: EventStore) -> None:
    gate = Gate()
    async with EventBus(store) as bus:
        bus.subscribe("user.created", gate)
        handle = bus.emit("user.created", {"id": 1})
        assert not handle.done
        gate.opened.set()
        event = await handle
    assert (event.event_id, event.status) == (handle.event_id, EventStatus.COMPLETED)


async def test_stored_returns_once_the_store_has_accepted_the_event(store: EventStore) -> None:
    async with EventBus(store) as bus:
        event = await bus.emit("user.created").stored()
        assert await stored(store, event.id) == event


async def test_result_is_the_value_a_handler_returned(store: EventStore) -> None:
    async def handler(event: Event) -> dict[str, int]:
        return {"id": event.payload["id"] + 1}

    async with EventBus(store) as bus:
        bus.subscribe("user.created", handler)
        assert await bus.emit("user.created", {"id": 1}).result() == {"id": 2}


async def test_result_is_the_first_value_even_if_its_handler_succeeded_in_an_earlier_attempt(store: EventStore) -> None:
    async def handler(event: Event) -> str:
        return "first"

    async with EventBus(store, retry=QUICK) as bus:
        bus.subscribe("user.created", handler)
        bus.subscribe("user.created", Recorder(failures=1))
        assert await bus.emit("user.created").result() == "first"


async def test_result_raises_for_a_dead_letter(store: EventStore) -> None:
    async with EventBus(store, retry=ONCE) as bus:
        bus.subscribe("user.created", Recorder(failures=1))
        handle = bus.emit("user.created")
        with pytest.raises(EventFailed, match="not today") as caught:
            await handle.result()
    assert caught.value.event_id == handle.event_id
    assert caught.value.errors == ("ValueError: not today",)


async def test_results_show_what_each_handler_of_a_dead_letter_did(store: EventStore) -> None:
    async with EventBus(store, retry=ONCE) as bus:
        bus.subscribe("user.created", Recorder(), id="good")
        bus.subscribe("user.created", Recorder(failures=1), id="bad")
        results = await bus.emit("user.created").results()
    assert {r.handler_id: r.status for r in results} == {
        "good": ResultStatus.SUCCEEDED,
        "bad": ResultStatus.TRANSIENT,
    }


async def test_emit_needs_a_started_bus(store: EventStore) -> None:
    bus = EventBus(store)
    with pytest.raises(ConfigurationError, match="start"):
        bus.emit("user.created")
    await bus.shutdown()


async def test_wait_until_idle_waits_for_everything_that_was_emitted(store: EventStore) -> None:
    handler, gate = Recorder(), Gate()
    async with EventBus(store) as bus:
        bus.subscribe("quick", handler)
        bus.subscribe("slow", gate)
        for _ in range(10):
            bus.emit("quick")
        bus.emit("slow")
        assert not await bus.wait_until_idle(timeout=0.05)
        gate.opened.set()
        assert await bus.wait_until_idle(timeout=20)
    assert handler.calls == 10


async def test_an_event_that_was_emitted_survives_a_publisher_that_stops_waiting(store: EventStore) -> None:
    gate = Gate()
    async with EventBus(store) as bus:
        bus.subscribe("user.created", gate)
        publishing = asyncio.create_task(bus.publish("user.created", event_id=EVENT_ID))
        await gate.entered.wait()
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
        gate.opened.set()
        await until_status(store, EVENT_ID, EventStatus.COMPLETED)

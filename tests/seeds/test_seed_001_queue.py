"""Seed 001, first part: the EventQueue."""

import asyncio

import pytest
from tests.seeds.support import ending_of, rows, status_of

from durabus import (
    ConfigurationError,
    Event,
    EventQueue,
    EventStatus,
    EventStore,
    InvalidPayloadError,
    LeaseLost,
    ManualClock,
    UnrecoverableError,
    new_event,
)

ONE_MINUTE = 60.0


@pytest.fixture
def queue(timed_store: EventStore) -> EventQueue:
    return EventQueue(timed_store)


async def polled(queue: EventQueue) -> Event:
    event = await queue.poll()
    assert event is not None
    return event


async def test_publish_returns_the_queued_event(queue: EventQueue) -> None:
    event = await queue.publish("order.placed", {"order_id": 7}, {"source": "web"}, tags=["eu"])
    assert (event.status, event.attempts, event.type) == (EventStatus.PENDING, 0, "order.placed")
    assert (event.payload, event.metadata, event.tags) == ({"order_id": 7}, {"source": "web"}, ("eu",))


async def test_ids_grow_in_the_order_of_publishing(queue: EventQueue) -> None:
    ids = [(await queue.publish("order.placed")).id for _ in range(5)]
    assert ids == sorted(set(ids))


async def test_a_batch_is_published_in_one_step(queue: EventQueue) -> None:
    events = await queue.publish_batch([new_event("order.placed", {"n": n}) for n in range(3)])
    assert [event.payload["n"] for event in events] == [0, 1, 2]
    assert (await queue.store.counts()).pending == 3


async def test_a_batch_for_another_bus_is_refused_whole(queue: EventQueue) -> None:
    with pytest.raises(ConfigurationError, match="mail"):
        await queue.publish_batch([new_event("a"), new_event("b", bus="mail")])
    assert (await queue.store.counts()).pending == 0


async def test_poll_does_not_block_and_returns_none_when_there_is_no_event(queue: EventQueue) -> None:
    async with asyncio.timeout(20):
        assert await queue.poll() is None


async def test_an_event_published_with_a_delay_is_polled_when_it_is_due(queue: EventQueue, clock: ManualClock) -> None:
    event = await queue.publish("order.placed", delay=10)
    assert await queue.poll() is None
    clock.advance(10)
    assert (await polled(queue)).id == event.id


async def test_the_abandonment_timeout_is_one_minute_by_default(queue: EventQueue, clock: ManualClock) -> None:
    await queue.publish("order.placed")
    first = await polled(queue)
    clock.advance(ONE_MINUTE - 0.1)
    assert await queue.poll() is None
    clock.advance(0.2)
    again = await polled(queue)
    assert (again.id, again.attempts) == (first.id, 2)
    assert again.updated_ts == pytest.approx(clock.now(), abs=1e-6)  # PostgreSQL keeps whole microseconds


async def test_the_abandonment_timeout_is_configurable(timed_store: EventStore, clock: ManualClock) -> None:
    queue = EventQueue(timed_store, abandoned_after=5)
    await queue.publish("order.placed")
    first = await polled(queue)
    clock.advance(5.1)
    assert (await polled(queue)).id == first.id


@pytest.mark.parametrize("age", [0, -1, float("inf"), float("nan"), True])
async def test_an_invalid_abandonment_timeout_is_refused(timed_store: EventStore, age: float) -> None:
    with pytest.raises(ConfigurationError, match="abandoned_after"):
        EventQueue(timed_store, abandoned_after=age)


async def test_age_is_judged_by_the_clock_that_was_handed_in(queue: EventQueue, clock: ManualClock) -> None:
    await queue.publish("order.placed")
    event = await polled(queue)
    assert event.updated_ts == clock.now()
    assert event.expires_ts == clock.now() + ONE_MINUTE


async def test_finalize_without_errors_logs_completed(queue: EventQueue) -> None:
    await queue.publish("order.placed")
    event = await polled(queue)
    await queue.finalize(event.id)
    assert (await ending_of(queue.store, event.id)).status is EventStatus.COMPLETED


async def test_finalize_with_error_results_logs_completed_with_errors(queue: EventQueue) -> None:
    await queue.publish("order.placed")
    event = await polled(queue)
    await queue.finalize(event.id, error_results=[UnrecoverableError("no such customer"), "and no stock"])
    entry = await ending_of(queue.store, event.id)
    assert entry.status is EventStatus.COMPLETED_WITH_ERRORS
    assert entry.error == "UnrecoverableError: no such customer; and no stock"


async def test_finalize_with_error_results_removes_the_row_from_events(
    sqlite_store: EventStore, sqlite_url: str
) -> None:
    queue = EventQueue(sqlite_store)
    event = await queue.publish("order.placed")
    await polled(queue)
    await queue.finalize(event.id, error_results=["no such customer"])
    assert rows(sqlite_url, "select id from events") == []
    logged = "select id from event_log where status = 'COMPLETED_WITH_ERRORS'"
    assert rows(sqlite_url, logged) == [(event.id,)]


async def test_finalize_is_idempotent(queue: EventQueue) -> None:
    await queue.publish("order.placed")
    event = await polled(queue)
    await queue.finalize(event.id)
    before = await queue.store.read_event_log(event.id)
    await queue.finalize(event.id)
    await queue.finalize(event.id, success=False)
    await queue.finalize(event.id, error_results=["too late"])
    assert await queue.store.read_event_log(event.id) == before


async def test_finalizing_an_event_that_another_process_ended_does_nothing(
    queue: EventQueue, timed_store: EventStore, clock: ManualClock
) -> None:
    await queue.publish("order.placed")
    event = await polled(queue)
    clock.advance(ONE_MINUTE + 1)
    other = EventQueue(timed_store)
    await other.finalize((await polled(other)).id)
    await queue.finalize(event.id, success=False)
    assert await status_of(timed_store, event.id) is EventStatus.COMPLETED


async def test_finalizing_twice_at_the_same_time_is_as_good_as_once(queue: EventQueue) -> None:
    await queue.publish("order.placed")
    event = await polled(queue)
    await asyncio.gather(queue.finalize(event.id), queue.finalize(event.id))
    endings = [e for e in await queue.store.read_event_log(event.id) if e.status is EventStatus.COMPLETED]
    assert len(endings) == 1


async def test_finalizing_an_event_that_was_not_polled_here_is_refused(queue: EventQueue) -> None:
    event = await queue.publish("order.placed")
    with pytest.raises(LeaseLost):
        await queue.finalize(event.id)
    assert await status_of(queue.store, event.id) is EventStatus.PENDING


async def test_finalize_refuses_both_kinds_of_failure_at_once(queue: EventQueue) -> None:
    await queue.publish("order.placed")
    event = await polled(queue)
    with pytest.raises(ConfigurationError, match="either"):
        await queue.finalize(event.id, success=False, error_results=["x"])
    assert await status_of(queue.store, event.id) is EventStatus.PROCESSING


async def test_a_payload_that_is_not_json_is_refused_and_nothing_is_queued(queue: EventQueue) -> None:
    with pytest.raises(InvalidPayloadError):
        await queue.publish("order.placed", {"when": object()})
    assert await queue.poll() is None


async def test_queue_depth_attempts_and_failures_can_be_monitored(queue: EventQueue) -> None:
    for _ in range(5):
        await queue.publish("order.placed")
    await queue.finalize((await polled(queue)).id)
    await queue.finalize((await polled(queue)).id, success=False)
    await queue.finalize((await polled(queue)).id, error_results=["x"])
    await polled(queue)
    counts = await queue.store.counts()
    assert (counts.pending, counts.processing) == (1, 1)
    assert (counts.completed, counts.failed, counts.completed_with_errors) == (1, 1, 1)

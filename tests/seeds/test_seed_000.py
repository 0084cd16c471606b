"""Seed 000: a queue in a relational database, worked by publish, poll and finalize."""

import asyncio
from datetime import timedelta

import pytest
from tests.seeds.support import ending_of, rows, status_of, stored

from durabus import Event, EventQueue, EventStatus, EventStore, LeaseLost, ManualClock

FIVE_MINUTES = 300.0


@pytest.fixture
def queue(timed_store: EventStore) -> EventQueue:
    return EventQueue(timed_store, abandoned_after=FIVE_MINUTES)


@pytest.fixture
def other_pod(timed_store: EventStore) -> EventQueue:
    return EventQueue(timed_store, abandoned_after=FIVE_MINUTES, worker_id="other-pod:1")


async def polled(queue: EventQueue) -> Event:
    event = await queue.poll()
    assert event is not None
    return event


async def test_publish_inserts_a_pending_event_without_attempts(queue: EventQueue) -> None:
    event = await queue.publish("order.placed", {"order_id": 7})
    found = await stored(queue.store, event.id)
    assert (found.status, found.attempts, found.payload) == (EventStatus.PENDING, 0, {"order_id": 7})


async def test_poll_returns_none_when_the_queue_is_empty(queue: EventQueue) -> None:
    assert await queue.poll() is None


async def test_poll_takes_the_earliest_event_first(queue: EventQueue) -> None:
    published = [await queue.publish("order.placed", {"n": n}) for n in range(3)]
    assert [(await polled(queue)).id for _ in range(3)] == [event.id for event in published]


async def test_poll_marks_the_event_processing_and_counts_the_attempt(queue: EventQueue) -> None:
    await queue.publish("order.placed")
    event = await polled(queue)
    assert (event.status, event.attempts) == (EventStatus.PROCESSING, 1)
    assert await stored(queue.store, event.id) == event


async def test_poll_sets_processing_started_at_and_updated_at_to_now(queue: EventQueue, clock: ManualClock) -> None:
    await queue.publish("order.placed")
    clock.advance(12)
    event = await polled(queue)
    assert event.processing_started_at == event.updated_at
    assert event.updated_ts == clock.now()
    assert event.created_ts == clock.now() - 12


async def test_a_processing_event_is_not_selected_again_before_the_timeout(
    queue: EventQueue, other_pod: EventQueue, clock: ManualClock
) -> None:
    await queue.publish("order.placed")
    await polled(queue)
    clock.advance(FIVE_MINUTES - 0.1)
    assert await other_pod.poll() is None


async def test_a_processing_event_older_than_the_timeout_is_abandoned_and_selected_again(
    queue: EventQueue, other_pod: EventQueue, clock: ManualClock
) -> None:
    await queue.publish("order.placed")
    first = await polled(queue)
    clock.advance(FIVE_MINUTES + 0.1)
    assert (await polled(other_pod)).id == first.id


async def test_the_abandonment_timeout_may_be_given_as_five_minutes(
    timed_store: EventStore, clock: ManualClock
) -> None:
    queue = EventQueue(timed_store, abandoned_after=timedelta(minutes=5))
    await queue.publish("order.placed")
    assert (await polled(queue)).expires_ts == clock.now() + FIVE_MINUTES


async def test_acquiring_an_abandoned_event_counts_an_attempt_and_refreshes_updated_at(
    queue: EventQueue, other_pod: EventQueue, clock: ManualClock
) -> None:
    await queue.publish("order.placed")
    await polled(queue)
    clock.advance(FIVE_MINUTES + 1)
    again = await polled(other_pod)
    assert (again.attempts, again.updated_ts, again.worker_id) == (2, clock.now(), "other-pod:1")


async def test_finalize_with_success_logs_completed(queue: EventQueue) -> None:
    await queue.publish("order.placed", {"order_id": 7})
    event = await polled(queue)
    await queue.finalize(event.id, success=True)
    entry = await ending_of(queue.store, event.id)
    assert (entry.status, entry.attempt, entry.payload) == (EventStatus.COMPLETED, 1, {"order_id": 7})


async def test_finalize_without_success_logs_failed(queue: EventQueue) -> None:
    await queue.publish("order.placed", {"order_id": 7})
    event = await polled(queue)
    await queue.finalize(event.id, success=False)
    entry = await ending_of(queue.store, event.id)
    assert (entry.status, entry.attempt, entry.payload) == (EventStatus.FAILED, 1, {"order_id": 7})


@pytest.mark.parametrize("success", [True, False])
async def test_a_finalized_event_is_never_polled_again(queue: EventQueue, clock: ManualClock, success: bool) -> None:
    await queue.publish("order.placed")
    await queue.finalize((await polled(queue)).id, success=success)
    clock.advance(10 * FIVE_MINUTES)
    assert await queue.poll() is None
    counts = await queue.store.counts()
    assert (counts.pending, counts.processing) == (0, 0)


@pytest.mark.parametrize(("success", "status"), [(True, "COMPLETED"), (False, "FAILED")])
async def test_finalize_moves_the_row_from_events_to_event_log(
    sqlite_store: EventStore, sqlite_url: str, success: bool, status: str
) -> None:
    queue = EventQueue(sqlite_store)
    event = await queue.publish("order.placed", {"order_id": 7})
    assert rows(sqlite_url, "select id, status, attempts from events") == [(event.id, "PENDING", 0)]
    await polled(queue)
    assert rows(sqlite_url, "select id, status, attempts from events") == [(event.id, "PROCESSING", 1)]
    await queue.finalize(event.id, success=success)
    assert rows(sqlite_url, "select id from events") == []
    assert rows(sqlite_url, "select payload, status, attempt from event_log where status = ?", status) == [
        ('{"order_id":7}', status, 1)
    ]


async def test_every_event_is_acquired_by_exactly_one_of_many_workers(timed_store: EventStore) -> None:
    pods = [EventQueue(timed_store, worker_id=f"pod:{n}") for n in range(8)]
    published = {(await pods[0].publish("order.placed", {"n": n})).id for n in range(20)}
    answers = await asyncio.gather(*(pod.poll() for pod in pods * 4))
    taken = [event.id for event in answers if event is not None]
    assert len(taken) == len(set(taken))
    assert set(taken) == published


async def test_another_worker_finishes_the_event_of_a_dead_worker(
    queue: EventQueue, other_pod: EventQueue, clock: ManualClock
) -> None:
    event = await queue.publish("order.placed")
    await polled(queue)
    clock.advance(FIVE_MINUTES + 1)
    await other_pod.finalize((await polled(other_pod)).id)
    assert await status_of(queue.store, event.id) is EventStatus.COMPLETED


async def test_a_worker_that_comes_back_too_late_cannot_finalize(
    queue: EventQueue, other_pod: EventQueue, clock: ManualClock
) -> None:
    await queue.publish("order.placed")
    event = await polled(queue)
    clock.advance(FIVE_MINUTES + 1)
    await polled(other_pod)
    with pytest.raises(LeaseLost):
        await queue.finalize(event.id, success=False)
    assert await status_of(queue.store, event.id) is EventStatus.PROCESSING


async def test_the_worker_loop_of_the_document_drains_the_queue(queue: EventQueue) -> None:
    for n in range(4):
        await queue.publish("order.placed", {"n": n})

    def route(event: Event) -> None:
        if event.payload["n"] == 2:
            raise ValueError("cannot handle 2")

    while (event := await queue.poll()) is not None:
        try:
            route(event)
        except ValueError:
            await queue.finalize(event.id, success=False)
        else:
            await queue.finalize(event.id, success=True)
    counts = await queue.store.counts()
    assert (counts.completed, counts.failed, counts.pending, counts.processing) == (3, 1, 0, 0)


async def test_an_event_that_keeps_killing_its_workers_goes_to_the_log_as_failed_when_attempts_are_limited(
    queue: EventQueue, clock: ManualClock
) -> None:
    event = await queue.publish("order.placed", max_attempts=2)
    for _ in range(2):
        assert await queue.poll() is not None
        clock.advance(FIVE_MINUTES + 1)
    assert await queue.poll() is None
    entry = await ending_of(queue.store, event.id)
    assert (entry.status, entry.attempt) == (EventStatus.FAILED, 2)


@pytest.mark.parametrize("column", ["updated_at", "processing_started_at"])
async def test_stuck_events_are_found_with_sql(
    sqlite_store: EventStore, sqlite_url: str, clock: ManualClock, column: str
) -> None:
    queue = EventQueue(sqlite_store, abandoned_after=FIVE_MINUTES)
    stuck = await queue.publish("order.placed")
    await polled(queue)
    clock.advance(FIVE_MINUTES + 1)
    await queue.publish("order.placed")
    query = f"select id from events where status = 'PROCESSING' and {column} < ? - 300"
    assert rows(sqlite_url, query, clock.now()) == [(stuck.id,)]


async def test_an_administrator_requeues_a_stuck_event_by_hand(queue: EventQueue, other_pod: EventQueue) -> None:
    await queue.publish("order.placed")
    event = await polled(queue)
    reset = await queue.store.reset_event(event.id, reason="pod is gone")
    assert reset.status is EventStatus.PENDING
    assert (await polled(other_pod)).id == event.id
    with pytest.raises(LeaseLost):
        await queue.finalize(event.id)

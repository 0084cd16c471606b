"""Seed 003: what cannot be delivered lands in the dead letters, and the inspector looks after it."""

import json

import pytest
from tests.seeds.support import ONCE, QUICK, Recorder, rows, status_of, stored, until_status

from durabus import (
    ConfigurationError,
    DLQInspector,
    Event,
    EventBus,
    EventNotFound,
    EventQueue,
    EventStatus,
    EventStore,
    ManualClock,
    NotADeadLetter,
    UnrecoverableError,
)

DAY = 86_400.0


@pytest.fixture
def queue(timed_store: EventStore) -> EventQueue:
    return EventQueue(timed_store)


async def dead_letter(queue: EventQueue, *, kind: str = "user.created", errors: tuple[str, ...] = ()) -> Event:
    await queue.publish(kind, {"id": 1}, {"source": "web"})
    event = await queue.poll()
    assert event is not None
    await queue.finalize(event.id, success=bool(errors), error_results=errors)
    return await stored(queue.store, event.id)


async def test_an_event_goes_to_the_dead_letters_after_its_last_attempt(store: EventStore) -> None:
    async with EventBus(store, retry=QUICK) as bus:
        bus.subscribe("user.*", Recorder(failures=99))
        event_id = await bus.publish("user.created", {"id": 1}, metadata={"source": "web"})
        page = await DLQInspector(store).list()
    (event,) = page.events
    assert (event.event_id, event.type, event.payload, event.metadata) == (
        event_id,
        "user.created",
        {"id": 1},
        {"source": "web"},
    )
    assert json.loads(event.last_error or "") == ["ValueError: not today"] * 4


async def test_a_dead_letter_has_the_time_of_its_final_failure(queue: EventQueue, clock: ManualClock) -> None:
    await queue.publish("user.created")
    created = clock.now()
    event = await queue.poll()
    assert event is not None
    clock.advance(30)
    await queue.finalize(event.id, success=False)
    (dead,) = (await DLQInspector(queue.store).list()).events
    assert (dead.created_ts, dead.updated_ts) == (created, created + 30)


async def test_an_event_that_cannot_be_recovered_is_a_dead_letter_too(store: EventStore) -> None:
    async with EventBus(store) as bus:
        bus.subscribe("user.*", Recorder(failures=1, error=UnrecoverableError("never")))
        await bus.publish("user.created")
    (event,) = (await DLQInspector(store).list()).events
    assert event.status is EventStatus.COMPLETED_WITH_ERRORS


async def test_an_event_that_succeeded_is_no_dead_letter(store: EventStore) -> None:
    async with EventBus(store, retry=QUICK) as bus:
        bus.subscribe("user.*", Recorder(failures=1))
        await bus.publish("user.created")
    page = await DLQInspector(store).list()
    assert (page.events, page.total) == ([], 0)


async def test_list_shows_the_newest_first(queue: EventQueue, clock: ManualClock) -> None:
    ids = []
    for _ in range(3):
        ids.append((await dead_letter(queue)).id)
        clock.advance(1)
    assert [event.id for event in (await DLQInspector(queue.store).list()).events] == ids[::-1]


async def test_list_returns_one_hundred_by_default_and_the_total(queue: EventQueue) -> None:
    ids = [(await dead_letter(queue)).id for _ in range(103)]
    page = await DLQInspector(queue.store).list()
    assert (len(page.events), page.total) == (100, 103)
    assert page.events[0].id == ids[-1]


async def test_list_takes_limit_and_offset(queue: EventQueue) -> None:
    ids = [(await dead_letter(queue)).id for _ in range(5)]
    inspector = DLQInspector(queue.store)
    page = await inspector.list(limit=2, offset=1)
    assert ([event.id for event in page.events], page.total) == ([ids[3], ids[2]], 5)
    beyond = await inspector.list(offset=5)
    assert (beyond.events, beyond.total) == ([], 5)


@pytest.mark.parametrize(("limit", "offset"), [(0, 0), (-1, 0), (10_001, 0), (1, -1), (True, 0), (1, 1.5)])
async def test_an_invalid_page_is_refused(timed_store: EventStore, limit: int, offset: int) -> None:
    with pytest.raises(ConfigurationError):
        await DLQInspector(timed_store).list(limit=limit, offset=offset)


async def test_the_inspector_may_look_at_one_bus_only(timed_store: EventStore) -> None:
    await dead_letter(EventQueue(timed_store, bus="mail"))
    await dead_letter(EventQueue(timed_store, bus="orders"))
    page = await DLQInspector(timed_store, bus="mail").list()
    assert ([event.bus for event in page.events], page.total) == (["mail"], 1)
    assert (await DLQInspector(timed_store).list()).total == 2


async def test_retry_resets_the_event_fully(queue: EventQueue) -> None:
    dead = await dead_letter(queue, errors=("no such customer",))
    event = await DLQInspector(queue.store).retry(dead.event_id)
    assert event == await stored(queue.store, dead.id)
    assert (event.status, event.retry_count, event.last_error, event.attempts) == (EventStatus.PENDING, 0, None, 0)
    assert (event.payload, event.metadata, event.created_ts) == (dead.payload, dead.metadata, dead.created_ts)


async def test_retry_makes_the_event_eligible_at_once(queue: EventQueue) -> None:
    dead = await dead_letter(queue)
    await DLQInspector(queue.store).retry(dead.id)
    again = await queue.poll()
    assert again is not None
    assert again.id == dead.id


async def test_retry_takes_the_event_out_of_the_dead_letters(queue: EventQueue) -> None:
    first, second = await dead_letter(queue), await dead_letter(queue)
    await DLQInspector(queue.store).retry(first.event_id)
    page = await DLQInspector(queue.store).list()
    assert ([event.id for event in page.events], page.total) == ([second.id], 1)


async def test_a_retried_event_has_all_its_attempts_again(store: EventStore) -> None:
    handler = Recorder(failures=5)
    async with EventBus(store, retry=QUICK) as bus:
        bus.subscribe("user.*", handler)
        event_id = await bus.publish("user.created")
        await DLQInspector(store).retry(event_id)
        await handler.called(6)
        event = await until_status(store, event_id, EventStatus.COMPLETED)
    assert (event.attempts, event.retry_count) == (2, 1)


async def test_handlers_that_succeeded_do_not_run_again_after_a_retry(store: EventStore) -> None:
    good, bad = Recorder(), Recorder(failures=1)
    async with EventBus(store, retry=ONCE) as bus:
        bus.subscribe("user.*", good)
        bus.subscribe("user.*", bad)
        event_id = await bus.publish("user.created")
        await DLQInspector(store).retry(event_id)
        await bad.called(2)
    assert good.calls == 1


async def test_retry_of_an_unknown_event_is_refused(timed_store: EventStore) -> None:
    with pytest.raises(EventNotFound):
        await DLQInspector(timed_store).retry("0190163d-8694-739b-aea5-966c26f8ad91")
    with pytest.raises(EventNotFound):
        await DLQInspector(timed_store).retry(4711)


async def test_retry_of_an_event_that_is_no_dead_letter_is_refused(queue: EventQueue) -> None:
    event = await queue.publish("user.created")
    with pytest.raises(NotADeadLetter, match="PENDING"):
        await DLQInspector(queue.store).retry(event.id)


async def test_retrying_twice_is_harmless(queue: EventQueue) -> None:
    dead = await dead_letter(queue)
    inspector = DLQInspector(queue.store)
    assert await inspector.retry(dead.id) == await inspector.retry(dead.id)
    assert (await queue.store.counts()).pending == 1


async def test_purge_deletes_dead_letters_created_at_the_cutoff_or_before(
    queue: EventQueue, clock: ManualClock
) -> None:
    old = await dead_letter(queue)
    clock.advance(1)
    young = await dead_letter(queue)
    clock.advance(30 * DAY - 1)
    assert await DLQInspector(queue.store).purge(older_than_days=30) == 1
    assert await queue.store.get_event(old.id) is None
    assert await status_of(queue.store, young.id) is EventStatus.FAILED


async def test_purge_without_an_age_keeps_the_last_thirty_days(queue: EventQueue, clock: ManualClock) -> None:
    old = await dead_letter(queue)
    clock.advance(60)
    young = await dead_letter(queue)
    clock.advance(30 * 24 * 60 * 60 - 60)
    assert await DLQInspector(queue.store).purge() == 1
    assert await queue.store.get_event(old.id) is None
    assert await status_of(queue.store, young.id) is EventStatus.FAILED


async def test_purge_leaves_everything_that_is_no_dead_letter(queue: EventQueue, clock: ManualClock) -> None:
    await queue.publish("user.created")
    done = await queue.poll()
    assert done is not None
    await queue.finalize(done.id)
    await queue.publish("user.created")
    await queue.publish("user.created")
    await queue.poll()
    clock.advance(365 * DAY)
    assert await DLQInspector(queue.store).purge(older_than_days=0) == 0
    counts = await queue.store.counts()
    assert (counts.pending, counts.processing, counts.completed) == (1, 1, 1)


async def test_purge_of_one_bus_leaves_the_others(timed_store: EventStore) -> None:
    await dead_letter(EventQueue(timed_store, bus="mail"))
    kept = await dead_letter(EventQueue(timed_store, bus="orders"))
    assert await DLQInspector(timed_store, bus="mail").purge(older_than_days=0) == 1
    assert await timed_store.has_event(kept.id)


@pytest.mark.parametrize("days", [-1, float("inf"), float("nan"), True])
async def test_an_invalid_age_is_refused(timed_store: EventStore, days: float) -> None:
    with pytest.raises(ConfigurationError, match="older_than_days"):
        await DLQInspector(timed_store).purge(older_than_days=days)


async def test_dead_letters_are_seen_with_sql(sqlite_store: EventStore, sqlite_url: str) -> None:
    event = await dead_letter(EventQueue(sqlite_store))
    assert rows(sqlite_url, "select id, status, payload from dead_letters") == [(event.id, "FAILED", '{"id":1}')]

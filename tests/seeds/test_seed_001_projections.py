"""Seed 001, third part: projections over the event log."""

import asyncio
from collections.abc import Sequence

import pytest

from durabus import (
    ConfigurationError,
    EventLogProjectionBuilder,
    EventQueue,
    EventStatus,
    EventStore,
    InvalidEventError,
    LogEntry,
    ManualClock,
)


class OrdersPerStatus:
    """A read-optimised view: how many events ended in which status."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.statuses: list[EventStatus] = []
        self.changed = asyncio.Event()

    def apply(self, entries: Sequence[LogEntry]) -> None:
        self.seen += [entry.id for entry in entries]
        self.statuses += [entry.status for entry in entries]
        self.changed.set()


@pytest.fixture
def queue(timed_store: EventStore) -> EventQueue:
    return EventQueue(timed_store)


@pytest.fixture
def view() -> OrdersPerStatus:
    return OrdersPerStatus()


async def finalized(
    queue: EventQueue, count: int = 1, *, kind: str = "order.placed", success: bool = True
) -> list[int]:
    ids: list[int] = []
    for _ in range(count):
        await queue.publish(kind)
        event = await queue.poll()
        assert event is not None
        await queue.finalize(event.id, success=success)
        ids.append(event.id)
    return ids


def projection(
    queue: EventQueue, view: OrdersPerStatus, *, version: int = 1, batch: int = 500
) -> EventLogProjectionBuilder:
    return EventLogProjectionBuilder(
        queue.store, name="orders", version=version, apply=view.apply, batch=batch, poll_interval=0.01
    )


async def test_a_projection_sees_every_finalized_event_once_and_in_order(
    queue: EventQueue, view: OrdersPerStatus
) -> None:
    ids = await finalized(queue, 3) + await finalized(queue, success=False)
    assert await projection(queue, view).run_once() == 4
    assert view.seen == ids
    assert view.statuses == [EventStatus.COMPLETED] * 3 + [EventStatus.FAILED]


async def test_a_projection_does_not_see_events_that_are_not_finalized(
    queue: EventQueue, view: OrdersPerStatus
) -> None:
    await queue.publish("order.placed")
    await queue.publish("order.placed")
    await queue.poll()
    assert await projection(queue, view).run_once() == 0
    assert view.seen == []


async def test_an_event_finalized_late_is_not_skipped(queue: EventQueue, view: OrdersPerStatus) -> None:
    slow = await queue.publish("order.placed")
    await queue.poll()
    quick = await finalized(queue)
    await projection(queue, view).run_once()
    await queue.finalize(slow.id)
    await projection(queue, view).run_once()
    assert view.seen == [*quick, slow.id]


async def test_entries_carry_payload_and_metadata(queue: EventQueue) -> None:
    entries: list[LogEntry] = []
    await queue.publish("order.placed", {"order_id": 7}, {"source": "web"})
    event = await queue.poll()
    assert event is not None
    await queue.finalize(event.id)
    await EventLogProjectionBuilder(queue.store, name="orders", apply=entries.extend).run_once()
    assert [(entry.payload, entry.metadata_json) for entry in entries] == [({"order_id": 7}, '{"source":"web"}')]


async def test_an_apply_may_be_async(queue: EventQueue) -> None:
    seen: list[int] = []

    async def apply(entries: Sequence[LogEntry]) -> None:
        await asyncio.sleep(0)
        seen.extend(entry.id for entry in entries)

    ids = await finalized(queue, 2)
    await EventLogProjectionBuilder(queue.store, name="orders", apply=apply).run_once()
    assert seen == ids


async def test_a_projection_may_ask_for_some_event_types(queue: EventQueue, view: OrdersPerStatus) -> None:
    await finalized(queue, kind="mail.sent")
    wanted = await finalized(queue, kind="order.placed")
    builder = EventLogProjectionBuilder(queue.store, name="orders", event_type="order.*", apply=view.apply)
    assert await builder.run_once() == 1
    assert view.seen == wanted


async def test_the_position_is_stored_and_survives_the_runner(queue: EventQueue, view: OrdersPerStatus) -> None:
    first = await finalized(queue, 2)
    await projection(queue, view).run_once()
    second = await finalized(queue, 2)
    assert await projection(queue, view).run_once() == 2
    assert view.seen == first + second


async def test_the_log_is_read_batch_by_batch(queue: EventQueue) -> None:
    batches: list[int] = []
    await finalized(queue, 4)
    builder = EventLogProjectionBuilder(
        queue.store, name="orders", batch=3, apply=lambda entries: batches.append(len(entries))
    )
    assert await builder.run_once() == 4
    assert sum(batches) == 4
    assert max(batches) <= 3
    assert len(batches) > 1


async def test_a_crash_between_apply_and_save_repeats_the_batch_and_loses_nothing(
    queue: EventQueue, view: OrdersPerStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await finalized(queue, 2)

    async def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(queue.store, "save_position", crash)
        with pytest.raises(KeyboardInterrupt):
            await projection(queue, view).run_once()
    await projection(queue, view).run_once()
    assert view.seen == ids + ids


async def test_an_apply_that_fails_is_given_the_same_entries_again(queue: EventQueue, view: OrdersPerStatus) -> None:
    ids = await finalized(queue, 2)

    def fail(entries: Sequence[LogEntry]) -> None:
        raise ValueError("disk full")

    with pytest.raises(ValueError, match="disk full"):
        await EventLogProjectionBuilder(queue.store, name="orders", apply=fail).run_once()
    await projection(queue, view).run_once()
    assert view.seen == ids


async def test_only_one_runner_at_a_time_works_on_a_projection(queue: EventQueue, view: OrdersPerStatus) -> None:
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def apply(entries: Sequence[LogEntry]) -> None:
        inside.set()
        await go_on.wait()

    await finalized(queue)
    runner = asyncio.create_task(EventLogProjectionBuilder(queue.store, name="orders", apply=apply).run_once())
    await inside.wait()
    assert await projection(queue, view).run_once() is None
    go_on.set()
    assert await runner == 1
    assert view.seen == []


async def test_another_runner_takes_over_when_the_first_is_gone(
    queue: EventQueue, view: OrdersPerStatus, clock: ManualClock
) -> None:
    ids = await finalized(queue)
    lock = await queue.store.claim_lock("projection:orders@1", worker_id="dead:1", token="t", lease=30)
    assert lock is not None
    assert await projection(queue, view).run_once() is None
    clock.advance(30.1)
    assert await projection(queue, view).run_once() == 1
    assert view.seen == ids


async def test_the_lag_is_visible(queue: EventQueue, view: OrdersPerStatus) -> None:
    builder = projection(queue, view)
    assert (await builder.status()).lag == 0
    await finalized(queue, 2)
    behind = await builder.status()
    assert (behind.name, behind.version, behind.position) == ("orders", 1, "")
    assert behind.lag == len((await queue.store.read_log()).entries)
    await builder.run_once()
    caught_up = await builder.status()
    assert (caught_up.lag, caught_up.position) == (0, await queue.store.log_head())


async def test_a_new_version_is_rebuilt_from_the_beginning_beside_the_old_one(
    queue: EventQueue, view: OrdersPerStatus
) -> None:
    ids = await finalized(queue, 3)
    await projection(queue, view).run_once()
    rebuilt = OrdersPerStatus()
    assert await projection(queue, rebuilt, version=2).run_once() == 3
    assert rebuilt.seen == ids
    assert (await projection(queue, view).status()).lag == 0


async def test_two_projections_do_not_share_a_position(queue: EventQueue, view: OrdersPerStatus) -> None:
    ids = await finalized(queue)
    await projection(queue, view).run_once()
    other = OrdersPerStatus()
    await EventLogProjectionBuilder(queue.store, name="invoices", apply=other.apply).run_once()
    assert other.seen == ids


async def test_run_follows_the_log_until_it_is_stopped(queue: EventQueue, view: OrdersPerStatus) -> None:
    builder = projection(queue, view)
    runner = asyncio.create_task(builder.run())
    ids: list[int] = []
    for _ in range(2):
        view.changed.clear()
        ids += await finalized(queue)
        await view.changed.wait()
    builder.stop()
    await runner
    assert view.seen == ids


async def test_stop_before_run_began_is_heeded(queue: EventQueue, view: OrdersPerStatus) -> None:
    builder = projection(queue, view)
    runner = asyncio.create_task(builder.run())
    builder.stop()
    async with asyncio.timeout(20):
        await runner


@pytest.mark.parametrize("version", [0, -1, True, 1.5])
async def test_an_invalid_version_is_refused(timed_store: EventStore, version: int) -> None:
    with pytest.raises(ConfigurationError, match="version"):
        EventLogProjectionBuilder(timed_store, name="orders", version=version, apply=print)


async def test_a_projection_needs_a_name(timed_store: EventStore) -> None:
    with pytest.raises(InvalidEventError, match="projection name"):
        EventLogProjectionBuilder(timed_store, name="", apply=print)

"""Seed 001, second part: the EventManager runs every registered handler and keeps what each of them did."""

import pytest
from tests.seeds.support import Recorder, status_of, stored

from durabus import (
    ConfigurationError,
    DuplicateHandlerError,
    Event,
    EventManager,
    EventQueue,
    EventStatus,
    EventStore,
    LeaseLost,
    ManualClock,
    ResultStatus,
    RetryPolicy,
    Success,
    TransientError,
    UnrecoverableError,
)
from durabus.model.result import HandlerResult

STEADY = RetryPolicy(max_retries=10, base_delay=1.0, jitter=0.0)


@pytest.fixture
def queue(timed_store: EventStore) -> EventQueue:
    return EventQueue(timed_store)


@pytest.fixture
def manager(queue: EventQueue) -> EventManager:
    return EventManager(queue, poll_delay=0.01, retry=STEADY)


class FooHandler:
    id = "foo-handler"
    event_type = "foo"

    def __init__(self) -> None:
        self.handled: list[int] = []

    async def handle(self, event: Event) -> None:
        self.handled.append(event.payload["n"])


async def results_of(manager: EventManager, event: Event) -> dict[str, HandlerResult]:
    return {result.handler_id: result for result in await manager.queue.store.list_results(event.id)}


async def test_a_handler_is_registered_as_an_instance(manager: EventManager) -> None:
    handler = FooHandler()
    manager.register(handler)
    event = await manager.queue.publish("foo", {"n": 1})
    await manager.process_next()
    assert handler.handled == [1]
    assert await status_of(manager.queue.store, event.id) is EventStatus.COMPLETED


async def test_a_handler_is_registered_as_a_function_with_an_id(manager: EventManager) -> None:
    handler = Recorder()
    manager.register("foo", "handler1", handler)
    await manager.queue.publish("foo", {"n": 1})
    await manager.process_next()
    assert handler.calls == 1


async def test_a_plain_function_may_be_a_handler(manager: EventManager) -> None:
    seen: list[object] = []

    def handler(event: Event) -> None:
        seen.append(event.payload)

    manager.register("foo", "handler1", handler)
    await manager.queue.publish("foo", {"n": 1})
    await manager.process_next()
    assert seen == [{"n": 1}]


async def test_a_function_without_an_id_is_refused(manager: EventManager) -> None:
    with pytest.raises(ConfigurationError, match="id"):
        manager.register("foo", None, Recorder())


async def test_an_object_that_is_no_handler_is_refused(manager: EventManager) -> None:
    with pytest.raises(ConfigurationError, match="handle"):
        manager.register(object())  # type: ignore[arg-type]


async def test_two_handlers_with_one_id_are_refused(manager: EventManager) -> None:
    manager.register("foo", "handler1", Recorder())
    with pytest.raises(DuplicateHandlerError, match="handler1"):
        manager.register("bar", "handler1", Recorder())


async def test_an_event_goes_to_all_applicable_handlers_and_to_no_others(manager: EventManager) -> None:
    one, two, glob, other = Recorder(), Recorder(), Recorder(), Recorder()
    manager.register("order.placed", "one", one)
    manager.register("order.placed", "two", two)
    manager.register("order.*", "glob", glob)
    manager.register("mail.sent", "other", other)
    await manager.queue.publish("order.placed")
    await manager.process_next()
    assert [one.calls, two.calls, glob.calls, other.calls] == [1, 1, 1, 0]


async def test_process_next_returns_none_when_there_is_no_event(manager: EventManager) -> None:
    manager.register("foo", "handler1", Recorder())
    assert await manager.process_next() is None


async def test_an_event_is_finalized_when_all_handlers_succeed(manager: EventManager) -> None:
    manager.register("foo", "one", Recorder())
    manager.register("foo", "two", Recorder())
    event = await manager.queue.publish("foo")
    await manager.process_next()
    assert await status_of(manager.queue.store, event.id) is EventStatus.COMPLETED


async def test_handler_results_are_persisted(manager: EventManager) -> None:
    async def counts(event: Event) -> Success:
        return Success({"rows": 3})

    manager.register("foo", "good", counts)
    manager.register("foo", "late", Recorder(failures=1, error=TransientError("busy")))
    event = await manager.queue.publish("foo")
    await manager.process_next()
    results = await results_of(manager, event)
    assert (results["good"].status, results["good"].value) == (ResultStatus.SUCCEEDED, {"rows": 3})
    assert (results["late"].status, results["late"].error) == (ResultStatus.TRANSIENT, "TransientError: busy")


async def test_a_transient_error_is_retried_after_a_delay(manager: EventManager, clock: ManualClock) -> None:
    handler = Recorder(failures=1, error=TransientError("busy"))
    manager.register("foo", "handler1", handler)
    event = await manager.queue.publish("foo")
    await manager.process_next()
    waiting = await stored(manager.queue.store, event.id)
    assert (waiting.status, waiting.due_ts) == (EventStatus.PENDING, clock.now() + 1.0)
    assert await manager.process_next() is None
    clock.advance(1.0)
    await manager.process_next()
    assert handler.calls == 2
    assert await status_of(manager.queue.store, event.id) is EventStatus.COMPLETED


async def test_a_transient_error_may_name_its_own_delay(manager: EventManager, clock: ManualClock) -> None:
    manager.register("foo", "handler1", Recorder(failures=1, error=TransientError("busy", retry_after=42)))
    event = await manager.queue.publish("foo")
    await manager.process_next()
    assert (await stored(manager.queue.store, event.id)).due_ts == clock.now() + 42


async def test_any_other_exception_counts_as_transient(manager: EventManager, clock: ManualClock) -> None:
    handler = Recorder(failures=1, error=KeyError("sku"))
    manager.register("foo", "handler1", handler)
    event = await manager.queue.publish("foo")
    await manager.process_next()
    clock.advance(1.0)
    await manager.process_next()
    assert await status_of(manager.queue.store, event.id) is EventStatus.COMPLETED


async def test_handlers_that_succeeded_do_not_run_again(manager: EventManager, clock: ManualClock) -> None:
    good, late = Recorder(), Recorder(failures=2, error=TransientError("busy"))
    manager.register("foo", "good", good)
    manager.register("foo", "late", late)
    event = await manager.queue.publish("foo")
    for _ in range(3):
        await manager.process_next()
        clock.advance(5.0)
    assert (good.calls, late.calls) == (1, 3)
    assert await status_of(manager.queue.store, event.id) is EventStatus.COMPLETED


async def test_handlers_that_succeeded_do_not_run_again_in_another_process(
    manager: EventManager, timed_store: EventStore, clock: ManualClock
) -> None:
    other = EventManager(EventQueue(timed_store), retry=STEADY)
    here, there = Recorder(), Recorder()
    manager.register("foo", "good", here)
    manager.register("foo", "late", Recorder(failures=1, error=TransientError("busy")))
    other.register("foo", "good", there)
    other.register("foo", "late", Recorder())
    event = await manager.queue.publish("foo")
    await manager.process_next()
    clock.advance(1.0)
    await other.process_next()
    assert (here.calls, there.calls) == (1, 0)
    assert await status_of(timed_store, event.id) is EventStatus.COMPLETED


async def test_an_unrecoverable_error_ends_the_event_completed_with_errors(manager: EventManager) -> None:
    handler = Recorder(failures=1, error=UnrecoverableError("no such customer"))
    manager.register("foo", "handler1", handler)
    event = await manager.queue.publish("foo")
    await manager.process_next()
    ended = await stored(manager.queue.store, event.id)
    assert (ended.status, ended.errors) == (
        EventStatus.COMPLETED_WITH_ERRORS,
        ("UnrecoverableError: no such customer",),
    )


@pytest.mark.parametrize(
    ("returned", "status"),
    [
        (None, EventStatus.COMPLETED),
        (Success(), EventStatus.COMPLETED),
        (TransientError("busy"), EventStatus.PENDING),
        (UnrecoverableError("never"), EventStatus.COMPLETED_WITH_ERRORS),
    ],
    ids=["nothing", "success", "transient", "unrecoverable"],
)
async def test_returning_a_result_does_the_same_as_raising_it(
    manager: EventManager, returned: object, status: EventStatus
) -> None:
    async def handler(event: Event) -> object:
        return returned

    manager.register("foo", "handler1", handler)
    event = await manager.queue.publish("foo")
    await manager.process_next()
    assert await status_of(manager.queue.store, event.id) is status


async def test_without_a_limit_transient_errors_are_retried_again_and_again(
    queue: EventQueue, clock: ManualClock
) -> None:
    manager = EventManager(queue)
    handler = Recorder(failures=1000, error=TransientError("busy"))
    manager.register("foo", "handler1", handler)
    event = await queue.publish("foo")
    for _ in range(20):
        await manager.process_next()
        clock.advance(60.0)
    assert handler.calls == 20
    assert await status_of(queue.store, event.id) is EventStatus.PENDING


async def test_poison_events_are_shunted_to_the_log_when_attempts_are_limited(
    queue: EventQueue, clock: ManualClock
) -> None:
    manager = EventManager(queue, retry=RetryPolicy(max_retries=2))
    handler = Recorder(failures=1000, error=TransientError("busy"))
    manager.register("foo", "handler1", handler)
    event = await queue.publish("foo")
    for _ in range(5):
        await manager.process_next()
        clock.advance(60.0)
    assert handler.calls == 3
    assert await status_of(queue.store, event.id) is EventStatus.FAILED


async def test_another_manager_processes_the_event_of_a_dead_manager(
    manager: EventManager, timed_store: EventStore, clock: ManualClock
) -> None:
    await EventQueue(timed_store).publish("foo")
    assert await EventQueue(timed_store).poll() is not None  # and the process dies here
    handler = Recorder()
    manager.register("foo", "handler1", handler)
    assert await manager.process_next() is None
    clock.advance(60.1)
    assert await manager.process_next() is not None
    assert handler.events[0].attempts == 2


async def test_process_next_says_so_when_the_claim_was_lost_meanwhile(
    manager: EventManager, timed_store: EventStore
) -> None:
    async def handler(event: Event) -> None:
        await timed_store.reset_event(event.id, reason="taken away")

    manager.register("foo", "handler1", handler)
    event = await manager.queue.publish("foo")
    with pytest.raises(LeaseLost):
        await manager.process_next()
    assert await status_of(timed_store, event.id) is EventStatus.PENDING
    assert manager.metrics.snapshot().lease_lost == {"foo": 1}


async def test_latency_and_failure_rate_can_be_monitored(manager: EventManager, clock: ManualClock) -> None:
    manager.register("foo", "handler1", Recorder(failures=1, error=TransientError("busy")))
    manager.register("bar", "handler2", Recorder(failures=1, error=UnrecoverableError("never")))
    event = await manager.queue.publish("foo")
    await manager.queue.publish("bar")
    for _ in range(3):
        await manager.process_next()
        clock.advance(1.0)
    metrics = manager.metrics.snapshot()
    assert (metrics.completed, metrics.retries) == ({"foo": 1}, {"foo": 1})
    assert (metrics.success_after_retry, metrics.dead_letters) == ({"foo": 1}, {"bar": 1})
    ending = (await manager.queue.store.read_event_log(event.id))[-1]
    assert ending.execution_time_ms is not None


async def test_cleanup_finalized_events_deletes_the_handler_states_of_completed_events_only(
    manager: EventManager, clock: ManualClock
) -> None:
    async def count(event: Event) -> int:
        return 3

    manager.register("*", "good", count)
    manager.register("bad", "bad", Recorder(failures=1, error=UnrecoverableError("never")))
    manager.register("late", "late", Recorder(failures=1, error=TransientError("busy")))
    done, dead, waiting = [await manager.queue.publish(kind) for kind in ("done", "bad", "late")]
    for _ in range(3):
        await manager.process_next()
    assert await manager.cleanup_finalized_events() == 1
    assert await results_of(manager, done) == {}
    assert set(await results_of(manager, dead)) == {"good", "bad"}
    assert set(await results_of(manager, waiting)) == {"good", "late"}

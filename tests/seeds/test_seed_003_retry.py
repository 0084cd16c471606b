"""Seed 003: what fails is tried again on a schedule, and every failed attempt leaves a trace."""

import json
import logging

import pytest
from tests.seeds.support import ONCE, QUICK, Recorder, delays_of, ending_of, stored

from durabus import (
    Event,
    EventBus,
    EventStatus,
    EventStore,
    RetryPolicy,
    TransientError,
    UnrecoverableError,
)

FIELDS = ("event_id", "event_type", "subscription_id", "attempt", "max_attempts", "delay_ms", "error")


def retry_records(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    records = [record for record in caplog.records if record.name == "durabus.retry"]
    return [{"level": record.levelname, **{name: getattr(record, name) for name in FIELDS}} for record in records]


def test_the_defaults_are_those_of_the_document() -> None:
    policy = RetryPolicy()
    assert (policy.max_retries, policy.base_delay, policy.max_delay, policy.multiplier) == (3, 1.0, 30.0, 2.0)
    assert policy.jitter == 0.1


async def test_the_first_attempt_is_made_at_once(store: EventStore) -> None:
    async with EventBus(store) as bus:
        bus.subscribe("user.*", Recorder())
        event = await stored(store, await bus.publish("user.created"))
    assert event.due_ts == event.created_ts


async def test_each_attempt_waits_longer_by_the_multiplier(store: EventStore) -> None:
    async with EventBus(store, retry=RetryPolicy(max_retries=4, base_delay=0.01, multiplier=3, jitter=0)) as bus:
        bus.subscribe("user.*", Recorder(failures=9))
        event_id = await bus.publish("user.created")
        assert await delays_of(store, event_id) == [0.01, 0.03, 0.09, 0.27]


async def test_no_attempt_waits_longer_than_the_maximum(store: EventStore) -> None:
    policy = RetryPolicy(max_retries=4, base_delay=0.01, max_delay=0.025, jitter=0)
    async with EventBus(store, retry=policy) as bus:
        bus.subscribe("user.*", Recorder(failures=9))
        event_id = await bus.publish("user.created")
        assert await delays_of(store, event_id) == [0.01, 0.02, 0.025, 0.025]


async def test_a_delay_differs_by_at_most_the_jitter(store: EventStore) -> None:
    async with EventBus(store, retry=RetryPolicy(max_retries=5, base_delay=0.02, multiplier=1, jitter=0.5)) as bus:
        bus.subscribe("user.*", Recorder(failures=9))
        delays = await delays_of(store, await bus.publish("user.created"))
    assert len(delays) == 5
    assert all(0.01 <= delay <= 0.03 for delay in delays)


async def test_no_attempt_begins_before_its_time(store: EventStore) -> None:
    async with EventBus(store, retry=RetryPolicy(max_retries=3, base_delay=0.02, jitter=0)) as bus:
        bus.subscribe("user.*", Recorder(failures=9))
        trail = await store.read_event_log(await bus.publish("user.created"))
    due = [entry.next_retry_ts for entry in trail if entry.next_retry_ts is not None]
    picked = [entry.at_ts for entry in trail if entry.action == "PICKED"][1:]
    assert len(due) == len(picked) == 3
    assert all(begin >= earliest for begin, earliest in zip(picked, due, strict=True))


async def test_an_event_shows_when_it_is_tried_again(store: EventStore) -> None:
    async with EventBus(store, retry=RetryPolicy(max_retries=3, base_delay=3600, max_delay=3600, jitter=0)) as bus:
        bus.subscribe("user.*", Recorder(failures=9))
        handle = bus.emit("user.created")
        await handle.stored()
        while (event := await stored(store, handle.event_id)).next_retry_at is None:
            await bus.wait_until_idle(timeout=0.005)
    assert (event.status, event.retry_count) == (EventStatus.PENDING, 1)
    assert (event.next_retry_at - event.updated_at).total_seconds() == pytest.approx(3600)


async def test_a_handler_that_throws_is_tried_max_retries_plus_one_times(store: EventStore) -> None:
    handler = Recorder(failures=99)
    async with EventBus(store, retry=QUICK) as bus:
        bus.subscribe("user.*", handler)
        event = await stored(store, await bus.publish("user.created"))
    assert handler.calls == 4
    assert (event.status, event.attempts) == (EventStatus.FAILED, 4)


async def test_no_retries_means_one_attempt(store: EventStore) -> None:
    handler = Recorder(failures=99)
    async with EventBus(store, retry=ONCE) as bus:
        bus.subscribe("user.*", handler)
        await bus.publish("user.created")
    assert handler.calls == 1


async def test_a_subscription_overrides_a_part_of_the_policy_and_keeps_the_rest(store: EventStore) -> None:
    async with EventBus(store, retry=QUICK) as bus:
        bus.subscribe("user.*", Recorder(failures=99), retry={"max_retries": 2, "multiplier": 4})
        event_id = await bus.publish("user.created")
        assert await delays_of(store, event_id) == [0.01, 0.04]


async def test_a_subscription_may_replace_the_whole_policy(store: EventStore) -> None:
    async with EventBus(store) as bus:
        bus.subscribe("user.*", Recorder(failures=99), retry=RetryPolicy(max_retries=1, base_delay=0.03, jitter=0))
        event_id = await bus.publish("user.created")
        assert await delays_of(store, event_id) == [0.03]


async def test_the_override_of_one_subscription_leaves_the_others_alone(store: EventStore) -> None:
    short, long = Recorder(failures=99), Recorder(failures=99)
    async with EventBus(store, retry=QUICK) as bus:
        bus.subscribe("short", short, retry={"max_retries": 0})
        bus.subscribe("long", long)
        await bus.publish("short")
        await bus.publish("long")
    assert (short.calls, long.calls) == (1, 4)


async def test_only_handlers_that_have_not_succeeded_run_again(store: EventStore) -> None:
    good, late = Recorder(), Recorder(failures=2)
    async with EventBus(store, retry=QUICK) as bus:
        bus.subscribe("user.*", good)
        bus.subscribe("user.*", late)
        await bus.publish("user.created")
    assert (good.calls, late.calls) == (1, 3)


async def test_a_handler_that_used_up_its_attempts_does_not_keep_the_others_from_theirs(store: EventStore) -> None:
    short, long = Recorder(failures=99), Recorder(failures=2)
    async with EventBus(store, retry=QUICK) as bus:
        bus.subscribe("user.*", short, id="short", retry={"max_retries": 0})
        bus.subscribe("user.*", long)
        event = await stored(store, await bus.publish("user.created"))
    assert (short.calls, long.calls) == (1, 3)
    assert event.status is EventStatus.FAILED
    assert "short" in event.errors[-1]


async def test_last_error_is_a_json_array_with_one_text_per_failed_attempt(store: EventStore) -> None:
    attempts = 0

    async def handler(event: Event) -> None:
        nonlocal attempts
        attempts += 1
        raise ValueError(f"attempt {attempts}")

    async with EventBus(store, retry=QUICK) as bus:
        bus.subscribe("user.*", handler)
        event = await stored(store, await bus.publish("user.created"))
    assert event.last_error is not None
    assert json.loads(event.last_error) == [f"ValueError: attempt {n}" for n in (1, 2, 3, 4)]
    assert event.retry_count == 4


async def test_the_errors_of_an_event_that_succeeds_at_last_are_kept(store: EventStore) -> None:
    async with EventBus(store, retry=QUICK) as bus:
        bus.subscribe("user.*", Recorder(failures=2))
        event = await stored(store, await bus.publish("user.created"))
    assert (event.status, event.retry_count) == (EventStatus.COMPLETED, 2)


async def test_the_errors_of_several_handlers_in_one_attempt_are_one_text(store: EventStore) -> None:
    async with EventBus(store, retry=ONCE) as bus:
        bus.subscribe("user.*", Recorder(failures=1, error=ValueError("a")), id="one")
        bus.subscribe("user.*", Recorder(failures=1, error=ValueError("b")), id="two")
        event = await stored(store, await bus.publish("user.created"))
    assert event.errors == ("one: ValueError: a; two: ValueError: b",)


async def test_an_error_text_has_bounded_length(store: EventStore) -> None:
    async with EventBus(store, retry=ONCE) as bus:
        bus.subscribe("user.*", Recorder(failures=1, error=ValueError("x" * 1_000_000)))
        event = await stored(store, await bus.publish("user.created"))
    assert len(event.errors[0]) < 10_000


async def test_an_error_text_that_is_not_valid_unicode_is_kept_readable(store: EventStore) -> None:
    async with EventBus(store, retry=ONCE) as bus:
        bus.subscribe("user.*", Recorder(failures=1, error=ValueError("\udc80 and \x00")))
        event = await stored(store, await bus.publish("user.created"))
    assert event.status is EventStatus.FAILED
    assert "udc80" in event.errors[0]


async def test_every_failed_attempt_including_the_last_is_logged_with_all_fields(
    store: EventStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with EventBus(store, retry=QUICK) as bus:
        bus.subscribe("user.*", Recorder(failures=99), id="mailer")
        event_id = await bus.publish("user.created")
    assert retry_records(caplog) == [
        {
            "level": "ERROR" if delay_ms is None else "WARNING",
            "event_id": event_id,
            "event_type": "user.created",
            "subscription_id": "mailer",
            "attempt": attempt,
            "max_attempts": 4,
            "delay_ms": delay_ms,
            "error": "ValueError: not today",
        }
        for attempt, delay_ms in [(1, 10), (2, 20), (3, 40), (4, None)]
    ]


async def test_each_failed_handler_has_its_own_record(store: EventStore, caplog: pytest.LogCaptureFixture) -> None:
    async with EventBus(store, retry=ONCE) as bus:
        bus.subscribe("user.*", Recorder(failures=1), id="one")
        bus.subscribe("user.*", Recorder(), id="two")
        bus.subscribe("user.*", Recorder(failures=1), id="three")
        await bus.publish("user.created")
    assert [record["subscription_id"] for record in retry_records(caplog)] == ["one", "three"]


async def test_an_attempt_that_succeeds_is_not_logged(store: EventStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with EventBus(store) as bus:
        bus.subscribe("user.*", Recorder())
        await bus.publish("user.created")
    assert retry_records(caplog) == []


async def test_an_unrecoverable_error_is_not_retried(store: EventStore) -> None:
    handler, next_one = Recorder(failures=9, error=UnrecoverableError("never")), Recorder()
    async with EventBus(store, retry=QUICK) as bus:
        bus.subscribe("user.*", handler)
        bus.subscribe("user.*", next_one)
        event = await stored(store, await bus.publish("user.created"))
    assert (handler.calls, next_one.calls) == (1, 1)
    assert event.status is EventStatus.COMPLETED_WITH_ERRORS
    assert event.errors == ("UnrecoverableError: never",)


async def test_a_transient_error_may_name_its_own_delay(store: EventStore) -> None:
    async with EventBus(store, retry=QUICK) as bus:
        bus.subscribe("user.*", Recorder(failures=1, error=TransientError("busy", retry_after=0.123)))
        event_id = await bus.publish("user.created")
        assert await delays_of(store, event_id) == [0.123]


async def test_retries_successes_after_retry_and_dead_letters_are_counted_by_type(store: EventStore) -> None:
    async with EventBus(store, retry=QUICK) as bus:
        bus.subscribe("good", Recorder())
        bus.subscribe("late", Recorder(failures=2))
        bus.subscribe("bad", Recorder(failures=99))
        for kind in ("good", "late", "bad"):
            await bus.publish(kind)
        metrics = bus.metrics.snapshot()
    assert metrics.completed == {"good": 1, "late": 1}
    assert metrics.retries == {"late": 2, "bad": 3}
    assert metrics.success_after_retry == {"late": 1}
    assert metrics.dead_letters == {"bad": 1}


async def test_the_log_has_the_time_of_the_final_failure(store: EventStore) -> None:
    async with EventBus(store, retry=QUICK) as bus:
        bus.subscribe("user.*", Recorder(failures=99))
        event = await stored(store, await bus.publish("user.created"))
        entry = await ending_of(store, event.id)
    assert entry.at == event.updated_at
    assert entry.at > event.created_at

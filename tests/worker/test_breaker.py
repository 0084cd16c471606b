"""The circuit breaker of one handler."""

import re
from datetime import timedelta
from typing import Any

import pytest

from durabus.errors import ConfigurationError
from durabus.model.policies import BreakerPolicy, breaker_policy
from durabus.worker.breaker import Breaker, BreakerState

WINDOW, OPEN_FOR = 60.0, 30.0


class Time:
    now = 1000.0


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr("durabus.worker.breaker.monotonic", lambda: time.now)
    return time


@pytest.fixture
def breaker(time: Time) -> Breaker:
    return Breaker(BreakerPolicy())


def opened(breaker: Breaker) -> Breaker:
    for event in range(4):
        breaker.failed(event)
    assert breaker.state is BreakerState.OPEN
    return breaker


def test_a_breaker_begins_closed(breaker: Breaker) -> None:
    assert (breaker.state, breaker.admit()) == (BreakerState.CLOSED, 0.0)


@pytest.mark.parametrize(
    ("successes", "failures", "state"),
    [
        (0, 3, BreakerState.CLOSED),
        (0, 4, BreakerState.OPEN),
        (1, 3, BreakerState.OPEN),
        (2, 2, BreakerState.CLOSED),
        (4, 4, BreakerState.CLOSED),
        (4, 5, BreakerState.OPEN),
    ],
)
def test_more_than_half_of_at_least_four_events_must_fail(
    breaker: Breaker, successes: int, failures: int, state: BreakerState
) -> None:
    for event in range(successes):
        breaker.succeeded(event)
    for event in range(failures):
        breaker.failed(100 + event)
    assert breaker.state is state


def test_one_event_is_one_sample_however_often_it_fails(breaker: Breaker) -> None:
    for _ in range(50):
        breaker.failed(1)
    assert breaker.state is BreakerState.CLOSED


def test_an_event_that_succeeds_at_last_is_no_failure(breaker: Breaker) -> None:
    for event in range(3):
        breaker.failed(event)
    breaker.succeeded(0)
    breaker.failed(3)
    breaker.failed(4)
    assert breaker.state is BreakerState.OPEN
    other = Breaker(BreakerPolicy())
    for event in range(3):
        other.failed(event)
        other.succeeded(event)
    other.failed(3)
    assert other.state is BreakerState.CLOSED


def test_a_breaker_counts_the_last_minute_and_stays_open_for_half_a_minute(breaker: Breaker, time: Time) -> None:
    seen = []
    for seconds, event in [(0, 1), (60, 2), (0, 3), (0, 4), (59, 5), (29.9, None), (0.1, None)]:
        time.now += seconds
        if event is not None:
            breaker.failed(event)
        seen.append(str(breaker.state))
    assert seen == [*["closed"] * 4, "open", "open", "half-open"]


def test_failures_outside_the_window_are_forgotten(breaker: Breaker, time: Time) -> None:
    for event in range(3):
        breaker.failed(event)
    time.now += WINDOW + 1
    breaker.failed(3)
    assert breaker.state is BreakerState.CLOSED


def test_successes_outside_the_window_are_forgotten(breaker: Breaker, time: Time) -> None:
    for event in range(100):
        breaker.succeeded(event)
    time.now += WINDOW + 1
    for event in range(4):
        breaker.failed(event)
    assert breaker.state is BreakerState.OPEN


def test_an_open_breaker_admits_no_call_and_returns_how_long_it_stays_open(breaker: Breaker, time: Time) -> None:
    opened(breaker)
    assert breaker.admit() == OPEN_FOR
    time.now += 10
    assert breaker.admit() == OPEN_FOR - 10


def test_a_half_open_breaker_admits_one_probe(breaker: Breaker, time: Time) -> None:
    opened(breaker)
    time.now += OPEN_FOR
    assert breaker.state is BreakerState.HALF_OPEN
    assert breaker.admit() == 0
    assert breaker.admit() > 0


def test_a_probe_that_succeeds_closes_the_breaker_with_a_clean_slate(breaker: Breaker, time: Time) -> None:
    opened(breaker)
    time.now += OPEN_FOR
    breaker.admit()
    breaker.succeeded(9)
    assert breaker.state is BreakerState.CLOSED
    for event in range(3):
        breaker.failed(event)
    assert breaker.state is BreakerState.CLOSED


def test_a_probe_that_fails_opens_the_breaker_anew(breaker: Breaker, time: Time) -> None:
    opened(breaker)
    time.now += OPEN_FOR
    breaker.admit()
    breaker.failed(9)
    assert (breaker.state, breaker.admit()) == (BreakerState.OPEN, OPEN_FOR)


def test_a_probe_that_was_abandoned_leaves_room_for_another(breaker: Breaker, time: Time) -> None:
    opened(breaker)
    time.now += OPEN_FOR
    breaker.admit()
    breaker.abandoned()
    assert breaker.admit() == 0


def test_a_late_failure_of_a_call_from_before_does_not_keep_the_breaker_open_longer(
    breaker: Breaker, time: Time
) -> None:
    opened(breaker)
    time.now += 10
    breaker.failed(99)
    assert breaker.admit() == OPEN_FOR - 10


def test_the_memory_of_a_breaker_is_bounded(breaker: Breaker, time: Time) -> None:
    for event in range(10_000):
        time.now += 1
        breaker.succeeded(event)
        breaker.succeeded(event)
        breaker.failed(event)
    assert len(breaker._failures) <= WINDOW
    assert len(breaker._successes) <= 7


def test_the_policy_says_how_many_failures_open_the_breaker_and_for_how_long(time: Time) -> None:
    breaker = Breaker(BreakerPolicy(failure_ratio=0.0, minimum_samples=2, window=10.0, open_for=timedelta(seconds=5)))
    breaker.failed(1)
    time.now += 11
    breaker.failed(2)
    assert breaker.state is BreakerState.CLOSED, "the first failure is out of the window"
    breaker.succeeded(3)
    breaker.failed(4)
    assert (breaker.state, breaker.admit()) == (BreakerState.OPEN, 5.0)


def test_a_breaker_without_a_policy_never_opens_and_remembers_nothing(time: Time) -> None:
    breaker = Breaker(None)
    for event in range(100):
        breaker.failed(event)
        breaker.succeeded(event)
    assert (breaker.state, breaker.admit()) == (BreakerState.CLOSED, 0.0)
    assert not breaker._failures
    assert not breaker._successes


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"failure_ratio": 1.0}, "failure_ratio=1.0"),
        ({"failure_ratio": "0.5"}, "failure_ratio='0.5'"),
        ({"minimum_samples": 0}, "minimum_samples=0"),
        ({"window": 0}, "window=0"),
        ({"open_for": -1}, "open_for=-1"),
        ({"open": 3}, "no such option"),
    ],
)
def test_a_policy_that_cannot_be_followed_is_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(named)):
        breaker_policy(fields, BreakerPolicy())


def test_an_option_is_a_policy_some_of_its_fields_or_a_switch() -> None:
    default = BreakerPolicy(open_for=7.0)
    assert breaker_policy(None, default) is default
    assert breaker_policy(True, default) is default
    assert breaker_policy(True, None) == BreakerPolicy()
    assert breaker_policy(False, default) is None
    assert breaker_policy({"window": 9.0}, default) == BreakerPolicy(window=9.0, open_for=7.0)
    assert breaker_policy(BreakerPolicy(), default) == BreakerPolicy()

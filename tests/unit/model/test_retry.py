"""When a failed attempt is tried again."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durabus.errors import ConfigurationError
from durabus.model.policies import RetryPolicy

STEADY = RetryPolicy(jitter=0.0)


def middle() -> float:
    """The random number that jitters nothing."""
    return 0.5


def test_the_defaults_are_those_of_the_design() -> None:
    assert RetryPolicy() == RetryPolicy(max_retries=3, base_delay=1.0, max_delay=30.0, multiplier=2.0, jitter=0.1)


@pytest.mark.parametrize(
    ("attempt", "delay"), [(1, 0), (2, 1), (3, 2), (4, 4), (5, 8), (6, 16), (7, 30), (8, 30), (100, 30)]
)
def test_attempt_one_comes_at_once_and_each_later_one_waits_longer(attempt: int, delay: float) -> None:
    assert STEADY.delay_before(attempt, middle) == delay


def test_a_policy_of_ones_own_gives_its_own_schedule() -> None:
    policy = RetryPolicy(base_delay=0.5, max_delay=20.0, multiplier=3.0, jitter=0.0)
    assert [policy.delay_before(n, middle) for n in range(1, 7)] == [0.0, 0.5, 1.5, 4.5, 13.5, 20.0]


def test_a_multiplier_of_one_waits_alike_each_time() -> None:
    policy = RetryPolicy(base_delay=5.0, multiplier=1.0, jitter=0.0)
    assert {policy.delay_before(n, middle) for n in range(2, 50)} == {5.0}


def test_durations_may_be_timedeltas() -> None:
    policy = RetryPolicy(base_delay=timedelta(milliseconds=250), max_delay=timedelta(minutes=1), jitter=0.0)
    assert policy.delay_before(2, middle) == 0.25
    assert policy.delay_before(100, middle) == 60.0


@pytest.mark.parametrize(("random", "delay"), [(0.0, 3.6), (0.5, 4.0), (1.0, 4.4)])
def test_jitter_moves_the_delay_by_a_tenth_at_most(random: float, delay: float) -> None:
    assert RetryPolicy().delay_before(4, lambda: random) == pytest.approx(delay)


@given(st.integers(2, 200), st.floats(0, 1), st.floats(0, 1))
def test_a_delay_stays_within_its_jitter_and_is_never_negative(attempt: int, random: float, jitter: float) -> None:
    plain = STEADY.delay_before(attempt, middle)
    delay = RetryPolicy(jitter=jitter).delay_before(attempt, lambda: random)
    assert max(0, plain * (1 - jitter)) - 1e-9 <= delay <= plain * (1 + jitter) + 1e-9


@pytest.mark.parametrize("attempt", [1_025, 10_000, 1_000_000])
@pytest.mark.parametrize("multiplier", [2.0, 2, 1.5, 1e308])
def test_a_power_too_large_for_a_float_waits_the_longest_delay(attempt: int, multiplier: float) -> None:
    assert RetryPolicy(multiplier=multiplier, jitter=0.0).delay_before(attempt, middle) == 30.0


@pytest.mark.parametrize("attempt", [2, 100, 10_000])
def test_a_base_delay_of_zero_never_waits(attempt: int) -> None:
    assert RetryPolicy(base_delay=0.0).delay_before(attempt, middle) == 0.0


@pytest.mark.parametrize(("retries", "attempts"), [(0, 1), (3, 4), (None, None)])
def test_retries_come_after_the_first_attempt(retries: int | None, attempts: int | None) -> None:
    assert RetryPolicy(max_retries=retries).max_attempts == attempts


def test_a_partial_override_replaces_what_it_names_and_nothing_else() -> None:
    policy = RetryPolicy(max_retries=1, base_delay=2.0, jitter=0.0).merged({"max_retries": 5, "max_delay": 9.0})
    assert policy == RetryPolicy(max_retries=5, base_delay=2.0, max_delay=9.0, jitter=0.0)


def test_an_override_may_lift_the_limit() -> None:
    assert RetryPolicy().merged({"max_retries": None}).max_attempts is None


@pytest.mark.parametrize("override", [None, {}])
def test_no_override_changes_nothing(override: dict[str, Any] | None) -> None:
    assert STEADY.merged(override) == STEADY


def test_a_whole_policy_as_override_replaces_the_other() -> None:
    assert STEADY.merged(RetryPolicy(max_retries=7)) == RetryPolicy(max_retries=7)


def test_an_override_does_not_change_the_policy_it_overrides() -> None:
    STEADY.merged({"max_retries": 7})
    assert RetryPolicy(jitter=0.0) == STEADY


def test_an_option_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigurationError, match=r"maxRetries.*max_retries.*base_delay.*max_delay.*multiplier.*jitter"):
        RetryPolicy().merged({"maxRetries": 5})


BAD = [
    ("max_retries", -1, "0 or more, or None"),
    ("max_retries", True, "0 or more, or None"),
    ("max_retries", 1.5, "0 or more, or None"),
    ("max_retries", "3", "0 or more, or None"),
    ("base_delay", -1.0, "0 or more seconds"),
    ("base_delay", timedelta(seconds=-1), "0 or more seconds"),
    ("base_delay", float("nan"), "finite"),
    ("base_delay", "1s", "seconds (a number) or a timedelta"),
    ("max_delay", float("inf"), "finite"),
    ("max_delay", None, "seconds (a number) or a timedelta"),
    ("multiplier", 0.5, "1 or more"),
    ("multiplier", 0, "1 or more"),
    ("multiplier", float("inf"), "1 or more"),
    ("multiplier", float("nan"), "1 or more"),
    ("multiplier", "2", "1 or more"),
    ("jitter", -0.1, "from 0 to 1"),
    ("jitter", 1.1, "from 0 to 1"),
    ("jitter", float("nan"), "from 0 to 1"),
    ("jitter", "10%", "from 0 to 1"),
]


@pytest.mark.parametrize(("option", "value", "limit"), BAD, ids=[f"{option}={value}" for option, value, _ in BAD])
def test_a_bad_value_is_refused_with_name_value_and_limit(option: str, value: Any, limit: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"{option}={value!r}: must be") + ".*" + re.escape(limit)):
        RetryPolicy(**{option: value})


@pytest.mark.parametrize(("option", "value", "limit"), BAD, ids=[f"{option}={value}" for option, value, _ in BAD])
def test_a_bad_value_in_an_override_is_refused_too(option: str, value: Any, limit: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(limit)):
        RetryPolicy().merged({option: value})


@pytest.mark.parametrize("fields", [{"base_delay": 60}, {"max_delay": 0.5}, {"base_delay": timedelta(minutes=1)}])
def test_a_base_delay_above_the_longest_delay_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"base_delay=.* is longer than max_delay=.*give a max_delay"):
        RetryPolicy(**fields)
    with pytest.raises(ConfigurationError, match="is longer than max_delay"):
        RetryPolicy().merged(fields)


def test_jitter_stays_below_the_longest_delay_and_spreads_there() -> None:
    policy = RetryPolicy(base_delay=10.0, max_delay=10.0, jitter=0.5)
    delays = [policy.delay_before(2, lambda n=n: n / 10) for n in range(11)]  # type: ignore[misc]
    assert max(delays) == 10.0
    assert min(delays) == 5.0
    assert len(set(delays)) == 6, "cut off, six of the eleven would be equal"

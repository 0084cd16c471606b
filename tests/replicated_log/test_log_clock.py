"""The time between the records of a log."""

import pytest

from durabus.stores.replicated_log import log_clock
from durabus.stores.replicated_log.log_clock import STRETCH, LogClock


class Time:
    now = 100.0


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(log_clock, "monotonic", lambda: time.now)
    return time


def test_the_smallest_delay_is_the_best_bound(time: Time) -> None:
    clock = LogClock()
    clock.arrived(1000.0)
    time.now += 1
    clock.arrived(1000.9)
    assert clock.now() == 1001.0


def test_a_clock_that_runs_faster_than_the_brokers_is_not_early_for_ever(time: Time) -> None:
    clock, broker = LogClock(), 1000.0
    for _ in range(1000):
        clock.arrived(broker)
        time.now += 1.03
        broker += 1
    assert broker <= clock.now() <= broker + 2 * STRETCH * 0.03 + 0.04


def test_a_node_follows_a_broker_with_a_clock_that_was_set_back(time: Time) -> None:
    clock = LogClock()
    clock.arrived(1000.0)
    for second in range(int(2 * STRETCH) + 2):
        time.now += 1
        clock.arrived(900.0 + second)
    assert clock.now() == 900.0 + second

"""Time as a value that is passed in."""

from __future__ import annotations

import time

import pytest

from durabus.clock import Clock, ManualClock, SystemClock, monotonic, perf_counter


def test_the_system_clock_returns_the_hosts_time() -> None:
    before = time.time()
    now = SystemClock().now()
    assert before <= now <= time.time()


def test_a_manual_clock_stands_still() -> None:
    clock = ManualClock(start=100.0)
    assert clock.now() == clock.now() == 100.0


def test_a_manual_clock_moves_when_a_test_advances_it() -> None:
    clock = ManualClock(start=100.0)
    clock.advance(2.5)
    clock.advance(0)
    assert clock.now() == 102.5


def test_manual_clocks_do_not_share_their_time() -> None:
    first, second = ManualClock(), ManualClock()
    first.advance(60)
    assert second.now() == ManualClock().now()
    assert first.now() == second.now() + 60


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()])
def test_both_are_clocks(clock: Clock) -> None:
    assert isinstance(clock.now(), float)


@pytest.mark.parametrize("read", [monotonic, perf_counter])
def test_local_time_never_goes_back(read: object) -> None:
    assert callable(read)
    readings = [read() for _ in range(100)]
    assert readings == sorted(readings)

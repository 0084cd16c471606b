"""The log of librdkafka: its clients write several lines a second while the broker is away."""

import logging

import pytest

from durabus import ManualClock
from durabus.stores.kafka import topics
from durabus.stores.kafka.topics import OVER_AFTER, Doublings

LINE = logging.makeLogRecord({"msg": "Connect to ipv4#127.0.0.1:9092 failed: Connection refused"})


def test_of_the_lines_of_one_trouble_one_passes_at_each_doubling(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, doublings, passed = ManualClock(1000.0), Doublings(), []
    monkeypatch.setattr(topics, "monotonic", clock.now)
    for _ in range(500):
        if doublings.filter(LINE):
            passed.append(clock.now() - 1000.0)
        clock.advance(0.25)
    assert passed == [0.0, 10.0, 20.0, 40.0, 80.0]


def test_after_a_quiet_time_the_first_line_passes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, doublings = ManualClock(1000.0), Doublings()
    monkeypatch.setattr(topics, "monotonic", clock.now)
    assert doublings.filter(LINE)
    clock.advance(1.0)
    assert not doublings.filter(LINE)
    clock.advance(OVER_AFTER + 1.0)
    assert doublings.filter(LINE)


def test_the_logger_of_the_driver_has_the_filter() -> None:
    assert [type(one) for one in topics.QUIET["logger"].filters] == [Doublings]

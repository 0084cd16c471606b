"""What a worker leaves behind for people: the record of a failed attempt, and counters."""

import logging

import pytest
from tests.worker.support import STEADY, make_event, make_handler

from durabus import EventStatus
from durabus.model.policies import RetryPolicy
from durabus.worker.telemetry import Metrics, log_failed_attempt


def records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The records of failed attempts. Other code in this process may log meanwhile."""
    return [record for record in caplog.records if record.name == "durabus.retry"]


def test_a_failed_attempt_is_one_warning_with_its_fields_as_extras(caplog: pytest.LogCaptureFixture) -> None:
    event, handler = make_event(attempts=2), make_handler(print, id="mailer", retry=STEADY)
    log_failed_attempt(event, handler, "ValueError: no", 0.25)
    (record,) = records(caplog)
    assert (record.name, record.levelname) == ("durabus.retry", "WARNING")
    assert record.getMessage() == (
        f"event {event.event_id} (user.created), handler mailer: attempt 2 of 4 failed, next in 250 ms: ValueError: no"
    )
    extras = ("event_id", "event_type", "subscription_id", "attempt", "max_attempts", "delay_ms", "error")
    assert [getattr(record, name) for name in extras] == [
        event.event_id,
        "user.created",
        "mailer",
        2,
        4,
        250,
        "ValueError: no",
    ]


def test_the_last_failed_attempt_is_an_error_and_shows_the_traceback(caplog: pytest.LogCaptureFixture) -> None:
    log_failed_attempt(make_event(attempts=4), make_handler(print), "ValueError: no", None, "Traceback: in shop.py")
    (record,) = records(caplog)
    assert record.levelname == "ERROR"
    assert "no further attempt" in record.getMessage()
    assert getattr(record, "delay_ms", "missing") is None
    assert logging.Formatter("%(message)s").format(record).endswith("ValueError: no\nTraceback: in shop.py")


def test_attempts_before_the_last_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    log_failed_attempt(make_event(attempts=1), make_handler(print), "ValueError: no", 1.0, "Traceback: in shop.py")
    (record,) = records(caplog)
    assert "\n" not in logging.Formatter("%(message)s").format(record)


def test_a_handler_without_a_limit_says_so(caplog: pytest.LogCaptureFixture) -> None:
    log_failed_attempt(make_event(), make_handler(print, retry=RetryPolicy(max_retries=None)), "x", 1.0)
    (record,) = records(caplog)
    assert "attempt 1 of unlimited" in record.getMessage()
    assert getattr(record, "max_attempts", "missing") is None


def test_nothing_is_made_for_a_level_that_is_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="durabus.retry")
    log_failed_attempt(make_event(), make_handler(print), "x", 1.0)
    caplog.set_level(logging.CRITICAL, logger="durabus.retry")
    log_failed_attempt(make_event(), make_handler(print), "x", None)
    assert records(caplog) == []


def test_metrics_begin_empty() -> None:
    snapshot = Metrics().snapshot()
    assert (snapshot.completed, snapshot.retries, snapshot.dead_letters) == ({}, {}, {})


def test_metrics_count_first_successes_apart_from_later_ones() -> None:
    metrics = Metrics()
    metrics.settled(make_event(attempts=1), EventStatus.COMPLETED, failed=False)
    metrics.settled(make_event(attempts=3), EventStatus.COMPLETED, failed=False)
    snapshot = metrics.snapshot()
    assert snapshot.completed == {"user.created": 2}
    assert snapshot.success_after_retry == {"user.created": 1}


def test_metrics_count_retries_dead_letters_and_lost_claims_by_type() -> None:
    metrics = Metrics()
    metrics.settled(make_event("a"), EventStatus.PENDING, failed=True)
    metrics.settled(make_event("b"), EventStatus.FAILED, failed=True)
    metrics.settled(make_event("c"), EventStatus.COMPLETED_WITH_ERRORS, failed=False)
    metrics.lost(make_event("d"))
    snapshot = metrics.snapshot()
    assert (snapshot.retries, snapshot.dead_letters, snapshot.lease_lost) == ({"a": 1}, {"b": 1, "c": 1}, {"d": 1})


def test_an_event_that_was_given_back_is_no_retry() -> None:
    metrics = Metrics()
    metrics.settled(make_event(), EventStatus.PENDING, failed=False)
    assert metrics.snapshot().retries == {}


def test_a_snapshot_does_not_change_afterwards() -> None:
    metrics = Metrics()
    before = metrics.snapshot()
    metrics.settled(make_event(), EventStatus.COMPLETED, failed=False)
    assert before.completed == {}

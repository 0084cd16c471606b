"""An event as its readers see it."""

from __future__ import annotations

import json
import os
import socket
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from msgspec.structs import replace

from durabus.errors import ConfigurationError, PayloadDecodeError
from durabus.model.claim import Claim, ClaimRef, default_worker_id, new_token
from durabus.model.event import Event
from durabus.model.log_entry import LogEntry
from durabus.model.result import HandlerResult, Success, TransientError, UnrecoverableError
from durabus.model.statuses import DEAD_LETTER, HISTORY, LIVE, SETTLED, TERMINAL, Action, EventStatus, ResultStatus

EVENT = Event(
    id=7,
    event_id="0190a000-0000-7000-8000-000000000007",
    bus="orders",
    type="order.placed",
    payload_json='{"lines":["tea"]}',
    created_ts=1_700_000_000.25,
    updated_ts=1_700_000_100.0,
    due_ts=1_700_000_000.25,
)
WAITING = replace(EVENT, attempts=1, errors=("boom",), due_ts=EVENT.updated_ts + 5)


def test_the_payload_is_decoded_anew_at_each_access() -> None:
    EVENT.payload["lines"].append("milk")
    assert EVENT.payload == {"lines": ["tea"]}


def test_a_payload_that_was_damaged_in_the_store_is_an_error_of_our_own() -> None:
    with pytest.raises(PayloadDecodeError):
        _ = replace(EVENT, payload_json="{").payload


def test_no_metadata_reads_as_an_empty_mapping() -> None:
    assert EVENT.metadata == {}
    assert replace(EVENT, metadata_json='{"source":"web"}').metadata == {"source": "web"}


def test_instants_are_shown_as_datetimes_in_utc() -> None:
    assert EVENT.created_at == datetime(2023, 11, 14, 22, 13, 20, 250_000, UTC)
    assert EVENT.updated_at == datetime(2023, 11, 14, 22, 15, tzinfo=UTC)
    assert EVENT.created_at.tzinfo is UTC


def test_a_claimed_event_shows_since_when_and_how_long() -> None:
    claimed = replace(EVENT, status=EventStatus.PROCESSING, picked_ts=1_700_000_200.0, expires_ts=1_700_000_230.0)
    assert claimed.processing_started_at == datetime(2023, 11, 14, 22, 16, 40, tzinfo=UTC)
    assert claimed.lease_expires_at == datetime(2023, 11, 14, 22, 17, 10, tzinfo=UTC)


def test_an_unclaimed_event_shows_no_claim() -> None:
    assert EVENT.processing_started_at is None
    assert EVENT.lease_expires_at is None


def test_an_event_without_errors_has_no_last_error() -> None:
    assert EVENT.last_error is None
    assert EVENT.retry_count == 0


def test_the_last_error_is_a_json_array_with_one_string_for_each_failed_attempt() -> None:
    failed = replace(EVENT, errors=('say "no"', "zwölf\n", "lease expired (worker host:1)"))
    assert failed.last_error is not None
    assert json.loads(failed.last_error) == ['say "no"', "zwölf\n", "lease expired (worker host:1)"]
    assert failed.retry_count == 3


def test_an_event_that_waits_for_a_retry_shows_when() -> None:
    assert WAITING.next_retry_at == WAITING.updated_at + timedelta(seconds=5)


@pytest.mark.parametrize(
    "event",
    [
        EVENT,
        replace(EVENT, due_ts=EVENT.updated_ts + 5),
        replace(WAITING, due_ts=WAITING.updated_ts),
        replace(WAITING, status=EventStatus.PROCESSING),
        replace(WAITING, status=EventStatus.FAILED),
    ],
    ids=["new", "delayed but never failed", "due at once", "claimed again", "dead"],
)
def test_an_event_that_does_not_wait_for_a_retry_shows_no_time(event: Event) -> None:
    assert event.next_retry_at is None


def test_an_event_is_frozen() -> None:
    with pytest.raises(AttributeError):
        EVENT.attempts = 5  # type: ignore[misc]


def test_an_event_survives_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(WAITING), type=Event) == WAITING


def test_a_claim_shows_what_its_writes_must_carry() -> None:
    assert Claim(replace(EVENT, fence=4), "secret").ref == ClaimRef(7, "secret", 4)


def test_tokens_are_long_and_never_the_same() -> None:
    tokens = {new_token() for _ in range(1000)}
    assert len(tokens) == 1000
    assert {len(bytes.fromhex(token)) for token in tokens} == {16}


def test_a_worker_is_labelled_by_host_and_process() -> None:
    assert default_worker_id() == f"{socket.gethostname()}:{os.getpid()}"


def test_a_log_entry_shows_instants_in_utc_and_a_payload_only_at_the_end() -> None:
    entry = LogEntry(
        action=Action.PICKED,
        id=7,
        event_id=EVENT.event_id,
        bus="orders",
        type="order.placed",
        status=EventStatus.PROCESSING,
        at_ts=1_700_000_100.0,
        created_ts=EVENT.created_ts,
        attempt=1,
        generation=0,
        fence=1,
    )
    assert entry.at == datetime(2023, 11, 14, 22, 15, tzinfo=UTC)
    assert entry.created_at == EVENT.created_at
    assert entry.payload is None
    assert replace(entry, payload_json="[1]").payload == [1]


def test_a_handler_result_shows_the_value_that_was_kept() -> None:
    result = HandlerResult(handler_id="mail", status=ResultStatus.SUCCEEDED)
    assert result.value is None
    assert replace(result, value_json='{"sent":true}').value == {"sent": True}


def test_a_success_may_carry_a_value() -> None:
    assert Success().value is None
    assert Success({"sent": True}).value == {"sent": True}


@pytest.mark.parametrize(("given", "expected"), [(None, None), (0, 0.0), (1.5, 1.5), (timedelta(minutes=1), 60.0)])
def test_a_transient_error_may_say_when_to_try_again(given: float | timedelta | None, expected: float | None) -> None:
    error = TransientError("busy", retry_after=given)
    assert str(error) == "busy"
    assert error.retry_after == expected


def test_a_transient_error_with_a_bad_delay_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="retry_after=-1: must be 0 or more seconds"):
        TransientError("busy", retry_after=-1)


def test_outcomes_without_a_text_say_what_they_are() -> None:
    assert str(TransientError()) == "transient error"
    assert str(UnrecoverableError()) == "unrecoverable error"


def test_every_status_is_either_live_or_terminal() -> None:
    assert set(EventStatus) == LIVE | TERMINAL
    assert LIVE.isdisjoint(TERMINAL)
    assert DEAD_LETTER < TERMINAL
    assert {EventStatus.COMPLETED, EventStatus.CANCELLED} == HISTORY == TERMINAL - DEAD_LETTER


def test_a_terminal_status_is_also_the_action_that_logs_it() -> None:
    assert {Action(status.value).value for status in TERMINAL} == set(TERMINAL)


def test_success_an_unrecoverable_error_and_the_value_of_another_handler_settle_a_handler() -> None:
    assert {status.value for status in SETTLED} == {"SUCCEEDED", "UNRECOVERABLE", "CANCELLED", "ABORTED", "KEPT"}

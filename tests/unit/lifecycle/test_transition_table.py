"""The lifecycle's table, row by row: every command in every situation, with every kind of claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.lifecycle.lives import (
    AGAIN,
    FENCE,
    HOPELESS,
    LEASE,
    LEASE_ERROR,
    LIVE,
    LIVES,
    MINE,
    NEW_FENCE,
    NOW,
    OLD_FENCE,
    PROCESSING,
    PUBLISHED,
    TAKEN,
    UNSETTLED,
    WRONG_TOKEN,
)

from durabus.lifecycle.handlers import merge_results
from durabus.lifecycle.state import (
    NOT_DEAD,
    NOT_DONE,
    NOT_ELIGIBLE,
    NOT_EXPIRED,
    NOT_LIVE,
    NOT_PROCESSING,
    NOT_YOURS,
    AbandonedClaim,
    Applied,
    EventCommand,
    EventState,
    Expire,
    Grant,
    HandlerState,
    Refused,
    Renew,
    Requeue,
    Reset,
    Revoke,
    SettledClaim,
    Start,
)
from durabus.lifecycle.transition import publish, transition
from durabus.model.claim import ClaimRef
from durabus.model.event import Event, new_event
from durabus.model.log_entry import LogEntry
from durabus.model.result import HandlerResult, first_success
from durabus.model.settlement import Cancel, Complete, Fail, Release, Settled
from durabus.model.statuses import Action, EventStatus, ResultStatus

BY_CLAIM: dict[str, Callable[[ClaimRef], EventCommand]] = {
    "start": Start,
    "renew": lambda ref: Renew(ref, LEASE),
    "complete": Complete,
    "complete with errors": lambda ref: Complete(ref, errors=("no such customer",)),
    "fail": lambda ref: Fail(ref, "bang", 5.0),
    "give up": lambda ref: Fail(ref, "bang", None),
    "release": Release,
    "cancel": lambda ref: Cancel(ref, "expired"),
}
BY_ANYBODY: dict[str, EventCommand] = {
    "claim": Grant("host:2", "theirs", LEASE),
    "expire": Expire(),
    "requeue": Requeue(),
    "reset": Reset("stuck"),
    "revoke": Revoke("not wanted"),
}
COMMANDS: dict[str, EventCommand] = BY_ANYBODY | {name: make(MINE) for name, make in BY_CLAIM.items()}
REASONS = {
    "claim": NOT_ELIGIBLE,
    "expire": NOT_EXPIRED,
    "requeue": NOT_DEAD,
    "reset": NOT_PROCESSING,
    "revoke": NOT_LIVE,
}

SAME = "as it was"
"""Applied, but nothing changed and nothing logged: the repeat of a call that took effect."""

TABLE: dict[str, dict[str, str]] = {
    "claim": {
        "pending": "PROCESSING: PICKED",
        "due just now": "PROCESSING: PICKED",
        "abandoned": "PROCESSING: PICKED",
        "released": "PROCESSING: PICKED",
        "lease over": "PROCESSING: ABANDONED, PICKED",
        "last lease over": "FAILED: FAILED",
    },
    "start": dict.fromkeys(PROCESSING, "PROCESSING: STARTED") | {"started": SAME},
    "renew": dict.fromkeys(PROCESSING, "PROCESSING:"),
    "complete": dict.fromkeys(PROCESSING, "COMPLETED: COMPLETED")
    | {
        "unsettled": NOT_DONE,
        "hopeless": "COMPLETED_WITH_ERRORS: COMPLETED_WITH_ERRORS",
        "abandoned": "COMPLETED: COMPLETED",
        "completed": SAME,
        "with errors": SAME,
    },
    "complete with errors": dict.fromkeys(PROCESSING, "COMPLETED_WITH_ERRORS: COMPLETED_WITH_ERRORS")
    | {
        "abandoned": "COMPLETED_WITH_ERRORS: COMPLETED_WITH_ERRORS",
        "completed": SAME,
        "with errors": SAME,
    },
    "fail": dict.fromkeys(PROCESSING, "PENDING: FAILED")
    | {
        "abandoned": "PENDING: FAILED",
        "last attempt": "FAILED: FAILED",
        "last lease over": "FAILED: FAILED",
        "not due": SAME,
        "due just now": SAME,
        "failed": SAME,
    },
    "give up": dict.fromkeys([*PROCESSING, "abandoned"], "FAILED: FAILED")
    | {"not due": SAME, "due just now": SAME, "failed": SAME},
    "release": dict.fromkeys([*PROCESSING, "abandoned"], "PENDING: RELEASED") | {"released": SAME},
    "expire": {"lease over": "PENDING: ABANDONED", "last lease over": "FAILED: FAILED"},
    "requeue": dict.fromkeys(["with errors", "failed", "failed by expiry"], "PENDING: REQUEUED"),
    "reset": dict.fromkeys(PROCESSING, "PENDING: RESET"),
    "cancel": dict.fromkeys([*PROCESSING, "abandoned"], "CANCELLED: CANCELLED") | {"expired": SAME},
    "revoke": dict.fromkeys(LIVE, "CANCELLED: CANCELLED"),
}
"""The expected outcomes. A command that is not listed is refused."""


def told(before: EventState, outcome: Applied | Refused) -> str:
    if isinstance(outcome, Refused):
        return outcome.reason
    if outcome == Applied(before):
        return SAME
    actions = ", ".join(record.action for record in outcome.records)
    return f"{outcome.state.event.status}: {actions}".strip()


def apply(state: EventState, command: EventCommand, now: float = NOW) -> Applied:
    outcome = transition(state, command, now)
    assert isinstance(outcome, Applied)
    return outcome


def logged(action: Action, event: Event, **fields: Any) -> LogEntry:
    """Return the entry of a transition that led to ``event``."""
    return LogEntry(
        action=action,
        id=7,
        event_id=PUBLISHED.event_id,
        bus="orders",
        type="order.placed",
        status=event.status,
        at_ts=NOW,
        created_ts=900.0,
        attempt=event.attempts,
        generation=event.generation,
        fence=event.fence,
        **fields,
    )


def logged_end(event: Event, **fields: Any) -> LogEntry:
    """Return the entry of a transition that ended the event, with all that a reader needs."""
    return logged(
        Action(event.status.value),
        event,
        worker_id="host:1",
        tags=("vip",),
        metadata_json='{"source":"web"}',
        parent_id=PUBLISHED.parent_id,
        payload_json='{"order_id":7}',
        errors=event.errors,
        **fields,
    )


def pending(event: Event, **changes: Any) -> Event:
    """Return ``event`` as it is when it is back in the queue."""
    free = dict.fromkeys(["worker_id", "picked_ts", "started_ts", "expires_ts"])
    return replace(event, **({"status": EventStatus.PENDING, "updated_ts": NOW, "due_ts": NOW} | free | changes))


@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_in_every_situation_does_what_the_table_says(name: str, life: str) -> None:
    expected = TABLE[name].get(life, REASONS.get(name, NOT_YOURS))
    assert told(LIVES[life], transition(LIVES[life], COMMANDS[name], NOW)) == expected


@pytest.mark.parametrize("claim", [WRONG_TOKEN, OLD_FENCE, NEW_FENCE], ids=["token", "old fence", "new fence"])
@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("name", BY_CLAIM)
def test_a_claim_with_a_wrong_token_or_fence_is_refused_everything(name: str, life: str, claim: ClaimRef) -> None:
    assert transition(LIVES[life], BY_CLAIM[name](claim), NOW) == Refused(NOT_YOURS)


@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("name", BY_CLAIM)
def test_the_right_claim_is_judged_alike_however_late_it_comes(name: str, life: str) -> None:
    state, command = LIVES[life], BY_CLAIM[name](MINE)
    assert told(state, transition(state, command, NOW + 1e6)) == told(state, transition(state, command, NOW))


@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("name", COMMANDS)
def test_the_state_that_is_handed_in_stays_as_it_was(name: str, life: str) -> None:
    before = replace(LIVES[life])
    transition(LIVES[life], COMMANDS[name], NOW)
    assert LIVES[life] == before


@pytest.mark.parametrize("life", PROCESSING)
@pytest.mark.parametrize("name", ["start", "complete with errors", "fail", "give up", "release", "cancel"])
def test_an_exact_repeat_is_applied_and_changes_nothing(name: str, life: str) -> None:
    once = apply(LIVES[life], BY_CLAIM[name](MINE))
    assert transition(once.state, BY_CLAIM[name](MINE), NOW + 60) == Applied(once.state)


@pytest.mark.parametrize("first", ["complete", "fail", "release", "cancel"])
@pytest.mark.parametrize("second", ["complete", "fail", "release", "cancel"])
def test_a_claim_that_is_settled_cannot_be_settled_in_another_way(first: str, second: str) -> None:
    once = apply(LIVES["claimed"], BY_CLAIM[first](MINE)).state
    expected = Applied(once) if first == second else Refused(NOT_YOURS)
    assert transition(once, BY_CLAIM[second](MINE), NOW) == expected


def test_a_repeat_returns_its_outcome_after_another_worker_has_claimed_the_event() -> None:
    failed = apply(LIVES["claimed"], Fail(MINE, "bang", 0.0)).state
    taken = apply(failed, Grant("host:2", "theirs", LEASE)).state
    assert transition(taken, Fail(MINE, "bang", 0.0), NOW) == Applied(taken)


def test_a_repeat_is_refused_after_another_worker_has_settled_the_event() -> None:
    failed = apply(LIVES["claimed"], Fail(MINE, "bang", 0.0)).state
    taken = apply(failed, Grant("host:2", "theirs", LEASE)).state
    done = apply(taken, Complete(ClaimRef(7, "theirs", FENCE + 1))).state
    assert transition(done, Fail(MINE, "bang", 0.0), NOW) == Refused(NOT_YOURS)


def test_a_settlement_keeps_its_outcome_for_a_repeat() -> None:
    after = apply(LIVES["claimed"], Fail(MINE, "bang", 5.0)).state
    assert after.settled == SettledClaim(
        "mine", FENCE, Action.FAILED, Settled(7, EventStatus.PENDING, next_retry_ts=NOW + 5)
    )


def test_publish_makes_a_pending_event_and_logs_it() -> None:
    new = new_event(
        "order.placed",
        {"order_id": 7},
        bus="orders",
        event_id=PUBLISHED.event_id,
        metadata={"source": "web"},
        tags=["vip"],
        priority=5,
        delay=60.0,
        max_attempts=2,
        parent_id=PUBLISHED.parent_id,
        idempotency_key="order-7",
    )
    event = replace(PUBLISHED, created_ts=NOW, updated_ts=NOW, due_ts=NOW + 60)
    applied = publish(new, 7, NOW)
    assert applied.state == EventState(event)
    head = logged(
        Action.PUBLISHED, event, tags=("vip",), metadata_json='{"source":"web"}', parent_id=PUBLISHED.parent_id
    )
    assert applied.entries == (replace(head, created_ts=NOW),)


def test_a_claim_counts_the_attempt_advances_the_fence_and_sets_the_lease() -> None:
    applied = apply(LIVES["released"], Grant("host:2", "theirs", LEASE))
    event = replace(
        PUBLISHED,
        status=EventStatus.PROCESSING,
        attempts=1,
        fence=FENCE + 1,
        worker_id="host:2",
        updated_ts=NOW,
        picked_ts=NOW,
        expires_ts=NOW + LEASE,
    )
    assert applied.state == EventState(event, "theirs", (), LIVES["released"].settled)
    assert applied.entries == (logged(Action.PICKED, event, worker_id="host:2"),)


def test_a_takeover_spends_the_lost_attempt_before_it_counts_its_own() -> None:
    applied = apply(LIVES["lease over"], Grant("host:2", "theirs", LEASE))
    error = "lease expired (worker host:1)"
    abandoned = pending(TAKEN, errors=(error,))
    event = replace(
        abandoned,
        status=EventStatus.PROCESSING,
        attempts=2,
        fence=FENCE + 1,
        worker_id="host:2",
        picked_ts=NOW,
        expires_ts=NOW + LEASE,
    )
    assert applied.state == EventState(event, "theirs")
    assert applied.entries == (
        logged(Action.ABANDONED, abandoned, worker_id="host:1", error=error),
        logged(Action.PICKED, event, worker_id="host:2"),
    )


def test_a_takeover_forgets_that_the_lost_attempt_had_started() -> None:
    late = replace(LIVES["started"], event=replace(LIVES["started"].event, expires_ts=NOW))
    assert apply(late, Grant("host:2", "theirs", LEASE)).state.event.started_ts is None


def test_start_records_when_the_work_began() -> None:
    applied = apply(LIVES["claimed"], Start(MINE))
    event = replace(TAKEN, started_ts=NOW, updated_ts=NOW)
    assert applied.state == EventState(event, "mine")
    assert applied.entries == (logged(Action.STARTED, event, worker_id="host:1"),)


@pytest.mark.parametrize("life", ["claimed", "lease over"])
def test_renew_moves_the_expiry_and_logs_nothing(life: str) -> None:
    event = replace(TAKEN, expires_ts=NOW + LEASE)
    assert transition(LIVES[life], Renew(MINE, LEASE), NOW) == Applied(EventState(event, "mine"))


def test_complete_ends_the_event_with_all_there_is_to_know() -> None:
    results = (HandlerResult(handler_id="mail", status=ResultStatus.SUCCEEDED, attempts=1, value_json="1"),)
    command = Complete(MINE, results, execution_time_ms=12.5, status_code=200, reason="no handler")
    applied = apply(LIVES["last attempt"], command)
    event = replace(AGAIN, status=EventStatus.COMPLETED, updated_ts=NOW, expires_ts=None)
    assert applied.state.event == event
    assert applied.state.results == results
    assert applied.state.token is None
    assert applied.entries == (
        logged_end(event, results=results, execution_time_ms=12.5, status_code=200, reason="no handler"),
    )


def test_complete_shows_its_only_handler_in_the_entry_and_stores_no_result() -> None:
    applied = apply(LIVES["claimed"], Complete(MINE, execution_time_ms=12.5, handler_id="mail"))
    assert applied.state.results == ()
    assert [entry.results for entry in applied.entries] == [(first_success("mail", 12.5),)]
    known = HandlerResult(handler_id="mail", status=ResultStatus.SUCCEEDED, attempts=3, value_json="1")
    applied = apply(LIVES["claimed"], Complete(MINE, (known,), handler_id="mail"))
    assert [entry.results for entry in applied.entries] == [(known,)]


def test_complete_with_errors_ends_as_a_dead_letter_with_one_error_for_the_attempt() -> None:
    applied = apply(LIVES["last attempt"], Complete(MINE, errors=("no such customer", "no such order")))
    error = "no such customer; no such order"
    event = replace(
        AGAIN,
        status=EventStatus.COMPLETED_WITH_ERRORS,
        errors=("boom", error),
        updated_ts=NOW,
        expires_ts=None,
    )
    assert applied.state.event == event
    assert applied.entries == (logged_end(event, error=error),)


def test_a_handler_that_said_unrecoverable_gives_the_error() -> None:
    applied = apply(LIVES["hopeless"], Complete(MINE))
    assert applied.state.event.errors == ("no such address",)
    assert applied.entries[0].results == tuple(row.result for row in HOPELESS)


def test_an_unrecoverable_result_without_a_text_still_leaves_an_error() -> None:
    gone = HandlerResult(handler_id="mail", status=ResultStatus.UNRECOVERABLE)
    assert apply(LIVES["claimed"], Complete(MINE, (gone,))).state.event.errors == ("unrecoverable error",)


@pytest.mark.parametrize("status", ["PENDING", "PROCESSING", "TRANSIENT", "TIMED_OUT"])
def test_complete_is_refused_while_a_handler_is_not_done(status: str) -> None:
    result = HandlerResult(handler_id="mail", status=ResultStatus(status))
    assert transition(LIVES["claimed"], Complete(MINE, (result,)), NOW) == Refused(NOT_DONE)


def test_complete_may_bring_the_result_that_was_missing() -> None:
    audit = HandlerResult(handler_id="audit", status=ResultStatus.SUCCEEDED, attempts=2)
    applied = apply(LIVES["unsettled"], Complete(MINE, (audit,)))
    assert applied.state.event.status is EventStatus.COMPLETED
    assert [result.status for result in applied.state.results] == [ResultStatus.SUCCEEDED] * 2


def test_fail_waits_for_the_retry_and_keeps_the_error() -> None:
    applied = apply(LIVES["started"], Fail(MINE, "bang", 5.0, execution_time_ms=3.0, status_code=503))
    event = pending(TAKEN, errors=("bang",), due_ts=NOW + 5)
    assert applied.state.event == event
    assert applied.entries == (
        logged(
            Action.FAILED,
            event,
            worker_id="host:1",
            error="bang",
            next_retry_ts=NOW + 5,
            execution_time_ms=3.0,
            status_code=503,
        ),
    )


def test_fail_keeps_the_results_of_the_handlers_that_ran() -> None:
    failed = HandlerResult(handler_id="audit", status=ResultStatus.TIMED_OUT, attempts=2, error="slow")
    after = apply(LIVES["unsettled"], Fail(MINE, "bang", 5.0, (failed,))).state
    assert [(result.handler_id, result.status) for result in after.results] == [
        ("mail", ResultStatus.SUCCEEDED),
        ("audit", ResultStatus.TIMED_OUT),
    ]


@pytest.mark.parametrize("delay", [5.0, None])
def test_the_last_attempt_that_fails_ends_the_event_whatever_the_delay(delay: float | None) -> None:
    applied = apply(LIVES["last attempt"], Fail(MINE, "bang", delay, execution_time_ms=3.0, status_code=503))
    event = replace(AGAIN, status=EventStatus.FAILED, errors=("boom", "bang"), updated_ts=NOW, expires_ts=None)
    assert applied.state.event == event
    assert applied.entries == (logged_end(event, error="bang", execution_time_ms=3.0, status_code=503),)


def test_an_event_without_a_limit_of_its_own_may_fail_for_ever() -> None:
    state = EventState(replace(AGAIN, attempts=500, max_attempts=None, errors=("boom",) * 499), "mine")
    assert apply(state, Fail(MINE, "bang", 5.0)).state.event.status is EventStatus.PENDING


def test_release_gives_the_attempt_back() -> None:
    applied = apply(LIVES["last attempt"], Release(MINE, delay=60.0, reason="busy"))
    event = pending(AGAIN, attempts=1, due_ts=NOW + 60)
    assert applied.state.event == event
    assert applied.entries == (logged(Action.RELEASED, event, worker_id="host:1", reason="busy"),)


def test_expire_spends_the_attempt() -> None:
    applied = apply(LIVES["lease over"], Expire())
    error = "lease expired (worker host:1)"
    event = pending(TAKEN, errors=(error,))
    assert applied.state == EventState(event, abandoned=AbandonedClaim("mine", "host:1", 990.0, None))
    assert applied.entries == (logged(Action.ABANDONED, event, worker_id="host:1", error=error),)


def test_a_late_success_takes_back_what_the_abandonment_said() -> None:
    applied = apply(LIVES["abandoned"], Complete(MINE, execution_time_ms=45_000.0))
    lived = replace(TAKEN, status=EventStatus.COMPLETED, started_ts=991.0, due_ts=995.0)
    event = replace(lived, updated_ts=NOW, expires_ts=None)
    assert applied.state.event == event
    assert (event.attempts, event.errors, applied.state.abandoned) == (1, (), None)
    assert applied.entries == (logged_end(event, execution_time_ms=45_000.0),)
    assert transition(applied.state, Complete(MINE), NOW) == Applied(applied.state)


def test_a_late_failure_says_what_really_happened() -> None:
    applied = apply(LIVES["abandoned"], Fail(MINE, "bang", 60.0))
    event = pending(TAKEN, errors=("bang",), due_ts=NOW + 60)
    assert applied.state.event == event
    assert applied.entries == (logged(Action.FAILED, event, worker_id="host:1", error="bang", next_retry_ts=NOW + 60),)
    assert transition(applied.state, Fail(MINE, "bang", 60.0), NOW) == Applied(applied.state)
    assert transition(applied.state, Complete(MINE), NOW) == Refused(NOT_YOURS)


def test_a_late_release_gives_the_attempt_back() -> None:
    applied = apply(LIVES["abandoned"], Release(MINE))
    assert applied.state.event == pending(TAKEN, attempts=0)


@pytest.mark.parametrize("name", ["complete", "fail", "give up", "release", "renew", "start"])
def test_an_abandoned_claim_is_over_once_another_worker_has_claimed_the_event(name: str) -> None:
    taken = apply(LIVES["abandoned"], Grant("host:2", "theirs", LEASE)).state
    assert taken.abandoned is None
    assert transition(taken, BY_CLAIM[name](MINE), NOW) == Refused(NOT_YOURS)


@pytest.mark.parametrize("command", [Expire(), Grant("host:2", "theirs", LEASE)], ids=["expire", "claim"])
def test_the_last_attempt_that_is_lost_ends_the_event(command: EventCommand) -> None:
    applied = apply(LIVES["last lease over"], command)
    error = "lease expired (worker host:1)"
    event = replace(AGAIN, status=EventStatus.FAILED, errors=("boom", error), updated_ts=NOW, expires_ts=None)
    assert applied.state == EventState(event)
    assert applied.entries == (logged_end(event, error=error),)


@pytest.mark.parametrize(
    ("own", "asked", "status"),
    [
        (None, None, EventStatus.PENDING),
        (None, 1, EventStatus.FAILED),
        (None, 2, EventStatus.PENDING),
        (1, 5, EventStatus.FAILED),
        (5, 1, EventStatus.PENDING),
    ],
)
def test_the_events_own_limit_goes_before_the_one_that_the_caller_brings(
    own: int | None, asked: int | None, status: EventStatus
) -> None:
    state = EventState(replace(TAKEN, expires_ts=NOW, max_attempts=own), "mine")
    assert apply(state, Expire(asked)).state.event.status is status
    claimed = apply(state, Grant("host:2", "theirs", LEASE, asked)).state.event.status
    assert (claimed is EventStatus.FAILED) is (status is EventStatus.FAILED)


def test_requeue_begins_a_new_generation_and_keeps_the_fence() -> None:
    applied = apply(LIVES["failed"], Requeue())
    event = pending(LIVES["failed"].event, attempts=0, errors=(), generation=1)
    assert applied.state == EventState(event, None, (), LIVES["failed"].settled)
    assert event.fence == FENCE
    assert applied.entries == (logged(Action.REQUEUED, event),)


def test_requeue_keeps_only_what_succeeded() -> None:
    dead = replace(LIVES["with errors"], handlers=UNSETTLED)
    after = apply(dead, Requeue()).state
    done = [result.handler_id for result in after.results if result.status is ResultStatus.SUCCEEDED]
    left = [result.status for result in after.results if result.handler_id == "audit"]
    assert done == ["mail"]
    assert left in ([], [ResultStatus.PENDING])


def test_reset_gives_the_attempt_back_and_the_old_token_is_dead() -> None:
    applied = apply(LIVES["last attempt"], Reset("stuck"))
    event = pending(AGAIN, attempts=1)
    assert applied.state == EventState(event)
    assert applied.entries == (logged(Action.RESET, event, worker_id="host:1", reason="stuck"),)
    assert transition(applied.state, Complete(MINE), NOW) == Refused(NOT_YOURS)


def test_a_cancelled_claim_is_revoked_and_its_result_is_refused() -> None:
    applied = apply(LIVES["last attempt"], Revoke("not wanted"))
    event = replace(AGAIN, status=EventStatus.CANCELLED, fence=FENCE + 1, updated_ts=NOW, expires_ts=None)
    assert applied.state == EventState(event)
    assert applied.entries == (logged_end(event, reason="not wanted"),)
    for command in BY_CLAIM.values():
        assert transition(applied.state, command(MINE), NOW) == Refused(NOT_YOURS)
        assert transition(applied.state, command(NEW_FENCE), NOW) == Refused(NOT_YOURS)


def test_an_abandoned_claim_is_revoked_too() -> None:
    applied = apply(LIVES["abandoned"], Revoke("not wanted"))
    assert (applied.state.event.fence, applied.state.abandoned) == (FENCE + 1, None)
    assert applied.state.event.errors == (LEASE_ERROR,)
    assert transition(applied.state, Complete(MINE), NOW) == Refused(NOT_YOURS)


@pytest.mark.parametrize("life", ["pending", "not due", "released"])
def test_the_fence_of_an_event_without_a_claim_stays_when_it_is_cancelled(life: str) -> None:
    applied = apply(LIVES[life], Revoke("not wanted"))
    assert applied.state.event.fence == LIVES[life].event.fence
    assert applied.entries[0].worker_id is None
    assert applied.entries[0].payload_json == PUBLISHED.payload_json


def test_a_cancelled_event_still_answers_the_repeat_of_its_last_settlement() -> None:
    cancelled = apply(LIVES["not due"], Revoke("not wanted")).state
    assert transition(cancelled, Fail(MINE, "boom", 500.0), NOW) == Applied(cancelled)


def test_a_settlement_that_cancels_keeps_results_and_fence() -> None:
    applied = apply(LIVES["unsettled"], Cancel(MINE, "expired"))
    event = replace(TAKEN, status=EventStatus.CANCELLED, updated_ts=NOW, expires_ts=None)
    assert applied.state.event == event
    results = tuple(row.result for row in UNSETTLED)
    assert applied.entries == (logged_end(event, reason="expired", results=results),)


@pytest.mark.parametrize("command", [Revoke("not wanted"), Cancel(MINE, "expired")], ids=["revoke", "cancel"])
def test_claims_on_handlers_end_with_the_cancelled_event(command: EventCommand) -> None:
    running = HandlerResult(
        handler_id="mail", status=ResultStatus.PROCESSING, attempts=1, fence=4, worker_id="host:2", expires_ts=NOW + 9
    )
    held = EventState(TAKEN, MINE.token, (HandlerState(running, "handler's"),))
    (after,) = apply(held, command).state.handlers
    assert after == HandlerState(replace(running, status=ResultStatus.PENDING, worker_id=None, expires_ts=None))


@pytest.mark.parametrize("name", ["expire", "reset"])
def test_what_takes_the_event_from_its_worker_keeps_the_results(name: str) -> None:
    state = EventState(replace(TAKEN, expires_ts=NOW), "mine", UNSETTLED)
    assert apply(state, COMMANDS[name]).state.handlers == UNSETTLED


def test_results_are_written_over_those_of_the_same_handler_only() -> None:
    news = HandlerResult(handler_id="audit", status=ResultStatus.SUCCEEDED, attempts=2, fence=1)
    merged = merge_results(UNSETTLED, (news,))
    assert [row.result for row in merged] == [UNSETTLED[0].result, news]


def test_results_of_handlers_not_seen_before_are_added() -> None:
    news = HandlerResult(handler_id="stock", status=ResultStatus.SUCCEEDED)
    assert [row.result.handler_id for row in merge_results(UNSETTLED, (news,))] == ["mail", "audit", "stock"]


def test_results_never_lower_the_fence_of_a_handler() -> None:
    claimed_often = HandlerState(HandlerResult(handler_id="audit", status=ResultStatus.PENDING, fence=9))
    news = HandlerResult(handler_id="audit", status=ResultStatus.TRANSIENT)
    assert merge_results((claimed_often,), (news,))[0].result.fence == 9

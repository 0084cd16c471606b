"""Claims on one handler's part of an event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.lifecycle.lives import LEASE, LIVES, MINE, NEW_FENCE, NOW, OLD_FENCE, PROCESSING, TAKEN, WRONG_TOKEN

from durabus.lifecycle.handlers import (
    claim_handler,
    complete_handler,
    end_handler_claims,
    handler_claim,
    handlers_done,
    offered_handlers,
    release_handler,
    renew_handler,
    runs_under,
    settle_handler,
    void_handlers_under,
)
from durabus.lifecycle.state import NOT_YOURS, Applied, EventState, HandlerState, Refused, Requeue
from durabus.lifecycle.transition import transition
from durabus.model.claim import ClaimRef, HandlerClaim, HandlerClaimRequest, OfferRequest
from durabus.model.result import HandlerResult, offer
from durabus.model.settlement import HandlerSettlement
from durabus.model.statuses import SETTLED, ResultStatus

BARE = LIVES["claimed"]
DONE = HandlerResult(handler_id="mail", status=ResultStatus.SUCCEEDED, value_json="1", execution_time_ms=3.0)
BUSY = HandlerResult(handler_id="mail", status=ResultStatus.TRANSIENT, error="busy")

Write = Callable[[EventState, HandlerClaim], Applied | Refused]
WRITES: dict[str, Write] = {
    "renew": lambda state, claim: renew_handler(state, claim, LEASE, NOW),
    "release": release_handler,
    "complete": lambda state, claim: complete_handler(state, claim, DONE),
}


def ask(*handler_ids: str, event: ClaimRef = MINE, token: str = "h-mine") -> HandlerClaimRequest:
    return HandlerClaimRequest(event=event, handler_ids=handler_ids, worker_id="host:1", token=token, lease=LEASE)


def claim(state: EventState, request: HandlerClaimRequest, now: float = NOW) -> tuple[EventState, HandlerClaim]:
    granted = claim_handler(state, request, now)
    assert granted is not None
    return granted


def apply(outcome: Applied | Refused) -> EventState:
    assert isinstance(outcome, Applied)
    assert outcome.records == ()
    return outcome.state


def with_row(status: ResultStatus, **fields: Any) -> EventState:
    result = HandlerResult(handler_id="mail", status=status, attempts=1, fence=4, **fields)
    return EventState(TAKEN, "mine", (HandlerState(result),))


@pytest.fixture
def held() -> tuple[EventState, HandlerClaim]:
    """The event and, under it, the handler ``mail`` are ours."""
    return claim(BARE, ask("mail"))


def test_the_first_claim_makes_the_row(held: tuple[EventState, HandlerClaim]) -> None:
    state, granted = held
    result = HandlerResult(
        handler_id="mail",
        status=ResultStatus.PROCESSING,
        attempts=1,
        fence=1,
        worker_id="host:1",
        expires_ts=NOW + LEASE,
    )
    assert state == replace(BARE, handlers=(HandlerState(result, "h-mine"),))
    assert granted == HandlerClaim(id=7, handler_id="mail", token="h-mine", fence=1, attempts=1, expires_ts=NOW + LEASE)


@pytest.mark.parametrize("status", [status for status in ResultStatus if status not in SETTLED])
def test_a_handler_that_is_not_settled_nor_held_is_claimed_again(status: ResultStatus) -> None:
    _, granted = claim(with_row(status), ask("mail"))
    assert (granted.fence, granted.attempts) == (5, 2)


@pytest.mark.parametrize("status", sorted(SETTLED))
def test_a_settled_handler_is_not_claimed(status: ResultStatus) -> None:
    assert claim_handler(with_row(status), ask("mail"), NOW) is None


def test_a_held_handler_is_not_claimed_before_its_lease_is_over(held: tuple[EventState, HandlerClaim]) -> None:
    state, granted = held
    other = ask("mail", token="h-theirs")
    assert claim_handler(state, other, granted.expires_ts - 0.001) is None
    _, taken = claim(state, other, granted.expires_ts)
    assert (taken.token, taken.fence, taken.attempts) == ("h-theirs", 2, 2)


def test_the_first_free_one_of_those_asked_for_is_claimed() -> None:
    state, _ = claim(with_row(ResultStatus.SUCCEEDED), ask("mail", "audit", "stock"))
    _, second = claim(state, ask("mail", "audit", "stock", token="h-second"))
    assert second.handler_id == "stock"


def test_nothing_is_claimed_when_nothing_is_free() -> None:
    assert claim_handler(with_row(ResultStatus.SUCCEEDED), ask("mail"), NOW) is None
    assert claim_handler(BARE, ask(), NOW) is None


def test_a_repeated_request_gets_its_own_claim_again(held: tuple[EventState, HandlerClaim]) -> None:
    state, granted = held
    assert claim_handler(state, ask("audit", "mail"), NOW) == (state, granted)


def test_a_repeated_request_gets_its_own_claim_again_although_it_is_late(
    held: tuple[EventState, HandlerClaim],
) -> None:
    state, granted = held
    assert claim_handler(state, ask("mail"), NOW + 1e6) == (state, granted)


@pytest.mark.parametrize("event", [WRONG_TOKEN, OLD_FENCE, NEW_FENCE], ids=["token", "old fence", "new fence"])
def test_handlers_are_not_claimed_under_a_wrong_claim_on_the_event(event: ClaimRef) -> None:
    assert claim_handler(BARE, ask("mail", event=event), NOW) is None


@pytest.mark.parametrize("life", sorted(LIVES.keys() - set(PROCESSING)))
def test_handlers_are_not_claimed_while_the_event_is_not_processing(life: str) -> None:
    assert claim_handler(LIVES[life], ask("mail"), NOW) is None


def test_a_handler_claim_outlives_a_takeover_of_the_event(held: tuple[EventState, HandlerClaim]) -> None:
    state, granted = held
    taken = EventState(replace(TAKEN, fence=MINE.fence + 1), "theirs", state.handlers)
    new_owner = ClaimRef(7, "theirs", MINE.fence + 1)
    assert claim_handler(taken, ask("mail", event=new_owner, token="h-theirs"), NOW) is None
    assert apply(complete_handler(taken, granted, DONE)).results[0].status is ResultStatus.SUCCEEDED


def test_renew_moves_the_expiry_only(held: tuple[EventState, HandlerClaim]) -> None:
    state, granted = held
    row = state.handlers[0]
    after = apply(renew_handler(state, granted, LEASE, NOW + 500))
    assert after == replace(state, handlers=(replace(row, result=replace(row.result, expires_ts=NOW + 500 + LEASE)),))


def test_release_gives_the_attempt_back_and_keeps_the_fence(held: tuple[EventState, HandlerClaim]) -> None:
    state, granted = held
    row = apply(release_handler(state, granted)).handlers[0]
    assert row.result == replace(offer("mail"), attempts=0, fence=1)
    assert row.token is None


def test_a_released_handler_is_offered_again_after_its_delay(held: tuple[EventState, HandlerClaim]) -> None:
    state, granted = held
    after = apply(settle_handler(state, HandlerSettlement(granted, None, 5.0), NOW))
    request = OfferRequest(bus=state.event.bus, handler_ids=("mail",), worker_id="host:2", token="h-theirs")
    assert after.results[0].expires_ts == NOW + 5.0
    assert offered_handlers(after, request, NOW + 4.9) == []
    (wanted,) = offered_handlers(after, request, NOW + 5.0)
    assert claim_handler(after, wanted, NOW + 4.9) is None
    assert claim_handler(after, wanted, NOW + 5.0) is not None


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_handler_claim_is_valid_while_the_event_waits_for_its_next_claim(
    held: tuple[EventState, HandlerClaim], write: Write
) -> None:
    state, granted = held
    assert isinstance(write(replace(LIVES["not due"], handlers=state.handlers), granted), Applied)


def test_complete_writes_the_outcome_and_keeps_attempts_and_fence(held: tuple[EventState, HandlerClaim]) -> None:
    state, granted = held
    row = apply(complete_handler(state, granted, replace(DONE, attempts=99, fence=99))).handlers[0]
    assert row.result == replace(DONE, attempts=1, fence=1, worker_id="host:1")
    assert row.token is None


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize(
    "wrong",
    [{"token": "h-theirs"}, {"fence": 0}, {"fence": 2}, {"handler_id": "audit"}],
    ids=["token", "old fence", "new fence", "handler"],
)
def test_a_handler_claim_with_a_wrong_token_fence_or_handler_is_refused_everything(
    held: tuple[EventState, HandlerClaim], write: Write, wrong: dict[str, Any]
) -> None:
    state, granted = held
    assert write(state, replace(granted, **wrong)) == Refused(NOT_YOURS)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("life", ["completed", "failed"])
def test_a_handler_claim_is_refused_everything_once_the_event_has_ended(
    held: tuple[EventState, HandlerClaim], write: Write, life: str
) -> None:
    state, granted = held
    assert write(replace(LIVES[life], handlers=state.handlers), granted) == Refused(NOT_YOURS)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_late_handler_claim_is_valid_while_no_other_worker_took_the_handler(
    held: tuple[EventState, HandlerClaim], write: Write
) -> None:
    state, granted = held
    row = state.handlers[0]
    late = replace(state, handlers=(replace(row, result=replace(row.result, expires_ts=NOW - 500)),))
    assert isinstance(write(late, granted), Applied)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_handler_claim_that_was_taken_over_is_refused_everything(
    held: tuple[EventState, HandlerClaim], write: Write
) -> None:
    state, granted = held
    taken, _ = claim(state, ask("mail", token="h-theirs"), granted.expires_ts)
    assert write(taken, granted) == Refused(NOT_YOURS)


@pytest.mark.parametrize("outcome", [DONE, BUSY], ids=["success", "failure"])
def test_the_repeat_of_a_completion_is_applied_and_changes_nothing(
    held: tuple[EventState, HandlerClaim], outcome: HandlerResult
) -> None:
    state, granted = held
    once = apply(complete_handler(state, granted, outcome))
    assert complete_handler(once, granted, outcome) == Applied(once)


def test_the_repeat_of_a_release_is_applied_and_changes_nothing(held: tuple[EventState, HandlerClaim]) -> None:
    state, granted = held
    once = apply(release_handler(state, granted))
    assert release_handler(once, granted) == Applied(once)


def test_a_completed_handler_cannot_be_completed_otherwise(held: tuple[EventState, HandlerClaim]) -> None:
    state, granted = held
    once = apply(complete_handler(state, granted, BUSY))
    assert complete_handler(once, granted, DONE) == Refused(NOT_YOURS)


def test_a_released_claim_cannot_complete(held: tuple[EventState, HandlerClaim]) -> None:
    state, granted = held
    assert complete_handler(apply(release_handler(state, granted)), granted, DONE) == Refused(NOT_YOURS)


def test_a_completed_claim_cannot_be_released(held: tuple[EventState, HandlerClaim]) -> None:
    state, granted = held
    assert release_handler(apply(complete_handler(state, granted, BUSY)), granted) == Refused(NOT_YOURS)


def test_the_repeat_of_a_release_needs_the_same_fence(held: tuple[EventState, HandlerClaim]) -> None:
    state, granted = held
    once = apply(release_handler(state, granted))
    assert release_handler(once, replace(granted, fence=granted.fence + 1)) == Refused(NOT_YOURS)


def test_the_fence_of_a_handler_does_not_begin_again_after_a_requeue() -> None:
    row = HandlerState(HandlerResult(handler_id="mail", status=ResultStatus.UNRECOVERABLE, attempts=4, fence=4))
    requeued = transition(replace(LIVES["with errors"], handlers=(row,)), Requeue(), NOW)
    assert isinstance(requeued, Applied)
    back = EventState(replace(TAKEN, generation=1), "mine", requeued.state.handlers)
    assert claim(back, ask("mail"))[1].fence == 5


def test_a_row_without_a_claim_shows_as_a_claim_without_a_token() -> None:
    state = with_row(ResultStatus.PENDING)
    assert handler_claim(state, state.handlers[0]) == HandlerClaim(
        id=7, handler_id="mail", token="", fence=4, attempts=1, expires_ts=0.0
    )


@pytest.mark.parametrize(
    ("statuses", "done"),
    [
        ({}, False),
        ({"mail": ResultStatus.SUCCEEDED}, False),
        ({"mail": ResultStatus.SUCCEEDED, "audit": ResultStatus.TRANSIENT}, False),
        ({"mail": ResultStatus.SUCCEEDED, "audit": ResultStatus.PROCESSING}, False),
        ({"mail": ResultStatus.SUCCEEDED, "audit": ResultStatus.SUCCEEDED}, True),
        ({"mail": ResultStatus.UNRECOVERABLE}, True),
        ({"gone": ResultStatus.UNRECOVERABLE}, True),
    ],
)
def test_handlers_are_done_when_all_are_settled_or_one_is_of_no_use(
    statuses: dict[str, ResultStatus], done: bool
) -> None:
    rows = tuple(HandlerState(HandlerResult(handler_id=name, status=status)) for name, status in statuses.items())
    assert handlers_done(EventState(TAKEN, "mine", rows), ("mail", "audit")) is done


def test_a_handler_keeps_the_lock_that_its_event_was_claimed_under() -> None:
    """Also while the event waits for its next claim; not once the handler has ended, or its lease or its process."""
    got = claim_handler(BARE, ask("mail", token="~0123456789a handler"), NOW, "event:global")
    assert got is not None
    state, granted = got
    lost = replace(state, event=replace(LIVES["not due"].event), token=None)
    for held in (state, lost, apply(renew_handler(state, granted, LEASE, NOW))):
        assert runs_under(held, "event:global", NOW)
        assert not runs_under(held, "event:bus:orders", NOW)
        assert void_handlers_under(held, "event:global", NOW) == held
    over = (
        apply(release_handler(state, granted)),
        apply(complete_handler(state, granted, DONE)),
        end_handler_claims(state, "~0123456789a", NOW),
        replace(state, event=LIVES["completed"].event),
    )
    assert not any(runs_under(ended, "event:global", NOW) for ended in over)


def test_late_handlers_under_a_lock_that_is_taken_are_offered_again() -> None:
    got = claim_handler(BARE, ask("mail", token="h-mine"), NOW, "event:global")
    assert got is not None
    state, granted = got
    assert not runs_under(state, "event:global", granted.expires_ts)
    assert void_handlers_under(state, "event:bus:orders", granted.expires_ts) == state
    voided = void_handlers_under(state, "event:global", granted.expires_ts)
    assert renew_handler(voided, granted, LEASE, NOW) == Refused(NOT_YOURS)
    (row,) = voided.handlers
    assert (row.token, row.lock_key, row.result.status, row.result.attempts) == (None, None, ResultStatus.PENDING, 1)
    assert row.result.is_offered

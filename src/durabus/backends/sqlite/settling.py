"""``settle_events``: plain completions as sets, everything else through the kernel, one by one."""

from __future__ import annotations

from collections.abc import Sequence

from durabus.backends.sqlite.counting import note_completed
from durabus.backends.sqlite.publishing import get_event
from durabus.backends.sqlite.rows import STATUSES, Row, to_json
from durabus.backends.sqlite.sql import statement
from durabus.backends.sqlite.states import free_event_lock, load, store
from durabus.backends.sqlite.transaction import Transaction
from durabus.errors import LeaseLost
from durabus.kernel.state import NOT_YOURS, EventState, Refused
from durabus.kernel.transition import transition
from durabus.model.claim import ClaimRef, handler_lock_key
from durabus.model.settlement import Complete, Fail, Settled, Settlement
from durabus.model.statuses import Action, EventStatus

_CLAIMS = statement("claims_of")
_COMPLETE = statement("complete_events")
_UNCOMPLETE = statement("uncomplete_events")
_FORGET = statement("forget_completed_events")
_LAST = statement("last_settlement")
_LOCK = statement("lock_of_claim")
_FREE_LOCK = statement("free_claimed_lock")

_COMPLETED = frozenset({Action.COMPLETED.value, Action.COMPLETED_WITH_ERRORS.value})
_FAILED = frozenset({Action.FAILED.value})
_RELEASED = frozenset({Action.RELEASED.value})


def settle_events(tx: Transaction, settlements: Sequence[Settlement]) -> list[Settled | LeaseLost]:
    """End claims, each judged by itself."""
    if not settlements:
        return []
    uniform = _complete_uniform(tx, settlements)
    return _settle_mixed(tx, settlements) if uniform is None else uniform


def claims_of(tx: Transaction, ids: list[int]) -> dict[int, Row]:
    """The present claims on these events: (id, token, fence, lock_key, plain, bus) by id."""
    return {row[0]: row for row in tx.all(_CLAIMS, {"ids": to_json(ids)})}


def is_current(claim: Row, ref: ClaimRef) -> bool:
    """Whether ``ref`` is the claim that holds the event."""
    return bool(claim[1] == ref.token and claim[2] == ref.fence)


def settle(tx: Transaction, settlement: Settlement) -> Settled | LeaseLost:
    """End one claim as the kernel says, or answer its exact repeat."""
    ref = settlement.ref
    stored = load(tx, ref.id)
    if stored is None or not stored.state.settles(ref):
        return _repeated(tx, settlement)
    applied = transition(stored.state, settlement, tx.now)
    if isinstance(applied, Refused):
        return LeaseLost(ref.id, applied.reason)
    store(tx, stored, applied, ref.token)
    _free_handler_lock(tx, stored.state, applied.state)
    settled = applied.state.settled
    return LeaseLost(ref.id, NOT_YOURS) if settled is None else settled.answer


def _free_handler_lock(tx: Transaction, before: EventState, after: EventState) -> None:
    """Free the serial lock of a handler whose claim the settlement ended by writing its result."""
    gone = {handler.token for handler in before.handlers} - {handler.token for handler in after.handlers}
    tx.many(_FREE_LOCK, [(handler_lock_key(before.event.event_id), token) for token in gone if token is not None])


def _complete_uniform(tx: Transaction, settlements: Sequence[Settlement]) -> list[Settled | LeaseLost] | None:
    """The best batch, what one claim brought and all of it plainly done, in few statements; None if it is not that."""
    token, fence = settlements[0].ref.token, settlements[0].ref.fence
    if not token:
        return None  # to the statement, no token means that the claims were checked before
    times: dict[int, float | None] = {}
    for one in settlements:
        ref = one.ref
        if type(one) is not Complete or not _is_plain(one) or ref.token != token or ref.fence != fence:
            return None
        times[ref.id] = one.execution_time_ms
    count = tx.run(_COMPLETE, {"now": tx.now, "times": to_json(times), "token": token, "fence": fence})
    if count != len(settlements):
        tx.run(_UNCOMPLETE, {"last": tx.cursor.lastrowid, "count": count})
        return None
    note_completed(tx, count)
    lock = tx.one(_LOCK, (settlements[0].ref.id,))  # all that one claim brought share it
    tx.run(_FORGET, {"ids": to_json(list(times))})
    if lock is not None:
        free_event_lock(tx, lock[0], token, lock[1])
    return [Settled(id_, EventStatus.COMPLETED) for id_ in times]


def _settle_mixed(tx: Transaction, settlements: Sequence[Settlement]) -> list[Settled | LeaseLost]:
    """In order: runs of plain completions as sets, after one look at their claims, what is between them one by one."""
    claims = claims_of(tx, [settlement.ref.id for settlement in settlements])
    outcomes: list[Settled | LeaseLost] = []
    run: dict[int, float | None] = {}
    locks: set[tuple[str, str, str]] = set()
    for one in settlements:
        ref = one.ref
        # taken out, so that a second settlement of the same event is judged by what the first one left
        claim = claims.pop(ref.id, None)
        if claim is not None and type(one) is Complete and claim[4] and is_current(claim, ref) and _is_plain(one):
            run[ref.id] = one.execution_time_ms
            if claim[3] is not None:
                locks.add((claim[3], ref.token, claim[5]))
            outcomes.append(Settled(ref.id, EventStatus.COMPLETED))
            continue
        _complete_run(tx, run)
        outcomes.append(settle(tx, one))
    _complete_run(tx, run)
    for lock in locks:
        free_event_lock(tx, *lock)
    return outcomes


def _complete_run(tx: Transaction, run: dict[int, float | None]) -> None:
    if run:
        count = tx.run(_COMPLETE, {"now": tx.now, "times": to_json(run), "token": None, "fence": None})
        note_completed(tx, count)
        tx.run(_FORGET, {"ids": to_json(list(run))})
        run.clear()


def _is_plain(one: Complete) -> bool:
    return not one.results and not one.errors and one.status_code is None and one.reason is None


def _repeated(tx: Transaction, settlement: Settlement) -> Settled | LeaseLost:
    ref = settlement.ref
    if get_event(tx, ref.id) is None:
        return LeaseLost(ref.id, "no such event")
    last = tx.one(_LAST, (ref.id,))
    match settlement:
        case Complete():
            kinds = _COMPLETED
        case Fail():
            kinds = _FAILED
        case _:
            kinds = _RELEASED
    if last is not None and last[0] == ref.token and last[1] == ref.fence and last[2] in kinds:
        return Settled(ref.id, STATUSES[last[3]], last[4])
    return LeaseLost(ref.id, NOT_YOURS)

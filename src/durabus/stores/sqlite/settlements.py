"""Reads the state of an event, lets the kernel decide its transition, and writes the new state; settles claims.

Claims (``claims``) and batches of plain completions (``complete_events``) have their own statements. These are
translations of the kernel and much faster. The kernel itself decides all other transitions.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from durabus.errors import LeaseLost
from durabus.lifecycle.state import NOT_YOURS, AbandonedClaim, Applied, EventState, Expire, HandlerState, Refused
from durabus.lifecycle.transition import transition
from durabus.model.claim import ClaimRef, handler_lock_key
from durabus.model.event import Event
from durabus.model.log_entry import LogEntry
from durabus.model.settlement import Complete, Fail, Settled, Settlement
from durabus.model.statuses import DEAD_LETTER, Action, EventStatus
from durabus.stores.sqlite.connection import Transaction
from durabus.stores.sqlite.publishing import get_event, note_completed, note_ended
from durabus.stores.sqlite.rows import STATUSES, Row, event_of, handler_of, handler_to, results_to, strings_to, to_json
from durabus.stores.sqlite.sql import statement

_GET = statement("get_state")
_GET_RESULTS = statement("list_results")
_APPEND = statement("append_entry")
_RETURN = statement("return_event")
_START = statement("start_event")
_INSERT_DEAD_LETTER = statement("insert_dead_letter")
_FORGET = statement("forget_live_event")
_READY_TAGS = statement("ready_event_tags")
_PUT_RESULT = statement("put_result")
_FORGET_RESULT = statement("forget_result")
_MARK_RESULTS = statement("mark_results")
_FREE_LOCK = statement("free_event_lock")
_ABANDONED = statement("abandoned_claims")
_FORGET_TAGS = statement("forget_event_tags")

_NOT_THE_EVENT = (None,) * 7


class SQLiteStored(msgspec.Struct, frozen=True):
    """A live event's state and the lock that its claim holds."""

    state: EventState
    lock_key: str | None
    has_results: bool


def load(tx: Transaction, id_: int) -> SQLiteStored | None:
    """Return the state of a live event, or None."""
    row = tx.one(_GET, (id_,))
    if row is None:
        return None
    *columns, token, lock_key, has_results = row
    event, handlers = event_of(tuple(columns)), load_handlers(tx, id_) if has_results else ()
    lost = abandoned_claims(tx, [id_]).get(id_) if event.status is EventStatus.PENDING and event.fence else None
    abandoned = None if lost is None else AbandonedClaim(lost[1], *lost[3:])
    return SQLiteStored(EventState(event, token, handlers, None, abandoned), lock_key, bool(has_results))


def abandoned_claims(tx: Transaction, ids: list[int]) -> dict[int, Row]:
    """Return abandoned claims without a later claim, by id: (id, token, fence, worker_id, picked, started)."""
    return {row[0]: row for row in tx.all(_ABANDONED, {"ids": to_json(ids)})}


def load_handlers(tx: Transaction, id_: int) -> tuple[HandlerState, ...]:
    """Return the states of the handlers of an event."""
    return tuple(handler_of(row) for row in tx.all(_GET_RESULTS, (id_,)))


def store(tx: Transaction, before: SQLiteStored, applied: Applied, token: str | None = None) -> None:
    """Write a transition of a live event.

    ``token`` belongs to a settlement, so that its repeat is recognised, or to an abandoned claim that may still settle.
    """
    after = applied.state
    event = after.event
    store_handlers(tx, before, after)
    if not applied.records:
        return
    append(tx, applied.entries, event, token)
    if after.token != before.state.token:
        free_lock(tx, before)
    old = before.state.event
    if old.status is EventStatus.PENDING:
        tx.many(_FORGET_TAGS, [(old.bus, tag, old.priority, old.id) for tag in old.tags])
    if event.status is EventStatus.PENDING:
        _return(tx, event)
    elif event.status is EventStatus.PROCESSING:
        tx.run(_START, {"id": event.id, "now": event.updated_ts})
    else:
        if event.status in DEAD_LETTER:
            _insert_dead_letter(tx, event)
        tx.run(_FORGET, (event.id,))
        note_ended(tx, event)


def _insert_dead_letter(tx: Transaction, event: Event) -> None:
    tx.run(
        _INSERT_DEAD_LETTER,
        {
            "id": event.id,
            "status": event.status.value,
            "now": event.updated_ts,
            "errors": strings_to(event.errors),
            "worker_id": event.worker_id,
            "picked_at": event.picked_ts,
            "started_at": event.started_ts,
        },
    )


def store_handlers(tx: Transaction, before: SQLiteStored, after: EventState) -> None:
    """Write the handlers that changed and delete those that are gone."""
    if after.handlers == before.state.handlers:
        return
    event_id = after.event.id
    known = {handler.result.handler_id: handler for handler in before.state.handlers}
    changed = [handler for handler in after.handlers if known.pop(handler.result.handler_id, None) != handler]
    tx.many(_PUT_RESULT, [handler_to(event_id, handler) for handler in changed])
    tx.many(_FORGET_RESULT, [(event_id, handler_id) for handler_id in known])
    if not before.has_results:
        tx.run(_MARK_RESULTS, (event_id,))


def append(tx: Transaction, entries: tuple[LogEntry, ...], event: Event, token: str | None = None) -> None:
    """Write log entries. A COMPLETED entry also holds the other columns of the event."""
    rows: list[Row] = []
    for entry in entries:
        rest: Row = _NOT_THE_EVENT
        if entry.status is EventStatus.COMPLETED:
            rest = (
                1, event.priority, event.max_attempts, event.due_ts, event.picked_ts, event.started_ts,
                event.idempotency_key,
            )  # fmt: skip
        rows.append((
            entry.action.value, entry.id, entry.event_id, entry.bus, entry.type, entry.status.value, entry.at_ts,
            entry.created_ts, entry.attempt, entry.generation, entry.fence, entry.worker_id, entry.error,
            entry.reason, entry.next_retry_ts, entry.execution_time_ms, entry.status_code, strings_to(entry.tags),
            entry.metadata_json, entry.parent_id, entry.payload_json, strings_to(entry.errors),
            results_to(entry.results), token, *rest,
        ))  # fmt: skip
    tx.many(_APPEND, rows)


def expire(tx: Transaction, rows: list[Row], max_attempts: int | None) -> int:
    """End the claims on events (rows of their ids) whose lease is over. Returns how many."""
    taken = 0
    for (id_,) in sorted(rows):
        stored = load(tx, id_)
        applied = None if stored is None else transition(stored.state, Expire(max_attempts), tx.now)
        if stored is not None and isinstance(applied, Applied):
            lost = applied.state.abandoned
            store(tx, stored, applied, None if lost is None else lost.token)
            taken += 1
    return taken


def free_lock(tx: Transaction, held: SQLiteStored) -> None:
    """Free the lock of a claim that is about to end."""
    event = held.state.event
    free_event_lock(tx, held.lock_key, held.state.token, event.bus, but=event.id)


def free_event_lock(tx: Transaction, key: str | None, token: str | None, bus: str, *, but: int = 0) -> None:
    """Free the lock of a token that holds no event except ``but``, and wake the workers of the bus."""
    if key is not None and tx.run(_FREE_LOCK, {"key": key, "token": token, "but": but}):
        tx.woken.add(bus)


def _return(tx: Transaction, event: Event) -> None:
    ready = event.due_ts <= tx.now
    tx.run(
        _RETURN,
        {
            "id": event.id,
            "ready": int(ready),
            "attempts": event.attempts,
            "now": event.updated_ts,
            "due_at": event.due_ts,
            "errors": strings_to(event.errors),
        },
    )
    if ready and event.tags:
        tx.run(_READY_TAGS, {"ids": to_json([event.id])})
    tx.woken.add(event.bus)


_CLAIMS = statement("claims_of")
_COMPLETE = statement("complete_events")
_UNCOMPLETE = statement("uncomplete_events")
_FORGET_COMPLETED = statement("forget_completed_events")
_LAST = statement("last_settlement")
_LOCK = statement("lock_of_claim")
_FREE_CLAIMED_LOCK = statement("free_claimed_lock")

_COMPLETED = frozenset({Action.COMPLETED.value, Action.COMPLETED_WITH_ERRORS.value})
_FAILED = frozenset({Action.FAILED.value})
_RELEASED = frozenset({Action.RELEASED.value})


def settle_events(tx: Transaction, settlements: Sequence[Settlement]) -> list[Settled | LeaseLost]:
    """End claims. Each one succeeds or fails alone."""
    if not settlements:
        return []
    uniform = _complete_uniform(tx, settlements)
    return _settle_mixed(tx, settlements) if uniform is None else uniform


def claims_of(tx: Transaction, ids: list[int]) -> dict[int, Row]:
    """Return the current claims on these events, by id: (id, token, fence, lock_key, plain, bus)."""
    return {row[0]: row for row in tx.all(_CLAIMS, {"ids": to_json(ids)})}


def is_current(claim: Row, ref: ClaimRef) -> bool:
    """Return whether ``ref`` is the claim that holds the event."""
    return bool(claim[1] == ref.token and claim[2] == ref.fence)


def settle(tx: Transaction, settlement: Settlement) -> Settled | LeaseLost:
    """End one claim as the kernel decides. An exact repeat gets the result of the first call."""
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
    """Free the serial lock of each handler whose claim the settlement ended by writing its result."""
    gone = {handler.token for handler in before.handlers} - {handler.token for handler in after.handlers}
    tx.many(
        _FREE_CLAIMED_LOCK, [(handler_lock_key(before.event.event_id), token) for token in gone if token is not None]
    )


def _complete_uniform(tx: Transaction, settlements: Sequence[Settlement]) -> list[Settled | LeaseLost] | None:
    """Complete a batch of plain events of one claim in a few statements. Returns None for any other batch."""
    token, fence = settlements[0].ref.token, settlements[0].ref.fence
    if not token:
        return None  # the statement takes a missing token as claims that were checked before
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
    lock = tx.one(_LOCK, (settlements[0].ref.id,))  # all events of one claim share it
    tx.run(_FORGET_COMPLETED, {"ids": to_json(list(times))})
    if lock is not None:
        free_event_lock(tx, lock[0], token, lock[1])
    return [Settled(id_, EventStatus.COMPLETED) for id_ in times]


def _settle_mixed(tx: Transaction, settlements: Sequence[Settlement]) -> list[Settled | LeaseLost]:
    """Settle in order: runs of plain completions together, after one look at their claims, the others one by one."""
    claims = claims_of(tx, [settlement.ref.id for settlement in settlements])
    outcomes: list[Settled | LeaseLost] = []
    run: dict[int, float | None] = {}
    locks: set[tuple[str, str, str]] = set()
    for one in settlements:
        ref = one.ref
        # taken out, so that a second settlement of this event sees the state after the first one
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
        tx.run(_FORGET_COMPLETED, {"ids": to_json(list(run))})
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

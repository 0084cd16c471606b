"""Reads the state of an event, lets the lifecycle decide its transition, and writes the new state; settles claims.

Claims (``claims``) and batches of plain completions (``complete_events``) have their own statements. These are
translations of the lifecycle and much faster. The lifecycle itself decides all other transitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from durabus.errors import LeaseLost
from durabus.lifecycle.state import NOT_YOURS, AbandonedClaim, Applied, EventState, Expire, HandlerState, Refused
from durabus.lifecycle.transition import transition
from durabus.model.claim import ClaimRef
from durabus.model.event import Event
from durabus.model.log_entry import LogEntry
from durabus.model.settlement import Complete, Release, Settled, Settlement, add_entries
from durabus.model.statuses import DEAD_LETTER, EventStatus
from durabus.stores.sql.changes import NO_EVENT, StoredEvent, changed_handlers, freed_handler_locks
from durabus.stores.sql.rows import Row, entry_of, entry_to, event_of, handler_of, settled_of, strings_to, to_json
from durabus.stores.sqlite.connection import Transaction
from durabus.stores.sqlite.layout import SQL
from durabus.stores.sqlite.publishing import add_events, get_event, leave_queue, note_completed, note_ended
from durabus.stores.sqlite.waits import with_stored

Time = float | None
PlainRun = dict[int, Time | tuple[Time] | tuple[Time, str]]
"""Plain completions: by id the execution time. A tuple has another handler than the first event of the run, or none."""


def load(tx: Transaction, id_: int) -> StoredEvent | None:
    """Return the state of a live event, or None."""
    row = tx.one(SQL["get_state"], (id_,))
    if row is None:
        return None
    *columns, token, lock_key, has_results = row
    event, handlers = event_of(tuple(columns)), load_handlers(tx, id_) if has_results else ()
    lost = abandoned_claims(tx, [id_]).get(id_) if event.status is EventStatus.PENDING and event.fence else None
    abandoned = None if lost is None else AbandonedClaim(lost[1], *lost[3:])
    return StoredEvent(EventState(event, token, handlers, None, abandoned), lock_key, bool(has_results))


def abandoned_claims(tx: Transaction, ids: list[int]) -> dict[int, Row]:
    """Return abandoned claims without a later claim, by id: (id, token, fence, worker_id, picked, started)."""
    return {row[0]: row for row in tx.all(SQL["abandoned_claims"], {"ids": to_json(ids)})}


def load_handlers(tx: Transaction, id_: int) -> tuple[HandlerState, ...]:
    """Return the states of the handlers of an event."""
    return tuple(handler_of(row) for row in tx.all(SQL["list_results"], (id_,)))


def store(tx: Transaction, before: StoredEvent, applied: Applied, token: str | None = None) -> None:
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
        tx.many(SQL["forget_event_tags"], [(old.bus, tag, old.priority, old.id) for tag in old.tags])
    if event.status is EventStatus.PENDING:
        _return(tx, event)
    elif event.status is EventStatus.PROCESSING:
        tx.run(SQL["start_event"], {"id": event.id, "now": event.updated_ts})
    else:
        if event.status in DEAD_LETTER:
            _insert_dead_letter(tx, event)
        if event.status is EventStatus.CANCELLED:
            tx.woken.add(event.bus)  # it may have held the lock of its bus, or the ordering key of a waiting event
        leave_queue(tx, [event.id])
        note_ended(tx, event)


def _insert_dead_letter(tx: Transaction, event: Event) -> None:
    tx.run(
        SQL["insert_dead_letter"],
        {
            "id": event.id,
            "status": event.status.value,
            "now": event.updated_ts,
            "due_at": event.due_ts,
            "errors": strings_to(event.errors),
            "worker_id": event.worker_id,
            "picked_at": event.picked_ts,
            "started_at": event.started_ts,
        },
    )


def store_handlers(tx: Transaction, before: StoredEvent, after: EventState) -> None:
    """Write the handlers that changed and delete those that are gone."""
    if after.handlers == before.state.handlers:
        return
    changed, gone = changed_handlers(before.state, after)
    tx.many(SQL["put_result"], changed)
    tx.many(SQL["forget_result"], gone)
    if not before.has_results:
        tx.run(SQL["mark_results"], (after.event.id,))


def append(tx: Transaction, entries: tuple[LogEntry, ...], event: Event, token: str | None = None) -> None:
    """Write log entries."""
    tx.many(SQL["append_entry"], [entry_to(entry, event, token) for entry in entries])


def expire(tx: Transaction, rows: Sequence[Row], max_attempts: int | None, ended: str | None = None) -> int:
    """End the claims on events (rows of ids) whose lease is over, or whose process has ended. Returns how many."""
    taken = 0
    for id_ in sorted(row[0] for row in rows):
        stored = load(tx, id_)
        applied = None if stored is None else transition(stored.state, Expire(max_attempts, ended), tx.now)
        if stored is not None and isinstance(applied, Applied):
            lost = applied.state.abandoned
            store(tx, stored, applied, None if lost is None else lost.token)
            taken += 1
    return taken


def free_lock(tx: Transaction, held: StoredEvent) -> None:
    """Free the lock of a claim that is about to end."""
    event = held.state.event
    free_event_lock(tx, held.lock_key, held.state.token, event.bus, but=event.id)


def free_event_lock(tx: Transaction, key: str | None, token: str | None, bus: str, *, but: int = 0) -> None:
    """Free the lock of a token that holds no event except ``but``, and wake the workers of the bus."""
    if key is not None and tx.run(SQL["free_event_lock"], {"key": key, "token": token, "but": but}):
        tx.woken.add(bus)


def free_handler_locks(tx: Transaction, before: EventState, after: EventState) -> None:
    """Free the serial lock of each handler whose claim has ended."""
    tx.many(SQL["free_claimed_lock"], freed_handler_locks(before, after))


def _return(tx: Transaction, event: Event) -> None:
    ready = event.due_ts <= tx.now
    tx.run(
        SQL["return_event"],
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
        tx.run(SQL["ready_event_tags"], {"ids": to_json([event.id])})
    tx.woken.add(event.bus)


def settle_events(tx: Transaction, settlements: Sequence[Settlement]) -> list[Settled | LeaseLost]:
    """End claims. Each one succeeds or fails alone."""
    if not settlements:
        return []
    uniform = _complete_uniform(tx, settlements)
    if uniform is not None:
        return uniform
    applied: list[Settlement] = []
    outcomes = _settle_mixed(tx, with_stored(tx, settlements), applied)
    children = [child for one in applied for child in one.children]
    if children:
        add_events(tx, children)
    for one in applied:
        if isinstance(one, Release) and one.until_children:
            tx.run(SQL["wait_for_children"], {"id": one.ref.id, "fence": one.ref.fence})
    return outcomes


def settle_with_entries(tx: Transaction, settlements: Sequence[Settlement]) -> list[Settled | LeaseLost]:
    """End claims as ``settle_events`` does, and read back the log entries that this wrote: one for each settlement."""
    span = {"after": tx.value(SQL["last_position"]), "until": 2**63 - 1, "limit": len(settlements)}
    outcomes = settle_events(tx, settlements)
    return add_entries(outcomes, settlements, map(entry_of, tx.all(SQL["read_log"], span)))


def claims_of(tx: Transaction, ids: list[int]) -> dict[int, Row]:
    """Return the current claims on these events, by id: (id, token, fence, lock_key, plain, bus)."""
    return {row[0]: row for row in tx.all(SQL["claims_of"], {"ids": to_json(ids)})}


def is_current(claim: Row, ref: ClaimRef) -> bool:
    """Return whether ``ref`` is the claim that holds the event."""
    return bool(claim[1] == ref.token and claim[2] == ref.fence)


def settle(tx: Transaction, settlement: Settlement, applied: list[Settlement]) -> Settled | LeaseLost:
    """End one claim as the lifecycle decides. An exact repeat gets the result of the first call.

    ``applied`` gets the settlement if it took effect.
    """
    ref = settlement.ref
    stored = load(tx, ref.id)
    if stored is None or not stored.state.settles(ref):
        return _repeated(tx, settlement)
    done = transition(stored.state, settlement, tx.now)
    if isinstance(done, Refused):
        return LeaseLost(ref.id, done.reason)
    store(tx, stored, done, ref.token)
    free_handler_locks(tx, stored.state, done.state)
    applied.append(settlement)
    settled = done.state.settled
    return LeaseLost(ref.id, NOT_YOURS) if settled is None else settled.outcome


def _complete_uniform(tx: Transaction, settlements: Sequence[Settlement]) -> list[Settled | LeaseLost] | None:
    """Complete a batch of plain events of one claim in a few statements. Returns None for any other batch."""
    token, fence = settlements[0].ref.token, settlements[0].ref.fence
    if not token:
        return None  # the statement takes a missing token as claims that were checked before
    run: PlainRun = {}
    handler_id = settlements[0].handler_id if type(settlements[0]) is Complete else None
    for one in settlements:
        ref = one.ref
        if type(one) is not Complete or not one.is_plain or ref.token != token or ref.fence != fence:
            return None
        run[ref.id] = one.execution_time_ms if one.handler_id == handler_id else _with_handler(one)
    count = tx.run(SQL["complete_events"], _parameters(tx, run, handler_id) | {"token": token, "fence": fence})
    if count != len(settlements):
        tx.run(SQL["uncomplete_events"], {"last": tx.cursor.lastrowid, "count": count})
        return None
    note_completed(tx, count)
    lock = tx.one(SQL["lock_of_claim"], (settlements[0].ref.id,))  # all events of one claim share it
    leave_queue(tx, list(run))
    if lock is not None:
        free_event_lock(tx, lock[0], token, lock[1])
    return [Settled(id_, EventStatus.COMPLETED) for id_ in run]


def _settle_mixed(
    tx: Transaction, settlements: Sequence[Settlement], applied: list[Settlement]
) -> list[Settled | LeaseLost]:
    """Settle in order: runs of plain completions together, after one look at their claims, the others one by one."""
    claims = claims_of(tx, [settlement.ref.id for settlement in settlements])
    outcomes: list[Settled | LeaseLost] = []
    run: PlainRun = {}
    locks: set[tuple[str, str, str]] = set()
    for one in settlements:
        ref = one.ref
        # taken out, so that a second settlement of this event sees the state after the first one
        claim = claims.pop(ref.id, None)
        if claim is not None and type(one) is Complete and claim[4] and is_current(claim, ref) and one.is_plain:
            run[ref.id] = _with_handler(one)
            if claim[3] is not None:
                locks.add((claim[3], ref.token, claim[5]))
            outcomes.append(Settled(ref.id, EventStatus.COMPLETED))
            continue
        _complete_run(tx, run)
        outcomes.append(settle(tx, one, applied))
    _complete_run(tx, run)
    for lock in locks:
        free_event_lock(tx, *lock)
    return outcomes


def _complete_run(tx: Transaction, run: PlainRun) -> None:
    if run:
        count = tx.run(SQL["complete_events"], _parameters(tx, run, None) | {"token": None, "fence": None})
        note_completed(tx, count)
        leave_queue(tx, list(run))
        run.clear()


def _with_handler(one: Complete) -> tuple[Time] | tuple[Time, str]:
    return (one.execution_time_ms,) if one.handler_id is None else (one.execution_time_ms, one.handler_id)


def _parameters(tx: Transaction, run: PlainRun, handler_id: str | None) -> dict[str, Any]:
    """Return what ``complete_events`` takes. Mostly all events have one handler, which then comes only once."""
    return {"now": tx.now, "run": to_json(run), "handler": None if handler_id is None else to_json(handler_id)}


def _repeated(tx: Transaction, settlement: Settlement) -> Settled | LeaseLost:
    """Let the lifecycle compare the settlement with the newest one of the event."""
    id_ = settlement.ref.id
    event, last = get_event(tx, id_), tx.one(SQL["last_settlement"], (id_,))
    if event is None:
        return LeaseLost(id_, NO_EVENT)
    settled = None if last is None else settled_of(last)
    applied = transition(EventState(event, settled=settled), settlement, tx.now)
    return LeaseLost(id_, NOT_YOURS) if settled is None or isinstance(applied, Refused) else settled.outcome

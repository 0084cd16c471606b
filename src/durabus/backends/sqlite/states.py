"""The road for everything that is not the common case: read the state, ask the kernel, write what it decided.

A batch of plain claims and completions has statements of its own (``claiming``, ``settling``); they are translations
of the kernel and much faster. All other transitions go through here and *are* the kernel.
"""

from __future__ import annotations

import msgspec

from durabus.backends.sqlite.counting import note_ended
from durabus.backends.sqlite.rows import Row, event_of, handler_of, handler_to, results_to, strings_to, to_json
from durabus.backends.sqlite.sql import statement
from durabus.backends.sqlite.transaction import Transaction
from durabus.kernel.state import AbandonedClaim, Applied, EventState, Expire, HandlerState
from durabus.kernel.transition import transition
from durabus.model.event import Event
from durabus.model.log_entry import LogEntry
from durabus.model.statuses import DEAD_LETTER, EventStatus

_GET = statement("get_state")
_GET_RESULTS = statement("list_results")
_APPEND = statement("append_entry")
_RETURN = statement("return_event")
_START = statement("start_event")
_BURY = statement("bury_event")
_FORGET = statement("forget_live_event")
_READY_TAGS = statement("ready_event_tags")
_PUT_RESULT = statement("put_result")
_FORGET_RESULT = statement("forget_result")
_MARK_RESULTS = statement("mark_results")
_FREE_LOCK = statement("free_event_lock")
_ABANDONED = statement("abandoned_claims")
_FORGET_TAGS = statement("forget_event_tags")

_NOT_THE_EVENT = (None,) * 7


class Stored(msgspec.Struct, frozen=True):
    """A live event's state and the lock that its claim took along."""

    state: EventState
    lock_key: str | None
    has_results: bool


def load(tx: Transaction, id_: int) -> Stored | None:
    """The state of a live event."""
    row = tx.one(_GET, (id_,))
    if row is None:
        return None
    *columns, token, lock_key, has_results = row
    event, handlers = event_of(tuple(columns)), load_handlers(tx, id_) if has_results else ()
    lost = abandoned_claims(tx, [id_]).get(id_) if event.status is EventStatus.PENDING and event.fence else None
    abandoned = None if lost is None else AbandonedClaim(lost[1], *lost[3:])
    return Stored(EventState(event, token, handlers, None, abandoned), lock_key, bool(has_results))


def abandoned_claims(tx: Transaction, ids: list[int]) -> dict[int, Row]:
    """Abandoned claims that nobody followed: (id, token, fence, worker_id, picked, started) by id."""
    return {row[0]: row for row in tx.all(_ABANDONED, {"ids": to_json(ids)})}


def load_handlers(tx: Transaction, id_: int) -> tuple[HandlerState, ...]:
    """What the handlers of an event did so far."""
    return tuple(handler_of(row) for row in tx.all(_GET_RESULTS, (id_,)))


def store(tx: Transaction, before: Stored, applied: Applied, token: str | None = None) -> None:
    """Make a transition of a live event real.

    ``token`` is that of a settlement, for its exact repeat, or of an abandoned claim, which may still be settled.
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
            _bury(tx, event)
        tx.run(_FORGET, (event.id,))
        note_ended(tx, event)


def _bury(tx: Transaction, event: Event) -> None:
    tx.run(
        _BURY,
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


def store_handlers(tx: Transaction, before: Stored, after: EventState) -> None:
    """Write the handlers that changed, drop those that are gone."""
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
    """Write log entries; a COMPLETED one also carries what is left of the event."""
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
    """Take events, given as rows of their ids, from claims whose lease is over. Answers how many."""
    taken = 0
    for (id_,) in sorted(rows):
        stored = load(tx, id_)
        applied = None if stored is None else transition(stored.state, Expire(max_attempts), tx.now)
        if stored is not None and isinstance(applied, Applied):
            lost = applied.state.abandoned
            store(tx, stored, applied, None if lost is None else lost.token)
            taken += 1
    return taken


def free_lock(tx: Transaction, held: Stored) -> None:
    """Free the lock that came with a claim, which is about to end."""
    event = held.state.event
    free_event_lock(tx, held.lock_key, held.state.token, event.bus, but=event.id)


def free_event_lock(tx: Transaction, key: str | None, token: str | None, bus: str, *, but: int = 0) -> None:
    """Free the lock of a token that holds no event any more, ``but`` this one, and let those who wait for it know."""
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

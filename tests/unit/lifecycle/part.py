"""One event as the explorer sees it: what the store holds, under names that make equal situations equal."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from msgspec.structs import replace
from tests.unit.lifecycle.explorer import FENCE, NOW
from tests.unit.lifecycle.lock_model import renamed_lock

from durabus.lifecycle.state import EventState, HandlerState, LockState, SettledClaim
from durabus.model.claim import ClaimRef
from durabus.model.statuses import HISTORY, EventStatus, ResultStatus

PROCESS, OTHER_PROCESS = "~00000000001", "~00000000002"
"""The incarnation of the process that holds the claim, and another one."""
NEW, CURRENT, SETTLED_LAST, LOST = "new", f"{PROCESS}now", "before", "other"
"""Tokens: of a request made just now, of the claim that is held, or was abandoned and is still the newest, of the one
settled last, of any older one."""

SHAPES = (
    (CURRENT, FENCE),
    (CURRENT, FENCE - 1),
    (CURRENT, FENCE + 1),
    (SETTLED_LAST, FENCE),
    (SETTLED_LAST, FENCE - 1),
    (LOST, FENCE),
    (LOST, FENCE - 1),
)
"""Every way in which a claim can relate to the one that is current and to the one that was settled last."""

FIRST, SECOND = "h1", "h2"
"""The handlers."""
_OTHER = {FIRST: SECOND, SECOND: FIRST}

LEVEL = 5
"""What handler attempts are levelled to; every step is checked to count right from here."""


class Part(NamedTuple):
    """One event as the store holds it, and what the rules remember of its past."""

    state: EventState
    lock: LockState | None
    """The lock between serial handlers."""
    ended: bool
    """Whether this generation has its terminal entry."""
    fenced: frozenset[str]
    """Handlers that were granted once: their fence may not begin again."""
    stopped: frozenset[str] = frozenset()
    """Handlers that may still run although their claim is gone: neither their worker nor time has ended it."""
    awaited_is_stored: bool = False
    """Whether the event that a handler waits for is stored."""


class Effect(Enum):
    """What a step means for the lock that goes with the event's claim."""

    NONE = 0
    TAKE = 1
    KEEP = 2
    FREE = 3
    LOSE = 4
    OVER = 5


class Move(NamedTuple):
    """A step that changes something."""

    name: str
    after: Part
    effect: Effect = Effect.NONE


def event_claim(token: str, fence: int) -> ClaimRef:
    """Return what a worker sends of a claim on the event."""
    return ClaimRef(1, token, fence)


def alive(expires_ts: float | None) -> bool:
    """Return whether a lease is not over."""
    return expires_ts is not None and expires_ts > NOW


def live_claim(state: EventState) -> tuple[str | None, int] | None:
    """Return token and fence of the claim on the event, if its lease is not over."""
    processing = state.event.status is EventStatus.PROCESSING
    return (state.token, state.event.fence) if processing and alive(state.event.expires_ts) else None


def live_handler_claim(row: HandlerState) -> tuple[str | None, int] | None:
    """Return token and fence of the claim on a handler, if its lease is not over."""
    processing = row.result.status is ResultStatus.PROCESSING
    return (row.token, row.result.fence) if processing and alive(row.result.expires_ts) else None


def still_running(part: Part, after: EventState) -> frozenset[str]:
    """Return the handlers that may still run without a claim once a step has led to ``after``.

    An event that completed or was cancelled runs no handler again, so nothing can overlap with them.
    """
    if after.event.status in HISTORY:
        return frozenset()
    rows = ((row, find_row(after, row.result.handler_id)) for row in part.state.handlers if live_handler_claim(row))
    return part.stopped | {row.result.handler_id for row, now in rows if now is None or now.token != row.token}


def find_row(state: EventState, handler_id: str) -> HandlerState | None:
    """Return what the store holds of a handler."""
    for row in state.handlers:
        if row.result.handler_id == handler_id:
            return row
    return None


def renamed(part: Part) -> Part:
    """Return the same situation under canonical names."""
    state, lock = part.state, part.lock
    if lock is not None and lock.token is not None:
        holder = next((row.result.handler_id for row in state.handlers if row.token == lock.token), None)
        lock = renamed_lock(lock, LOST if holder is None else f"{holder}/{CURRENT}")
    rows = tuple(sorted(map(_renamed_row, state.handlers), key=lambda row: row.result.handler_id))
    fenced = part.fenced | {row.result.handler_id for row in rows if row.result.fence}
    plain = part._replace(state=_renamed_event(state, rows), lock=lock, fenced=fenced)
    if not rows:
        return plain
    return _mirrored(plain) if _order(plain, SECOND) > _order(plain, FIRST) else plain


def _order(part: Part, handler_id: str) -> tuple[object, ...]:
    """Return a sort key of handlers. They are interchangeable: one of two situations that differ by names is enough."""
    row = find_row(part.state, handler_id)
    holds_lock = part.lock is not None and part.lock.token == f"{handler_id}/{CURRENT}"
    known = (handler_id in part.fenced, handler_id in part.stopped, holds_lock)
    if row is None:
        return known
    result = row.result
    settled = "" if row.settled_token is None else row.settled_token.partition("/")[2]
    status = (result.status, result.expires_ts or 0.0, result.fence, row.token is None, settled)
    return (*known, *status)


def _mirrored(part: Part) -> Part:
    rows = tuple(
        HandlerState(
            replace(row.result, handler_id=_OTHER[row.result.handler_id]),
            _swap(row.token),
            _swap(row.settled_token),
            row.lock_key,
        )
        for row in reversed(part.state.handlers)
    )
    lock = part.lock
    if lock is not None:
        lock = replace(lock, token=_swap(lock.token))
    fenced, stopped = (frozenset(_OTHER[one] for one in ids) for ids in (part.fenced, part.stopped))
    return part._replace(state=replace(part.state, handlers=rows), lock=lock, fenced=fenced, stopped=stopped)


def _swap(token: str | None) -> str | None:
    if token is None or token == LOST:
        return token
    handler_id, _, rest = token.partition("/")
    return f"{_OTHER[handler_id]}/{rest}"


def _renamed_event(state: EventState, rows: tuple[HandlerState, ...]) -> EventState:
    settled, event = state.settled, state.event
    lost = state.abandoned
    newest = state.token if lost is None else lost.token
    if settled is not None:
        token = CURRENT if settled.token == newest else SETTLED_LAST
        fence = FENCE if settled.fence == event.fence else FENCE - 1
        settled = SettledClaim(token, fence, settled.action, settled.outcome)
    event = replace(event, fence=FENCE if event.fence else 0, errors=("",) * len(event.errors))
    abandoned = None if lost is None else replace(lost, token=CURRENT)
    return EventState(event, None if state.token is None else CURRENT, rows, settled, abandoned)


def _renamed_row(row: HandlerState) -> HandlerState:
    result = row.result
    token, settled = row.token, row.settled_token
    if settled is not None:
        settled = f"{result.handler_id}/{CURRENT if settled == token else SETTLED_LAST}"
    if token is not None:
        token = f"{result.handler_id}/{CURRENT}"
    fence = FENCE if result.fence else 0
    return HandlerState(
        replace(result, fence=fence, attempts=LEVEL, error=None, worker_id=None), token, settled, row.lock_key
    )

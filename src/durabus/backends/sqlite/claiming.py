"""``claim_next_events``: look, take, log. Four statements for a batch, none of which depends on the backlog."""

from __future__ import annotations

from msgspec.structs import replace

from durabus.backends.sqlite.lines import first_in_line
from durabus.backends.sqlite.locks import get_lock, may_claim, take
from durabus.backends.sqlite.publishing import get_event
from durabus.backends.sqlite.rows import Row, event_of, strings_of, to_json
from durabus.backends.sqlite.sql import statement
from durabus.backends.sqlite.states import expire, load_handlers
from durabus.backends.sqlite.transaction import Transaction
from durabus.kernel.state import LockState, Refused
from durabus.model.claim import Claim, ClaimRequest, event_lock_key
from durabus.model.event import Event
from durabus.model.result import HandlerResult
from durabus.model.statuses import EventStatus

PROMOTE_AT_ONCE = 10_000
"""Delayed events that one claim makes ready. Beyond it the longest waiting go first, whatever their priority."""
ASIDE_AT_ONCE = 1_000
"""Events that are looked at together once some were behind others of their ordering key."""
EXPIRE_AT_ONCE = 1_000
"""Expired leases that one claim takes."""

_LOOK = statement("look_before_claim")
_DUE = statement("due_events")
_READY = statement("ready_events")
_READY_TAGS = statement("ready_event_tags")
_EXPIRED = statement("expired_events")
_NEXT = statement("next_events")
_NEXT_BY_ID = statement("next_events_by_id")
_NEXT_BY_TAG = statement("next_events_by_tag")
_TAKE = statement("claim_next_events")
_LOG = statement("log_picked")
_FORGET_TAGS = statement("forget_event_tags")
_HELD = statement("held_events")


def claim_next_events(tx: Transaction, request: ClaimRequest) -> list[Claim]:
    """Claim up to ``request.limit`` events."""
    bus, now = request.bus, tx.now
    due, expired, held, revision = tx.all(_LOOK, {"bus": bus, "now": now, "token": request.token})[0]
    revision = "" if revision is None else str(revision)
    if held:
        return [_held_claim(tx, row, request.token, revision) for row in tx.all(_HELD, {"token": request.token})]
    if expired:
        expire(tx, tx.all(_EXPIRED, {"bus": bus, "now": now, "limit": EXPIRE_AT_ONCE}), request.max_attempts)
    if due or expired:  # what a lost event held up may be due now
        _promote(tx, bus)
    key = event_lock_key(request.mode, bus)
    lock = None if key is None else _may_lock(tx, key, request)
    refused = isinstance(lock, Refused) or request.limit < 1
    rows = [] if refused else _candidates(tx, request, request.limit)
    if not rows:
        tx.fruitless.add(bus)
        return []
    if isinstance(lock, LockState):
        take(tx, lock, request.max_attempts)
    tx.fruitful.add(bus)
    return _take(tx, request, rows, key, revision)


def _promote(tx: Transaction, bus: str) -> None:
    rows = tx.all(_DUE, {"bus": bus, "now": tx.now, "limit": PROMOTE_AT_ONCE})
    ids = {"ids": to_json([row[0] for row in rows])}
    tx.run(_READY, ids)
    tx.run(_READY_TAGS, ids)


def _candidates(tx: Transaction, request: ClaimRequest, limit: int) -> list[Row]:
    """In queue order. Events behind others of their ordering key are put aside on the way, each one once."""
    size = limit
    while True:
        rows = _ready(tx, request, size)
        may = first_in_line(tx, request.bus, rows) if any(row[4] is not None for row in rows) else rows
        if len(may) == len(rows) or len(may) >= limit:
            return may[:limit]
        size = max(limit, ASIDE_AT_ONCE)  # a long line of one key may lie before the rest


def _ready(tx: Transaction, request: ClaimRequest, limit: int) -> list[Row]:
    if request.event_id is not None:
        event = get_event(tx, request.event_id)
        known = event is not None and event.bus == request.bus
        return tx.all(_NEXT_BY_ID, {"ids": to_json([event.id])}) if event is not None and known else []
    if not request.tags:
        return tx.all(_NEXT, {"bus": request.bus, "limit": limit})
    found: set[tuple[int, int]] = set()
    for tag in request.tags:
        rows = tx.all(_NEXT_BY_TAG, {"bus": request.bus, "tag": tag, "limit": limit})
        found.update((-priority, id_) for priority, id_ in rows)
    first = [id_ for _, id_ in sorted(found)[:limit]]
    return tx.all(_NEXT_BY_ID, {"ids": to_json(first)}) if first else []


def _take(tx: Transaction, request: ClaimRequest, rows: list[Row], lock_key: str | None, revision: str) -> list[Claim]:
    bus, now, worker_id, token = request.bus, tx.now, request.worker_id, request.token
    expires = now + request.lease
    ids = to_json([row[0] for row in rows])
    tx.run(
        _TAKE,
        {
            "ids": ids,
            "worker_id": worker_id,
            "token": token,
            "lock_key": lock_key,
            "now": now,
            "expires_at": expires,
        },
    )
    tx.run(_LOG, {"ids": ids})
    tagged: list[Row] = []
    claims: list[Claim] = []
    for (
        id_, event_id, type_, payload, metadata, tags, priority, max_attempts, parent_id, key, attempts, generation,
        fence, errors, created, due, has_results, plain,
    ) in rows:  # fmt: skip
        # at most 15 keywords in one call: see rows.event_of
        event = Event(
            id=id_,
            event_id=event_id,
            bus=bus,
            type=type_,
            payload_json=payload,
            status=EventStatus.PROCESSING,
            attempts=attempts + 1,
            generation=generation,
            fence=fence + 1,
            worker_id=worker_id,
            created_ts=created,
            updated_ts=now,
            due_ts=due,
            picked_ts=now,
            expires_ts=expires,
        )
        if not plain:
            event = replace(
                event,
                metadata_json=metadata,
                tags=strings_of(tags),
                priority=priority,
                max_attempts=max_attempts,
                parent_id=parent_id,
                idempotency_key=key,
                errors=strings_of(errors),
            )
        if tags is not None:
            tagged.extend((bus, tag, priority, id_) for tag in event.tags)
        claims.append(Claim(event, token, _results(tx, id_) if has_results else (), revision))
    tx.many(_FORGET_TAGS, tagged)
    return claims


def _results(tx: Transaction, id_: int) -> tuple[HandlerResult, ...]:
    return tuple(handler.result for handler in load_handlers(tx, id_))


def _held_claim(tx: Transaction, row: Row, token: str, revision: str) -> Claim:
    event = event_of(row)
    return Claim(event, token, _results(tx, event.id), revision)


def _may_lock(tx: Transaction, key: str, request: ClaimRequest) -> LockState | Refused:
    held = get_lock(tx, key)
    return may_claim(held, key, worker_id=request.worker_id, token=request.token, lease=request.lease, now=tx.now)

"""``durabus.store.claims.Claims``: claims, renews, settles, expires, resets and cancels events.

``claim_next_events`` takes four statements for a batch. The cost of none of them depends on the backlog.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from durabus.errors import ConfigurationError, LeaseLost
from durabus.lifecycle.state import HELD, NOT_YOURS, Applied, LockState, Refused, Reset, Revoke, Start
from durabus.lifecycle.transition import transition
from durabus.model.claim import Claim, ClaimRef, ClaimRequest, event_lock_key
from durabus.model.event import Event, ordering_key_of
from durabus.model.limits import stored_text
from durabus.model.result import HandlerResult
from durabus.model.settlement import Settlement
from durabus.store.claims import SettleAnswer
from durabus.store.events import EventRef
from durabus.stores.sql.changes import NO_EVENT, found_event
from durabus.stores.sql.rows import Row, claimed_event, event_of, strings_of, to_json
from durabus.stores.sqlite.connection import Transaction
from durabus.stores.sqlite.core import SQLiteCore
from durabus.stores.sqlite.layout import SQL
from durabus.stores.sqlite.locks import get_lock, may_claim, take, void_handlers
from durabus.stores.sqlite.publishing import get_event
from durabus.stores.sqlite.settlements import (
    abandoned_claims,
    claims_of,
    expire,
    free_handler_locks,
    is_current,
    load,
    load_handlers,
    settle_events,
    settle_with_entries,
    store,
)

PROMOTE_AT_ONCE = 10_000
"""Maximum number of delayed events that one claim makes ready. It takes the longest waiting first."""
DEFER_AT_ONCE = 1_000
"""Number of events that a claim looks at together after some had to wait behind their ordering key."""
EXPIRE_AT_ONCE = 1_000
"""Maximum number of expired leases that one claim takes back."""


def claim_next_events(tx: Transaction, request: ClaimRequest) -> list[Claim]:
    """Claim up to ``request.limit`` events."""
    bus, now = request.bus, tx.now
    due, expired, held, revision = tx.all(SQL["look_before_claim"], {"bus": bus, "now": now, "token": request.token})[0]
    revision = "" if revision is None else str(revision)
    if held:
        return [
            _held_claim(tx, row, request.token, revision)
            for row in tx.all(SQL["held_events"], {"token": request.token})
        ]
    if expired:
        expire(
            tx, tx.all(SQL["expired_events"], {"bus": bus, "now": now, "limit": EXPIRE_AT_ONCE}), request.max_attempts
        )
    if due or expired:  # an event behind the expired one may be due now
        _promote(tx, bus)
    key = event_lock_key(request.mode, bus)
    handled = [] if key is None else tx.all(SQL["events_with_handlers_under"], (key,))
    lock = None if key is None else _may_lock(tx, key, request, max((ends for _, ends in handled), default=0.0))
    refused = isinstance(lock, Refused) or request.limit < 1
    rows = [] if refused else _candidates(tx, request, request.limit)
    if not rows:
        tx.fruitless.add(bus)
        return []
    if isinstance(lock, LockState):
        take(tx, lock, request.max_attempts)
        void_handlers(tx, lock.key, handled)
    tx.fruitful.add(bus)
    if len(rows) < request.limit and request.event_id is None and not request.tags:
        tx.added.discard(bus)  # nothing is left for others
    return _take(tx, request, rows, key, revision)


def _promote(tx: Transaction, bus: str) -> None:
    rows = tx.all(SQL["due_events"], {"bus": bus, "now": tx.now, "limit": PROMOTE_AT_ONCE})
    ids = {"ids": to_json([row[0] for row in rows])}
    tx.run(SQL["ready_events"], ids)
    tx.run(SQL["ready_event_tags"], ids)


def _candidates(tx: Transaction, request: ClaimRequest, limit: int) -> Sequence[Row]:
    """Return the events to claim in queue order. Defers events that wait behind their ordering key, each one once."""
    size = limit
    while True:
        rows = _ready(tx, request, size)
        may = first_of_ordering_keys(tx, request.bus, rows) if any(row[4] is not None for row in rows) else rows
        if len(may) == len(rows) or len(may) >= limit:
            return may[:limit]
        size = max(limit, DEFER_AT_ONCE)  # many events of one key may stand before the others


def _ready(tx: Transaction, request: ClaimRequest, limit: int) -> Sequence[Row]:
    if request.event_id is not None:
        event = get_event(tx, request.event_id)
        known = event is not None and event.bus == request.bus
        return tx.all(SQL["next_events_by_id"], {"ids": to_json([event.id])}) if event is not None and known else []
    if not request.tags:
        return tx.all(SQL["next_events"], {"bus": request.bus, "limit": limit})
    found: set[tuple[int, int]] = set()
    for tag in request.tags:
        rows = tx.all(SQL["next_events_by_tag"], {"bus": request.bus, "tag": tag, "limit": limit})
        found.update((-priority, id_) for priority, id_ in rows)
    first = [id_ for _, id_ in sorted(found)[:limit]]
    return tx.all(SQL["next_events_by_id"], {"ids": to_json(first)}) if first else []


def _take(
    tx: Transaction, request: ClaimRequest, rows: Sequence[Row], lock_key: str | None, revision: str
) -> list[Claim]:
    bus, now, worker_id, token = request.bus, tx.now, request.worker_id, request.token
    expires = now + request.lease
    ids = to_json([row[0] for row in rows])
    tx.run(
        SQL["claim_next_events"],
        {
            "ids": ids,
            "worker_id": worker_id,
            "token": token,
            "lock_key": lock_key,
            "now": now,
            "expires_at": expires,
        },
    )
    tx.run(SQL["log_picked"], {"ids": ids})
    tagged: list[Row] = []
    claims: list[Claim] = []
    for (
        id_, event_id, type_, payload, metadata, tags, priority, max_attempts, parent_id, key, attempts, generation,
        fence, errors, created, due, has_results, plain,
    ) in rows:  # fmt: skip
        event = claimed_event((
            id_, event_id, bus, type_, payload, attempts + 1, generation, fence + 1, worker_id, created,
            due, now, expires,
        ))  # fmt: skip
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
    tx.many(SQL["forget_event_tags"], tagged)
    return claims


def _results(tx: Transaction, id_: int) -> tuple[HandlerResult, ...]:
    return tuple(handler.result for handler in load_handlers(tx, id_))


def _held_claim(tx: Transaction, row: Row, token: str, revision: str) -> Claim:
    event = event_of(row)
    return Claim(event, token, _results(tx, event.id), revision)


def _may_lock(tx: Transaction, key: str, request: ClaimRequest, handlers_end: float) -> LockState | Refused:
    if handlers_end > tx.now:
        return Refused(HELD)
    held = get_lock(tx, key)
    return may_claim(held, key, worker_id=request.worker_id, token=request.token, lease=request.lease, now=tx.now)


class SQLiteClaims(SQLiteCore):
    """Implements ``store.claims.Claims`` on SQLite."""

    async def claim_next_events(self, request: ClaimRequest) -> list[Claim]:
        return await self._write(lambda tx: claim_next_events(tx, request))

    async def start_events(self, refs: Sequence[ClaimRef]) -> list[Event | LeaseLost]:
        if not refs:
            return []
        return await self._write(lambda tx: [_start(tx, ref) for ref in refs])

    async def renew_event_claims(self, refs: Sequence[ClaimRef], *, lease: float) -> list[float | LeaseLost]:
        if not refs:
            return []
        return await self._write(lambda tx: _renew(tx, refs, lease))

    async def settle_events(
        self,
        settlements: Sequence[Settlement],
        *,
        then_claim: ClaimRequest | None = None,
        connection: object | None = None,
        with_entries: bool = False,
    ) -> SettleAnswer:
        if connection is not None:
            if then_claim is not None:
                raise ConfigurationError(
                    "settle_events(connection=…, then_claim=…): a claim cannot wait for the caller's commit, "
                    "claim in a call of its own"
                )
            return await self._join(connection, lambda tx: _settle(tx, settlements, None, with_entries=with_entries))
        if not settlements and then_claim is None:
            self._check_open()
            return SettleAnswer([], [])
        return await self._write(lambda tx: _settle(tx, settlements, then_claim, with_entries=with_entries))

    async def current_claims(self, ids: Sequence[int]) -> list[ClaimRef | None]:
        wanted = list(ids)
        found = await self._read(lambda tx: abandoned_claims(tx, wanted) | claims_of(tx, wanted))
        return [ClaimRef(id_, found[id_][1], found[id_][2]) if id_ in found else None for id_ in ids]

    async def expire_events(self, *, max_attempts: int | None = None, limit: int = 1000) -> int:
        return await self._write(lambda tx: _expire(tx, max_attempts, limit))

    async def reset_event(self, ref: EventRef, *, reason: str) -> Event:
        return found_event(ref, await self._write(lambda tx: _take_away(tx, [ref], Reset(stored_text(reason)))))

    async def cancel_event(self, ref: EventRef, *, reason: str) -> Event:
        return found_event(ref, await self.cancel_events([ref], reason=reason))

    async def cancel_events(self, refs: Sequence[EventRef], *, reason: str) -> list[Event | None]:
        return await self._write(lambda tx: _take_away(tx, refs, Revoke(stored_text(reason))))


def _settle(
    tx: Transaction, settlements: Sequence[Settlement], then_claim: ClaimRequest | None, *, with_entries: bool
) -> SettleAnswer:
    settle = settle_with_entries if with_entries else settle_events
    outcomes = settle(tx, settlements) if settlements else []
    return SettleAnswer(outcomes, [] if then_claim is None else claim_next_events(tx, then_claim))


def _start(tx: Transaction, ref: ClaimRef) -> Event | LeaseLost:
    stored = load(tx, ref.id)
    if stored is None:
        return LeaseLost(ref.id, NO_EVENT if get_event(tx, ref.id) is None else NOT_YOURS)
    applied = transition(stored.state, Start(ref), tx.now)
    if isinstance(applied, Refused):
        return LeaseLost(ref.id, applied.reason)
    store(tx, stored, applied)
    return applied.state.event


def _renew(tx: Transaction, refs: Sequence[ClaimRef], lease: float) -> list[float | LeaseLost]:
    claims = claims_of(tx, [ref.id for ref in refs])
    expires = tx.now + lease
    answer: list[float | LeaseLost] = []
    current: list[int] = []
    locks: set[tuple[str, str]] = set()
    for ref in refs:
        claim = claims.get(ref.id)
        if claim is not None and is_current(claim, ref):
            current.append(ref.id)
            answer.append(expires)
            if claim[3] is not None:
                locks.add((claim[3], ref.token))
        else:
            unknown = claim is None and get_event(tx, ref.id) is None
            answer.append(LeaseLost(ref.id, NO_EVENT if unknown else NOT_YOURS))
    if current:
        tx.run(SQL["renew_event_claims"], {"ids": to_json(current), "expires_at": expires})
    tx.many(SQL["renew_event_lock"], [(expires, key, token) for key, token in locks])
    return answer


def _expire(tx: Transaction, max_attempts: int | None, limit: int) -> int:
    return expire(tx, tx.all(SQL["expired_events_of_all"], {"now": tx.now, "limit": max(limit, 0)}), max_attempts)


def _take_away(tx: Transaction, refs: Sequence[EventRef], command: Reset | Revoke) -> list[Event | None]:
    """Reset or cancel events. An event that the command does not apply to is returned unchanged."""
    found: list[Event | None] = []
    for ref in refs:
        event = get_event(tx, ref)
        stored = None if event is None else load(tx, event.id)
        applied = None if stored is None else transition(stored.state, command, tx.now)
        if stored is not None and isinstance(applied, Applied):
            store(tx, stored, applied)
            free_handler_locks(tx, stored.state, applied.state)
            event = applied.state.event
        found.append(event)
    return found


def first_of_ordering_keys(tx: Transaction, bus: str, rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows of ``next_events`` that may be claimed. Defers events that wait behind their ordering key."""
    keyed = [row[0] for row in rows if row[4] is not None and ordering_key_of(row[4]) is not None]
    if not keyed:
        return rows
    behind = {id_ for (id_,) in tx.all(SQL["behind_ordering_key"], {"ids": to_json(keyed)})}
    if not behind:
        return rows
    tx.run(SQL["defer_behind_key"], {"ids": to_json(sorted(behind))})
    tagged = [(bus, tag, row[6], row[0]) for row in rows if row[0] in behind for tag in strings_of(row[5])]
    tx.many(SQL["forget_event_tags"], tagged)
    return [row for row in rows if row[0] not in behind]

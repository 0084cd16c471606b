"""``durabus.store.claims.Claims``."""

from __future__ import annotations

from collections.abc import Sequence

from durabus.backends.sqlite.claiming import claim_next_events
from durabus.backends.sqlite.core import SQLiteCore
from durabus.backends.sqlite.publishing import get_event
from durabus.backends.sqlite.rows import to_json
from durabus.backends.sqlite.settling import claims_of, is_current, settle_events
from durabus.backends.sqlite.sql import statement
from durabus.backends.sqlite.states import abandoned_claims, expire, load, store
from durabus.backends.sqlite.transaction import Transaction
from durabus.errors import ConfigurationError, EventNotFound, LeaseLost
from durabus.kernel.state import NOT_YOURS, Refused, Reset, Start
from durabus.kernel.transition import transition
from durabus.model.claim import Claim, ClaimRef, ClaimRequest
from durabus.model.event import Event
from durabus.model.settlement import Settlement
from durabus.model.text import stored_text
from durabus.store.claims import SettleAnswer
from durabus.store.events import EventRef

_RENEW = statement("renew_event_claims")
_RENEW_LOCK = statement("renew_event_lock")
_EXPIRED = statement("expired_events_of_all")


class SQLiteClaims(SQLiteCore):
    """Claims on events."""

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
    ) -> SettleAnswer:
        if connection is not None:
            if then_claim is not None:
                raise ConfigurationError(
                    "settle_events(connection=…, then_claim=…): a claim cannot wait for the caller's commit, "
                    "claim in a call of its own"
                )
            return SettleAnswer(await self._join(connection, lambda tx: settle_events(tx, settlements)), [])
        if not settlements and then_claim is None:
            self._check_open()
            return SettleAnswer([], [])
        return await self._write(lambda tx: _settle(tx, settlements, then_claim))

    async def current_claims(self, ids: Sequence[int]) -> list[ClaimRef | None]:
        wanted = list(ids)
        found = await self._read(lambda tx: abandoned_claims(tx, wanted) | claims_of(tx, wanted))
        return [ClaimRef(id_, found[id_][1], found[id_][2]) if id_ in found else None for id_ in ids]

    async def expire_events(self, *, max_attempts: int | None = None, limit: int = 1000) -> int:
        return await self._write(lambda tx: _expire(tx, max_attempts, limit))

    async def reset_event(self, ref: EventRef, *, reason: str) -> Event:
        return await self._write(lambda tx: _reset(tx, ref, reason))


def _settle(tx: Transaction, settlements: Sequence[Settlement], then_claim: ClaimRequest | None) -> SettleAnswer:
    outcomes = settle_events(tx, settlements) if settlements else []
    return SettleAnswer(outcomes, [] if then_claim is None else claim_next_events(tx, then_claim))


def _start(tx: Transaction, ref: ClaimRef) -> Event | LeaseLost:
    stored = load(tx, ref.id)
    if stored is None:
        return LeaseLost(ref.id, "no such event" if get_event(tx, ref.id) is None else NOT_YOURS)
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
            answer.append(LeaseLost(ref.id, "no such event" if unknown else NOT_YOURS))
    if current:
        tx.run(_RENEW, {"ids": to_json(current), "expires_at": expires})
    tx.many(_RENEW_LOCK, [(expires, key, token) for key, token in locks])
    return answer


def _expire(tx: Transaction, max_attempts: int | None, limit: int) -> int:
    return expire(tx, tx.all(_EXPIRED, {"now": tx.now, "limit": max(limit, 0)}), max_attempts)


def _reset(tx: Transaction, ref: EventRef, reason: str) -> Event:
    event = get_event(tx, ref)
    if event is None:
        raise EventNotFound(ref)
    stored = load(tx, event.id)
    applied = None if stored is None else transition(stored.state, Reset(stored_text(reason)), tx.now)
    if stored is None or applied is None or isinstance(applied, Refused):
        return event
    store(tx, stored, applied)
    return applied.state.event

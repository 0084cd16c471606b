"""``durabus.store.results.Results``: handler results, and claims on single handlers."""

from __future__ import annotations

from collections.abc import Sequence

from durabus.errors import LeaseLost
from durabus.lifecycle.handlers import (
    claim_handler,
    complete_handler,
    handlers_done,
    keep_results,
    merge_results,
    release_handler,
    renew_handler,
)
from durabus.lifecycle.state import NOT_DONE, NOT_YOURS, Applied, EventState, Refused
from durabus.model.claim import ClaimRef, HandlerClaim, HandlerClaimRequest, handler_lock_key
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Keep, Settled
from durabus.model.statuses import HandlerMode
from durabus.store.events import EventRef
from durabus.stores.sql.changes import NO_EVENT, StoredEvent, freed_handler_locks
from durabus.stores.sql.rows import Row, handler_of, handler_to
from durabus.stores.sqlite.connection import Transaction
from durabus.stores.sqlite.core import SQLiteCore
from durabus.stores.sqlite.layout import SQL
from durabus.stores.sqlite.locks import grant
from durabus.stores.sqlite.publishing import get_event
from durabus.stores.sqlite.settlements import claims_of, is_current, load, load_handlers, settle, store_handlers


class SQLiteResults(SQLiteCore):
    """Implements ``store.results.Results`` on SQLite."""

    async def list_results(self, ref: EventRef) -> list[HandlerResult]:
        def read(tx: Transaction) -> list[HandlerResult]:
            event = get_event(tx, ref)
            return (
                []
                if event is None
                else [handler_of(row).result for row in tx.all(SQL["list_results_by_name"], (event.id,))]
            )

        return await self._read(read)

    async def keep_results(self, kept: Sequence[Keep]) -> list[LeaseLost | None]:
        if not kept:
            return []
        return await self._write(lambda tx: _keep_all(tx, kept))

    async def claim_next_handler_result(self, request: HandlerClaimRequest) -> HandlerClaim | None:
        return await self._write(lambda tx: _claim(tx, request))

    async def renew_handler_claims(self, claims: Sequence[HandlerClaim], *, lease: float) -> list[float | LeaseLost]:
        if not claims:
            return []
        return await self._write(lambda tx: [_renew(tx, claim, lease) for claim in claims])

    async def release_handler_claim(self, claim: HandlerClaim) -> None:
        def release(tx: Transaction) -> None:
            stored = _known(tx, claim)
            _store(tx, claim, stored, release_handler(stored.state, claim))

        await self._write(release)

    async def complete_handler_result(self, claim: HandlerClaim, outcome: HandlerResult) -> HandlerResult:
        def complete(tx: Transaction) -> HandlerResult:
            stored = _known(tx, claim)
            after = _store(tx, claim, stored, complete_handler(stored.state, claim, outcome))
            return next(result for result in after.results if result.handler_id == claim.handler_id)

        return await self._write(complete)

    async def complete_event_if_done(self, ref: ClaimRef, handler_ids: Sequence[str]) -> Settled | None:
        return await self._write(lambda tx: _complete_event(tx, ref, tuple(handler_ids)))

    async def cleanup_results(self, *, limit: int = 10_000) -> int:
        return await self._write(lambda tx: tx.run(SQL["cleanup_results"], {"limit": limit}))


def _keep_all(tx: Transaction, kept: Sequence[Keep]) -> list[LeaseLost | None]:
    claims = claims_of(tx, [keep.ref.id for keep in kept])
    return [_keep(tx, keep, claims.get(keep.ref.id)) for keep in kept]


def _keep(tx: Transaction, keep: Keep, claim: Row | None) -> LeaseLost | None:
    """Write the results without reading the others, which may be many. The lifecycle decides if that is not enough."""
    id_ = keep.ref.id
    if claim is not None and is_current(claim, keep.ref):
        rows = [handler_to(id_, handler) for handler in merge_results((), keep.results)]
        if tx.many(SQL["keep_result"], rows) == len(rows):
            if rows and claim[4]:
                tx.run(SQL["mark_results"], (id_,))
            return None
    stored = load(tx, id_)
    if stored is None:
        return LeaseLost(id_, NO_EVENT if get_event(tx, id_) is None else NOT_YOURS)
    applied = keep_results(stored.state, keep)
    if isinstance(applied, Refused):
        return LeaseLost(id_, applied.reason)
    store_handlers(tx, stored, applied.state)
    tx.many(SQL["free_claimed_lock"], freed_handler_locks(stored.state, applied.state))
    return None


def _claim(tx: Transaction, request: HandlerClaimRequest) -> HandlerClaim | None:
    stored = load(tx, request.event.id)
    claimed = None if stored is None else claim_handler(stored.state, request, tx.now)
    if stored is None or claimed is None:
        return None
    if request.mode is HandlerMode.SERIAL:
        key = handler_lock_key(stored.state.event.event_id)
        if grant(tx, key, worker_id=request.worker_id, token=request.token, lease=request.lease) is None:
            return None
        # taking the expired lock may have ended the claim of another handler
        stored = load(tx, request.event.id) or stored
        claimed = claim_handler(stored.state, request, tx.now) or claimed
    after, claim = claimed
    store_handlers(tx, stored, after)
    return claim


def _renew(tx: Transaction, claim: HandlerClaim, lease: float) -> float | LeaseLost:
    stored = load(tx, claim.id)
    applied = Refused(NOT_YOURS) if stored is None else renew_handler(stored.state, claim, lease, tx.now)
    if stored is None or isinstance(applied, Refused):
        return LeaseLost(claim.id, NOT_YOURS)
    expires = tx.now + lease
    store_handlers(tx, stored, applied.state)
    tx.run(SQL["renew_claimed_lock"], (expires, handler_lock_key(applied.state.event.event_id), claim.token))
    return expires


def _known(tx: Transaction, claim: HandlerClaim) -> StoredEvent:
    """Return the event's state, also after its end: a repeated call gets the result of the first one."""
    stored = load(tx, claim.id)
    if stored is not None:
        return stored
    event = get_event(tx, claim.id)
    if event is None:
        raise LeaseLost(claim.id, NO_EVENT)
    return StoredEvent(EventState(event, None, load_handlers(tx, claim.id)), None, has_results=True)


def _store(tx: Transaction, claim: HandlerClaim, stored: StoredEvent, applied: Applied | Refused) -> EventState:
    if isinstance(applied, Refused):
        raise LeaseLost(claim.id, applied.reason)
    store_handlers(tx, stored, applied.state)
    tx.run(SQL["free_claimed_lock"], (handler_lock_key(applied.state.event.event_id), claim.token))
    return applied.state


def _complete_event(tx: Transaction, ref: ClaimRef, handler_ids: tuple[str, ...]) -> Settled | None:
    stored = load(tx, ref.id)
    if stored is not None and stored.state.settles(ref) and not handlers_done(stored.state, handler_ids):
        return None
    outcome = settle(tx, Complete(ref))
    if not isinstance(outcome, LeaseLost):
        return outcome
    if outcome.reason == NOT_DONE:
        return None
    raise outcome

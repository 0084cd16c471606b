"""``durabus.store.results.Results``: handler results, and claims on single handlers."""

from __future__ import annotations

from collections.abc import Sequence

from durabus.errors import LeaseLost
from durabus.lifecycle.handlers import (
    claim_handler,
    handlers_done,
    held_handlers,
    keep_results,
    merge_results,
    offered_handlers,
    renew_handler,
    settle_handler,
)
from durabus.lifecycle.state import NOT_DONE, NOT_YOURS, EventState, Refused
from durabus.model.claim import (
    ClaimRef,
    HandlerClaim,
    HandlerClaimRequest,
    OfferedHandler,
    OfferRequest,
    handler_lock_key,
)
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, HandlerSettlement, Keep, Settled
from durabus.model.statuses import HandlerMode
from durabus.store.events import EventRef
from durabus.stores.sql.changes import NO_EVENT, StoredEvent, freed_handler_locks
from durabus.stores.sql.rows import Row, handler_of, handler_to, to_json
from durabus.stores.sqlite.connection import Transaction
from durabus.stores.sqlite.core import SQLiteCore
from durabus.stores.sqlite.layout import SQL
from durabus.stores.sqlite.locks import grant
from durabus.stores.sqlite.publishing import add_events, get_event
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

    async def read_results(self, ids: Sequence[int]) -> list[tuple[HandlerResult, ...]]:
        rows = await self._read(lambda tx: tx.all(SQL["results_of_events"], {"ids": to_json(list(ids))}))
        found: dict[int, list[HandlerResult]] = {}
        for id_, *columns in rows:
            found.setdefault(id_, []).append(handler_of(tuple(columns)).result)
        return [tuple(found.get(id_, ())) for id_ in ids]

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

    async def claim_offered_handlers(self, request: OfferRequest) -> list[OfferedHandler]:
        asked = _offer_query(request)
        # A read is cheaper than a write, and nearly always finds nothing.
        if not await self._read(lambda tx: tx.all(SQL["offered_events"], {**asked, "now": tx.now})):
            return []
        return await self._write(lambda tx: _claim_offers(tx, request, asked))

    async def settle_handlers(self, settlements: Sequence[HandlerSettlement]) -> list[HandlerResult | LeaseLost]:
        if not settlements:
            self._check_open()
            return []
        return await self._write(lambda tx: [_settle(tx, one) for one in settlements])

    async def release_handler_claim(self, claim: HandlerClaim, *, delay: float = 0.0) -> None:
        (outcome,) = await self.settle_handlers([HandlerSettlement(claim, None, delay)])
        if isinstance(outcome, LeaseLost):
            raise outcome

    async def complete_handler_result(self, claim: HandlerClaim, outcome: HandlerResult) -> HandlerResult:
        (stored,) = await self.settle_handlers([HandlerSettlement(claim, outcome)])
        if isinstance(stored, LeaseLost):
            raise stored
        return stored

    async def complete_event_if_done(self, ref: ClaimRef, handler_ids: Sequence[str]) -> Settled | None:
        return await self._write(lambda tx: _complete_event(tx, ref, tuple(handler_ids)))

    async def cleanup_results(self, *, limit: int = 10_000) -> int:
        return await self._write(lambda tx: tx.run(SQL["cleanup_results"], {"limit": limit}))


def _keep_all(tx: Transaction, kept: Sequence[Keep]) -> list[LeaseLost | None]:
    claims = claims_of(tx, [keep.ref.id for keep in kept])
    outcomes = [_keep(tx, keep, claims.get(keep.ref.id)) for keep in kept]
    pairs = zip(kept, outcomes, strict=True)
    children = [child for keep, outcome in pairs if outcome is None for child in keep.children]
    if children:
        add_events(tx, children)
    return outcomes


def _keep(tx: Transaction, keep: Keep, claim: Row | None) -> LeaseLost | None:
    """Write the results without reading the others, which may be many. The lifecycle decides if that is not enough."""
    id_, ref = keep.ref.id, keep.ref
    offers = any(result.is_offered for result in keep.results)
    if claim is not None and not offers and isinstance(ref, ClaimRef) and is_current(claim, ref):
        rows = [handler_to(id_, handler) for handler in merge_results((), keep.results)]
        if tx.many(SQL["keep_result"], rows) == len(rows):
            if rows and claim[4]:
                tx.run(SQL["mark_results"], (id_,))
            if keep.is_news:
                _wake(tx, claim[5])
            return None
    stored = load(tx, id_)
    if stored is None:
        return LeaseLost(id_, NO_EVENT if get_event(tx, id_) is None else NOT_YOURS)
    applied = keep_results(stored.state, keep)
    if isinstance(applied, Refused):
        return LeaseLost(id_, applied.reason)
    store_handlers(tx, stored, applied.state)
    tx.many(SQL["free_claimed_lock"], freed_handler_locks(stored.state, applied.state))
    if keep.is_news:
        _wake(tx, stored.state.event.bus)
    return None


def _wake(tx: Transaction, bus: str) -> None:
    """Wake the workers of the bus, in this and other processes: a handler was offered or settled."""
    tx.woken.add(bus)
    tx.run(SQL["add_handler_news"])


def _claim(tx: Transaction, request: HandlerClaimRequest) -> HandlerClaim | None:
    stored = load(tx, request.event.id)
    claimed = None if stored is None else claim_handler(stored.state, request, tx.now, stored.lock_key)
    if stored is None or claimed is None:
        return None
    if request.mode is HandlerMode.SERIAL:
        key = handler_lock_key(stored.state.event.event_id)
        if grant(tx, key, worker_id=request.worker_id, token=request.token, lease=request.lease) is None:
            return None
        # taking the expired lock may have ended the claim of another handler
        stored = load(tx, request.event.id) or stored
        claimed = claim_handler(stored.state, request, tx.now, stored.lock_key) or claimed
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


def _offer_query(request: OfferRequest) -> dict[str, object]:
    return {
        "bus": request.bus,
        "handler_ids": to_json(request.handler_ids),
        "token": request.token,
        "limit": max(request.limit, 0),
        "serial": int(request.mode is HandlerMode.SERIAL),
    }


def _claim_offers(tx: Transaction, request: OfferRequest, asked: dict[str, object]) -> list[OfferedHandler]:
    held = [load(tx, id_) for (id_,) in tx.all(SQL["events_of_handler_token"], (request.token,))]
    found = [one for stored in held if stored is not None for one in held_handlers(stored.state, request.token)]
    if found:
        return found
    for (id_,) in tx.all(SQL["offered_events"], {**asked, "now": tx.now}):
        stored = load(tx, id_)
        wanted = (
            ()
            if stored is None
            else offered_handlers(stored.state, request, tx.now)[: max(request.limit - len(found), 0)]
        )
        claims = [claim for claim in (_claim(tx, one) for one in wanted) if claim is not None]
        after = load(tx, id_) if claims else None
        found += (
            [] if after is None else [OfferedHandler(after.state.event, one, after.state.results) for one in claims]
        )
    return found


def _settle(tx: Transaction, settlement: HandlerSettlement) -> HandlerResult | LeaseLost:
    claim, stored = settlement.claim, _known(tx, settlement.claim.id)
    applied = Refused(NO_EVENT) if stored is None else settle_handler(stored.state, settlement, tx.now)
    if stored is None or isinstance(applied, Refused):
        return LeaseLost(claim.id, applied.reason if isinstance(applied, Refused) else NO_EVENT)
    event = applied.state.event
    store_handlers(tx, stored, applied.state)
    tx.run(SQL["free_claimed_lock"], (handler_lock_key(event.event_id), claim.token))
    _wake(tx, event.bus)
    return next(result for result in applied.state.results if result.handler_id == claim.handler_id)


def _known(tx: Transaction, id_: int) -> StoredEvent | None:
    """Return the event's state, also after its end: a repeated call gets the result of the first one."""
    stored = load(tx, id_)
    if stored is not None:
        return stored
    event = get_event(tx, id_)
    if event is None:
        return None
    return StoredEvent(EventState(event, None, load_handlers(tx, id_)), None, has_results=True)


def _complete_event(tx: Transaction, ref: ClaimRef, handler_ids: tuple[str, ...]) -> Settled | None:
    stored = load(tx, ref.id)
    if stored is not None and stored.state.settles(ref) and not handlers_done(stored.state, handler_ids):
        return None
    outcome = settle(tx, Complete(ref), [])
    if not isinstance(outcome, LeaseLost):
        return outcome
    if outcome.reason == NOT_DONE:
        return None
    raise outcome

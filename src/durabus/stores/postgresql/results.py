"""``durabus.store.results.Results``: handler results, and claims on single handlers."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

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
from durabus.lifecycle.state import NOT_DONE, NOT_YOURS, Applied, Refused
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
from durabus.stores.postgresql.connection import PostgreSQLSession
from durabus.stores.postgresql.core import PostgreSQLCore
from durabus.stores.postgresql.layout import columns, instant
from durabus.stores.postgresql.locks import grant, grant_all
from durabus.stores.postgresql.publishing import add_events, get_events, id_of
from durabus.stores.postgresql.settlements import Changes, load, load_known, load_one, settle_events
from durabus.stores.sql.changes import NO_EVENT, StoredEvent
from durabus.stores.sql.rows import Row, handler_of, handler_to


class PostgreSQLResults(PostgreSQLCore):
    """Implements ``store.results.Results`` on PostgreSQL."""

    async def list_results(self, ref: EventRef) -> list[HandlerResult]:
        async def read(session: PostgreSQLSession) -> list[HandlerResult]:
            id_ = await id_of(session, ref)
            if id_ is None or id_ not in await get_events(session, [id_]):
                return []
            found = [handler_of(row[1:]).result for row in await session.all("list_results", [id_])]
            return sorted(found, key=lambda result: result.handler_id)

        return await self._look(read)

    async def read_results(self, ids: Sequence[int]) -> list[tuple[HandlerResult, ...]]:
        wanted = [id_ for id_ in ids if 0 < id_ < 2**63]
        found: dict[int, list[HandlerResult]] = {}
        for id_, *fields in await self._ask("list_results", wanted):
            found.setdefault(id_, []).append(handler_of(fields).result)
        return [tuple(found.get(id_, ())) for id_ in ids]

    async def keep_results(self, kept: Sequence[Keep]) -> list[LeaseLost | None]:
        if not kept:
            self._check_open()
            return []
        rows = [
            (keep.ref.id, keep.ref.token, keep.ref.fence, *handler_to(keep.ref.id, handler)[1:10])
            for keep in kept
            for handler in merge_results((), keep.results)
        ]
        plain = len({keep.ref.id for keep in kept}) == len(kept) and all(keep.results for keep in kept)
        if (
            plain
            and all(isinstance(keep.ref, ClaimRef) for keep in kept)
            and all(row[-2:] == (None, None) for row in rows)
        ):
            if any(keep.children for keep in kept):
                return await self._write(lambda session: _keep_with_children(session, kept, rows))
            written = await self._ask("keep_results", *columns(rows))
            if _all_kept(kept, written):
                self._hints.tell(_offering(kept, written))
                return [None] * len(kept)
        return await self._write(lambda session: _keep(session, kept))

    async def claim_next_handler_result(self, request: HandlerClaimRequest) -> HandlerClaim | None:
        return await self._write(lambda session: _claim(session, request))

    async def renew_handler_claims(self, claims: Sequence[HandlerClaim], *, lease: float) -> list[float | LeaseLost]:
        if not claims:
            self._check_open()
            return []
        return await self._write(lambda session: _renew(session, claims, lease))

    async def claim_offered_handlers(self, request: OfferRequest) -> list[OfferedHandler]:
        serial, asked = request.mode is HandlerMode.SERIAL, list(request.handler_ids)
        clock = self._clock_argument()
        # Most calls find nothing: then this one statement, which locks nothing, is all.
        if not await self._ask("offered_events", request.bus, asked, request.token, request.limit, serial, clock):
            return []
        return await self._write(lambda session: _claim_offers(session, request))

    async def settle_handlers(self, settlements: Sequence[HandlerSettlement]) -> list[HandlerResult | LeaseLost]:
        if not settlements:
            self._check_open()
            return []
        return await self._write(lambda session: _settle(session, settlements))

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
        return await self._write(lambda session: _complete_event(session, ref, tuple(handler_ids)))

    async def cleanup_results(self, *, limit: int = 10_000) -> int:
        return len(await self._ask("cleanup_results", max(limit, 0)))


def _all_kept(kept: Sequence[Keep], rows: Sequence[Row]) -> bool:
    """Return whether the statement ``keep_results`` has written all results."""
    written = {row[0]: row[1] for row in rows}
    return all(written.get(keep.ref.id) == len(merge_results((), keep.results)) for keep in kept)


async def _keep_with_children(
    session: PostgreSQLSession, kept: Sequence[Keep], rows: Sequence[Row]
) -> list[LeaseLost | None]:
    """Write plain results with one statement, and the children with another."""
    written = await session.all("keep_results", *columns(rows))
    if not _all_kept(kept, written):
        return await _keep(session, kept)
    session.woken |= _offering(kept, written)
    await add_events(session, [child for keep in kept for child in keep.children])
    return [None] * len(kept)


async def _keep(session: PostgreSQLSession, kept: Sequence[Keep]) -> list[LeaseLost | None]:
    """Let the lifecycle decide: a claim is not current, or one of the handlers is claimed by itself."""
    states, changes = await load_known(session, [keep.ref.id for keep in kept]), Changes()
    outcomes: list[LeaseLost | None] = []
    for keep in kept:
        stored = states.get(keep.ref.id)
        applied = Refused(NO_EVENT) if stored is None else keep_results(stored.state, keep)
        if stored is None or isinstance(applied, Refused):
            outcomes.append(LeaseLost(keep.ref.id, applied.reason if isinstance(applied, Refused) else NOT_YOURS))
            continue
        states[keep.ref.id] = changes.apply(stored, applied)
        changes.free_handler_locks(stored.state, applied.state)
        changes.add_children(keep.children)
        if keep.is_news:
            session.woken.add(stored.state.event.bus)
        outcomes.append(None)
    await changes.write(session)
    return outcomes


def _offering(kept: Sequence[Keep], rows: Sequence[Row]) -> set[str]:
    """Return the buses of events whose handlers were offered."""
    buses = {row[0]: row[2] for row in rows}
    return {buses[keep.ref.id] for keep in kept if keep.is_news}


async def _claim(session: PostgreSQLSession, request: HandlerClaimRequest) -> HandlerClaim | None:
    stored = await load_one(session, request.event.id)
    now = await session.now()
    claimed = None if stored is None else claim_handler(stored.state, request, now, stored.lock_key)
    if stored is None or claimed is None:
        return None
    if request.mode is HandlerMode.SERIAL:
        key = handler_lock_key(stored.state.event.event_id)
        if await grant(session, key, worker_id=request.worker_id, token=request.token, lease=request.lease) is None:
            return None
        # taking the expired lock may have ended the claim of another handler
        stored = await load_one(session, request.event.id) or stored
        claimed = claim_handler(stored.state, request, now, stored.lock_key) or claimed
    after, claim = claimed
    changes = Changes()
    changes.apply(stored, Applied(after))
    await changes.write(session)
    return _as_stored(claim)


def _as_stored(claim: HandlerClaim) -> HandlerClaim:
    return replace(claim, expires_ts=instant(claim.expires_ts))


async def _claim_offers(session: PostgreSQLSession, request: OfferRequest) -> list[OfferedHandler]:
    """Claim offered handlers, with the same number of statements for any number of them."""
    held = await load(session, [row[0] for row in await session.all("events_of_handler_token", request.token)])
    found = [one for stored in held.values() for one in held_handlers(stored.state, request.token)]
    if found:
        return found
    serial, now, changes = request.mode is HandlerMode.SERIAL, await session.now(), Changes()
    rows = await session.all(
        "lock_offered_events", request.bus, list(request.handler_ids), max(request.limit, 0), serial, now
    )
    states = await load(session, sorted({row[0] for row in rows}))
    if serial:
        states = await _lock_handlers(session, request, states)
    for id_, stored in states.items():
        for wanted in offered_handlers(stored.state, request, now):
            if len(found) >= request.limit:
                break
            claimed = claim_handler(stored.state, wanted, now, stored.lock_key)
            if claimed is not None:
                stored = states[id_] = changes.apply(stored, Applied(claimed[0]))  # noqa: PLW2901  (the next claim sees it)
                found.append(OfferedHandler(stored.state.event, _as_stored(claimed[1])))
    await changes.write(session)
    return [replace(one, results=states[one.event.id].state.results) for one in found]


async def _lock_handlers(
    session: PostgreSQLSession, request: OfferRequest, states: dict[int, StoredEvent]
) -> dict[int, StoredEvent]:
    """Take the lock of the handlers of each event, and return the events whose lock was free, as they are now."""
    keys = {
        handler_lock_key(stored.state.event.event_id): id_
        for id_, stored in states.items()
        if offered_handlers(stored.state, request, await session.now())
    }
    granted = await grant_all(
        session, list(keys), worker_id=request.worker_id, token=request.token, lease=request.lease
    )
    # taking an expired lock may have ended the claim of another handler
    return await load(session, sorted(keys[key] for key in granted))


async def _renew(session: PostgreSQLSession, claims: Sequence[HandlerClaim], lease: float) -> list[float | LeaseLost]:
    states = await load(session, [claim.id for claim in claims])
    now, changes = await session.now(), Changes()
    expires = instant(now + lease)
    answer: list[float | LeaseLost] = []
    locks: list[tuple[str, str]] = []
    for claim in claims:
        stored = states.get(claim.id)
        applied = Refused(NOT_YOURS) if stored is None else renew_handler(stored.state, claim, lease, now)
        if stored is None or isinstance(applied, Refused):
            answer.append(LeaseLost(claim.id, NOT_YOURS))
            continue
        states[claim.id] = changes.apply(stored, applied)
        locks.append((handler_lock_key(stored.state.event.event_id), claim.token))
        answer.append(expires)
    await changes.write(session)
    if locks:
        await session.all("renew_claimed_locks", [key for key, _ in locks], [token for _, token in locks], expires)
    return answer


async def _settle(
    session: PostgreSQLSession, settlements: Sequence[HandlerSettlement]
) -> list[HandlerResult | LeaseLost]:
    """End handler claims, also of events that have ended: a repeated call gets the result of the first one."""
    states, changes = await load_known(session, [one.claim.id for one in settlements]), Changes()
    now = await session.now()
    outcomes: list[HandlerResult | LeaseLost] = []
    freed: list[tuple[str, str]] = []
    for one in settlements:
        claim, stored = one.claim, states.get(one.claim.id)
        applied = Refused(NO_EVENT) if stored is None else settle_handler(stored.state, one, now)
        if stored is None or isinstance(applied, Refused):
            outcomes.append(LeaseLost(claim.id, applied.reason if isinstance(applied, Refused) else NO_EVENT))
            continue
        after = states[claim.id] = changes.apply(stored, applied)
        outcomes.append(next(result for result in after.state.results if result.handler_id == claim.handler_id))
        freed.append((handler_lock_key(after.state.event.event_id), claim.token))
        session.woken.add(after.state.event.bus)
    await changes.write(session)
    if freed:
        await session.all("free_claimed_locks", [key for key, _ in freed], [token for _, token in freed])
    return outcomes


async def _complete_event(session: PostgreSQLSession, ref: ClaimRef, handler_ids: tuple[str, ...]) -> Settled | None:
    stored = await load_one(session, ref.id)
    if stored is not None and stored.state.settles(ref) and not handlers_done(stored.state, handler_ids):
        return None
    (outcome,) = await settle_events(session, [Complete(ref)])
    if not isinstance(outcome, LeaseLost):
        return outcome
    if outcome.reason == NOT_DONE:
        return None
    raise outcome

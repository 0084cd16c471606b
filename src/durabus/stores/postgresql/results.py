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
from durabus.stores.postgresql.connection import PostgreSQLSession
from durabus.stores.postgresql.core import PostgreSQLCore
from durabus.stores.postgresql.layout import columns, instant
from durabus.stores.postgresql.locks import grant
from durabus.stores.postgresql.publishing import id_of
from durabus.stores.postgresql.settlements import Changes, get_events, load, load_known, load_one, settle_events
from durabus.stores.sql.changes import NO_EVENT, StoredEvent
from durabus.stores.sql.rows import handler_of, handler_to


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

    async def keep_results(self, kept: Sequence[Keep]) -> list[LeaseLost | None]:
        if not kept:
            self._check_open()
            return []
        rows = [
            (keep.ref.id, keep.ref.token, keep.ref.fence, *handler_to(keep.ref.id, handler)[1:9])
            for keep in kept
            for handler in merge_results((), keep.results)
        ]
        if len({keep.ref.id for keep in kept}) == len(kept) and rows and all(row[-1] is None for row in rows):
            written = {row[0]: row[1] for row in await self._ask("keep_results", *columns(rows))}
            if all(written.get(keep.ref.id) == len(merge_results((), keep.results)) for keep in kept):
                return [None] * len(kept)
        return await self._write(lambda session: _keep(session, kept))

    async def claim_next_handler_result(self, request: HandlerClaimRequest) -> HandlerClaim | None:
        return await self._write(lambda session: _claim(session, request))

    async def renew_handler_claims(self, claims: Sequence[HandlerClaim], *, lease: float) -> list[float | LeaseLost]:
        if not claims:
            self._check_open()
            return []
        return await self._write(lambda session: _renew(session, claims, lease))

    async def release_handler_claim(self, claim: HandlerClaim) -> None:
        async def release(session: PostgreSQLSession) -> None:
            stored = await _known(session, claim)
            await _store(session, claim, stored, release_handler(stored.state, claim))

        await self._write(release)

    async def complete_handler_result(self, claim: HandlerClaim, outcome: HandlerResult) -> HandlerResult:
        async def complete(session: PostgreSQLSession) -> HandlerResult:
            stored = await _known(session, claim)
            after = await _store(session, claim, stored, complete_handler(stored.state, claim, outcome))
            return next(result for result in after.results if result.handler_id == claim.handler_id)

        return await self._write(complete)

    async def complete_event_if_done(self, ref: ClaimRef, handler_ids: Sequence[str]) -> Settled | None:
        return await self._write(lambda session: _complete_event(session, ref, tuple(handler_ids)))

    async def cleanup_results(self, *, limit: int = 10_000) -> int:
        return len(await self._ask("cleanup_results", max(limit, 0)))


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
        outcomes.append(None)
    await changes.write(session)
    return outcomes


async def _claim(session: PostgreSQLSession, request: HandlerClaimRequest) -> HandlerClaim | None:
    stored = await load_one(session, request.event.id)
    now = await session.now()
    claimed = None if stored is None else claim_handler(stored.state, request, now)
    if stored is None or claimed is None:
        return None
    if request.mode is HandlerMode.SERIAL:
        key = handler_lock_key(stored.state.event.event_id)
        if await grant(session, key, worker_id=request.worker_id, token=request.token, lease=request.lease) is None:
            return None
        # taking the expired lock may have ended the claim of another handler
        stored = await load_one(session, request.event.id) or stored
        claimed = claim_handler(stored.state, request, now) or claimed
    after, claim = claimed
    await _note(session, stored, after)
    return HandlerClaim(
        id=claim.id,
        handler_id=claim.handler_id,
        token=claim.token,
        fence=claim.fence,
        attempts=claim.attempts,
        expires_ts=instant(claim.expires_ts),
    )


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


async def _known(session: PostgreSQLSession, claim: HandlerClaim) -> StoredEvent:
    """Return the event's state, also after its end: a repeated call gets the result of the first one."""
    stored = (await load_known(session, [claim.id])).get(claim.id)
    if stored is None:
        raise LeaseLost(claim.id, NO_EVENT)
    return stored


async def _store(
    session: PostgreSQLSession, claim: HandlerClaim, stored: StoredEvent, applied: Applied | Refused
) -> EventState:
    if isinstance(applied, Refused):
        raise LeaseLost(claim.id, applied.reason)
    await _note(session, stored, applied.state)
    key = handler_lock_key(applied.state.event.event_id)
    await session.all("free_claimed_locks", [key], [claim.token])
    return applied.state


async def _note(session: PostgreSQLSession, stored: StoredEvent, after: EventState) -> None:
    changes = Changes()
    changes.apply(stored, Applied(after))
    await changes.write(session)


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

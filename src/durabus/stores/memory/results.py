"""``durabus.store.results.Results`` and ``durabus.store.locks.Locks``: handler results, handler claims and locks."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from durabus.errors import LeaseLost
from durabus.lifecycle.handlers import (
    claim_handler,
    claim_lock,
    handlers_done,
    held_handlers,
    keep_results,
    offered_handlers,
    release_lock,
    renew_handler,
    renew_lock,
    settle_handler,
)
from durabus.lifecycle.state import NOT_DONE, NOT_YOURS, LockState, Refused
from durabus.lifecycle.transition import transition
from durabus.model.claim import (
    ClaimRef,
    HandlerClaim,
    HandlerClaimRequest,
    LockClaim,
    OfferedHandler,
    OfferRequest,
    handler_lock_key,
)
from durabus.model.limits import check_name
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, HandlerSettlement, Keep, Settled
from durabus.model.statuses import HISTORY, HandlerMode
from durabus.store.events import EventRef
from durabus.stores.memory.core import MemoryPublishing, lock_claim


class MemoryLocks(MemoryPublishing):
    """Implements ``store.locks.Locks`` in memory."""

    async def claim_lock(self, key: str, *, worker_id: str, token: str, lease: float) -> LockClaim | None:
        check_name(key, "lock key")
        with self._lock:
            self._check_open()
            now = self._clock.now()
            lock = self._grant(key, worker_id, token, lease, now)
            if lock is None:
                return None
            self._saw_process(token, now)
            return lock_claim(lock, token)

    async def renew_lock(self, claim: LockClaim, *, lease: float) -> LockClaim:
        with self._lock:
            self._check_open()
            lock = renew_lock(self._locks.get(claim.key), claim, lease, self._clock.now())
            if isinstance(lock, Refused):
                raise LeaseLost(claim.key, lock.reason)
            self._locks[claim.key] = lock
            return lock_claim(lock, claim.token)

    async def release_lock(self, claim: LockClaim) -> None:
        with self._lock:
            self._check_open()
            lock = release_lock(self._locks.get(claim.key), claim)
            if isinstance(lock, Refused):
                raise LeaseLost(claim.key, lock.reason)
            self._locks[claim.key] = lock

    async def list_locks(self, *, after: str = "", limit: int = 100) -> list[LockClaim]:
        with self._lock:
            self._check_open()
            now = self._clock.now()
            held = (lock for lock in self._locks.values() if lock.token is not None and lock.expires_ts > now)
            ordered = sorted((lock for lock in held if lock.key > after), key=lambda lock: lock.key)
            return [lock_claim(lock, "") for lock in ordered[:limit]]

    def _grant(self, key: str, worker_id: str, token: str, lease: float, now: float) -> LockState | None:
        self._last_fence += 1
        fence = self._last_fence
        lock = claim_lock(
            self._locks.get(key), key=key, worker_id=worker_id, token=token, lease=lease, fence=fence, now=now
        )
        if isinstance(lock, Refused):
            return None
        self._take_lock(lock, now)
        return lock


class MemoryResults(MemoryLocks):
    """Implements ``store.results.Results`` in memory."""

    async def list_results(self, ref: EventRef) -> list[HandlerResult]:
        with self._lock:
            self._check_open()
            state = self._state(ref)
            return [] if state is None else sorted(state.results, key=lambda result: result.handler_id)

    async def keep_results(self, kept: Sequence[Keep]) -> list[LeaseLost | None]:
        with self._lock:
            self._check_open()
            outcomes = [self._keep(one) for one in kept]
            stored = [one for one, outcome in zip(kept, outcomes, strict=True) if outcome is None]
            self._add_children(stored, self._clock.now())
            return outcomes

    async def read_results(self, ids: Sequence[int]) -> list[tuple[HandlerResult, ...]]:
        with self._lock:
            self._check_open()
            return [() if (state := self._states.get(id_)) is None else state.results for id_ in ids]

    async def claim_next_handler_result(self, request: HandlerClaimRequest) -> HandlerClaim | None:
        with self._lock:
            self._check_open()
            return self._claim_handler(request, self._clock.now())

    async def claim_offered_handlers(self, request: OfferRequest) -> list[OfferedHandler]:
        with self._lock:
            self._check_open()
            return self._held_offers(request) or self._claim_offers(request, self._clock.now())

    async def renew_handler_claims(self, claims: Sequence[HandlerClaim], *, lease: float) -> list[float | LeaseLost]:
        with self._lock:
            self._check_open()
            now = self._clock.now()
            return [self._renew_handler(claim, lease, now) for claim in claims]

    async def settle_handlers(self, settlements: Sequence[HandlerSettlement]) -> list[HandlerResult | LeaseLost]:
        with self._lock:
            self._check_open()
            now = self._clock.now()
            return [self._settle_handler(settlement, now) for settlement in settlements]

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
        with self._lock:
            self._check_open()
            now, state = self._clock.now(), self._states.get(ref.id)
            if state is None:
                raise LeaseLost(ref.id, "no such event")
            if state.settles(ref) and not handlers_done(state, tuple(handler_ids)):
                return None
            applied = transition(state, Complete(ref), now)
            if isinstance(applied, Refused):
                if applied.reason == NOT_DONE:
                    return None
                raise LeaseLost(ref.id, applied.reason)
            self._apply(state, applied, now)
            return applied.state.settled.outcome if applied.state.settled else None

    async def cleanup_results(self, *, limit: int = 10_000) -> int:
        with self._lock:
            self._check_open()
            removed = 0
            for id_, state in self._states.items():
                if state.handlers and state.event.status in HISTORY and removed < limit:
                    kept = state.handlers[limit - removed :]
                    removed += len(state.handlers) - len(kept)
                    self._states[id_] = replace(state, handlers=kept)
            return removed

    def _keep(self, keep: Keep) -> LeaseLost | None:
        state = self._states.get(keep.ref.id)
        applied = Refused("no such event") if state is None else keep_results(state, keep)
        if state is None or isinstance(applied, Refused):
            return LeaseLost(keep.ref.id, applied.reason if isinstance(applied, Refused) else NOT_YOURS)
        self._states[keep.ref.id] = applied.state
        self._waits.note(applied.state)
        self._free_handler_locks(state, applied.state)
        if keep.is_news:
            self._offers.note(applied.state)
            self._waiting.wake(applied.state.event.bus)
        return None

    def _renew_handler(self, claim: HandlerClaim, lease: float, now: float) -> float | LeaseLost:
        state = self._states.get(claim.id)
        applied = Refused(NOT_YOURS) if state is None else renew_handler(state, claim, lease, now)
        if isinstance(applied, Refused):
            return LeaseLost(claim.id, applied.reason)
        self._states[claim.id] = applied.state
        lock = self._locks.get(handler_lock_key(applied.state.event.event_id))
        if lock is not None and lock.token == claim.token:
            renewed = renew_lock(lock, lock_claim(lock, claim.token), lease, now)
            if not isinstance(renewed, Refused):
                self._locks[lock.key] = renewed
        return now + lease

    def _claim_handler(self, request: HandlerClaimRequest, now: float) -> HandlerClaim | None:
        state = self._states.get(request.event.id)
        lock_key = None if state is None or state.token is None else self._lock_of(state.token)
        claimed = None if state is None else claim_handler(state, request, now, lock_key)
        if state is None or claimed is None:
            return None
        after, claim = claimed
        if request.mode is HandlerMode.SERIAL:
            key = handler_lock_key(state.event.event_id)
            if self._grant(key, request.worker_id, request.token, request.lease, now) is None:
                return None
            after, claim = claim_handler(self._states[state.event.id], request, now, lock_key) or claimed
        self._states[state.event.id] = after
        self._offers.note(after)
        self._saw_process(request.token, now)
        return claim

    def _lock_of(self, token: str) -> str | None:
        """Return the key of the lock that a claim on events holds."""
        lock = self._event_locks.get(token)
        return None if lock is None else lock.key

    def _held_offers(self, request: OfferRequest) -> list[OfferedHandler]:
        """Return what the token holds: the request was answered before."""
        states = [self._states[id_] for id_ in self._offers.of(request.bus)]
        return [held for state in states for held in held_handlers(state, request.token)]

    def _claim_offers(self, request: OfferRequest, now: float) -> list[OfferedHandler]:
        found: list[OfferedHandler] = []
        for id_ in self._offers.of(request.bus):
            wanted = offered_handlers(self._states[id_], request, now)[: max(request.limit - len(found), 0)]
            claims = [claim for claim in (self._claim_handler(one, now) for one in wanted) if claim is not None]
            state = self._states[id_]
            found += [OfferedHandler(state.event, claim, state.results) for claim in claims]
        return found

    def _settle_handler(self, settlement: HandlerSettlement, now: float) -> HandlerResult | LeaseLost:
        claim = settlement.claim
        state = self._states.get(claim.id)
        applied = Refused("no such event") if state is None else settle_handler(state, settlement, now)
        if isinstance(applied, Refused):
            return LeaseLost(claim.id, applied.reason)
        after = self._states[claim.id] = applied.state
        lock = self._locks.get(handler_lock_key(after.event.event_id))
        if lock is not None and lock.token == claim.token:
            self._free(lock_claim(lock, claim.token))
        self._offers.note(after)
        self._waiting.wake(after.event.bus)
        return next(result for result in after.results if result.handler_id == claim.handler_id)

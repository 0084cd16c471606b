"""``durabus.store.claims.Claims``: claims, renews, settles, expires, resets and cancels events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from msgspec.structs import replace

from durabus.errors import ConfigurationError, LeaseLost
from durabus.lifecycle.handlers import claim_lock, renew_lock, void_handlers_under
from durabus.lifecycle.state import (
    Applied,
    EventCommand,
    EventState,
    Grant,
    LockState,
    Refused,
    Renew,
    Reset,
    Revoke,
    Start,
)
from durabus.lifecycle.transition import transition
from durabus.model.claim import Claim, ClaimRef, ClaimRequest, event_lock_key
from durabus.model.event import Event
from durabus.model.limits import stored_text
from durabus.model.settlement import Release, Settled, Settlement
from durabus.store.claims import SettleAnswer
from durabus.store.events import EventRef
from durabus.store.features import require
from durabus.stores.memory.bus_queue import BusQueue
from durabus.stores.memory.core import MemoryPublishing, lock_claim


class MemoryClaims(MemoryPublishing):
    """Implements ``store.claims.Claims`` in memory."""

    async def claim_next_events(self, request: ClaimRequest) -> list[Claim]:
        with self._lock:
            self._check_open()
            return self._claim(request, self._clock.now())

    async def start_events(self, refs: Sequence[ClaimRef]) -> list[Event | LeaseLost]:
        with self._lock:
            self._check_open()
            now = self._clock.now()
            return [
                done if isinstance(done, LeaseLost) else done.state.event
                for done in (self._command(ref, Start(ref), now) for ref in refs)
            ]

    async def renew_event_claims(self, refs: Sequence[ClaimRef], *, lease: float) -> list[float | LeaseLost]:
        with self._lock:
            self._check_open()
            now = self._clock.now()
            return [self._renew(ref, lease, now) for ref in refs]

    async def settle_events(
        self,
        settlements: Sequence[Settlement],
        *,
        then_claim: ClaimRequest | None = None,
        connection: object | None = None,
        with_entries: bool = False,
    ) -> SettleAnswer:
        if connection is not None:
            require(self.features, "caller_transactions", "settle_events(connection=…)")
        with self._lock:
            self._check_open()
            now = self._clock.now()
            applied: list[Settlement] = []
            outcomes = [self._settle(one, now, applied, with_entry=with_entries) for one in settlements]
            self._add_children(applied, now)
            return SettleAnswer(outcomes, [] if then_claim is None else self._claim(then_claim, now))

    async def current_claims(self, ids: Sequence[int]) -> list[ClaimRef | None]:
        with self._lock:
            self._check_open()
            return [self._current_claim(id_) for id_ in ids]

    async def expire_events(self, *, max_attempts: int | None = None, limit: int = 1000) -> int:
        with self._lock:
            self._check_open()
            now, taken = self._clock.now(), 0
            for _, queue in sorted(self._bus_queues.items()):
                if taken < limit:
                    taken += self._expire(queue, max_attempts, now, limit - taken)
            return taken

    async def reset_event(self, ref: EventRef, *, reason: str) -> Event:
        with self._lock:
            self._check_open()
            now, state = self._clock.now(), self._known(ref)
            applied = transition(state, Reset(stored_text(reason)), now)
            if isinstance(applied, Refused):
                return state.event
            self._apply(state, applied, now)
            return applied.state.event

    async def cancel_event(self, ref: EventRef, *, reason: str) -> Event:
        with self._lock:
            self._check_open()
            return self._revoke(self._known(ref), Revoke(stored_text(reason)), self._clock.now())

    async def cancel_events(self, refs: Sequence[EventRef], *, reason: str) -> list[Event | None]:
        with self._lock:
            self._check_open()
            now, revoke = self._clock.now(), Revoke(stored_text(reason))
            found = (self._state(ref) for ref in refs)
            return [None if state is None else self._revoke(state, revoke, now) for state in found]

    def _revoke(self, state: EventState, revoke: Revoke, now: float) -> Event:
        applied = transition(state, revoke, now)
        if isinstance(applied, Refused):
            return state.event
        self._apply(state, applied, now)
        self._free_handler_locks(state, applied.state)
        return applied.state.event

    def _current_claim(self, id_: int) -> ClaimRef | None:
        state = self._states.get(id_)
        if state is None:
            return None
        token = state.token if state.abandoned is None else state.abandoned.token
        return None if token is None else ClaimRef(id_, token, state.event.fence)

    def _claim(self, request: ClaimRequest, now: float) -> list[Claim]:
        held = self._held.get(request.token)
        if held:
            self._saw_process(request.token, now)
            return [self._claim_value(id_) for id_ in held]
        queue = self._bus_queue(request.bus)
        self._expire(queue, request.max_attempts, now)
        key = event_lock_key(request.mode, request.bus)
        if key is not None and (
            isinstance(self._try_lock(key, request, now), Refused) or self._offers.runs_under(key, now)
        ):
            return []
        grant = Grant(request.worker_id, request.token, request.lease, request.max_attempts)
        claims: list[Claim] = []
        revision = self._revisions.get(request.bus, "")
        candidates = list(self._candidates(queue, request, now, request.limit))
        if key is not None and candidates:
            self._take_event_lock(key, request, now)
        for id_ in candidates:
            state = self._states[id_]
            applied = transition(state, grant, now)
            if isinstance(applied, Applied):
                self._apply(state, applied, now)
                results = state.results if state.handlers else ()
                claims.append(Claim(applied.state.event, request.token, results, revision))
        if claims:
            self._saw_process(request.token, now)
        return claims

    def _candidates(self, queue: BusQueue, request: ClaimRequest, now: float, limit: int) -> Iterator[int]:
        if request.event_id is not None:
            state = self._state(request.event_id)
            if state is not None and state.event.bus == request.bus and queue.may_claim(state.event, now):
                yield state.event.id
            return
        if not request.tags:
            yield from islice(queue.eligible(now), limit)
            return
        wanted, passed_over, found = frozenset(request.tags), [], 0
        for id_ in queue.eligible(now):
            event = self._states[id_].event
            if wanted.isdisjoint(event.tags):
                passed_over.append(event)
                continue
            yield id_
            found += 1
            if found == limit:
                break
        for event in passed_over:
            queue.pending(event, now)

    def _claim_value(self, id_: int) -> Claim:
        state = self._states[id_]
        return Claim(state.event, state.token or "", state.results, self._revisions.get(state.event.bus, ""))

    def _try_lock(self, key: str, request: ClaimRequest, now: float) -> LockState | Refused:
        return claim_lock(
            self._locks.get(key),
            key=key,
            worker_id=request.worker_id,
            token=request.token,
            lease=request.lease,
            fence=self._last_fence + 1,
            now=now,
        )

    def _take_event_lock(self, key: str, request: ClaimRequest, now: float) -> None:
        lock = self._try_lock(key, request, now)
        if not isinstance(lock, Refused):
            self._last_fence = max(self._last_fence, lock.fence)
            self._take_lock(lock, now, request.max_attempts)
            for state in self._offers.all():
                self._states[state.event.id] = void_handlers_under(state, key, now)
            self._event_locks[request.token] = lock_claim(lock, request.token)

    def _command(self, ref: ClaimRef, command: EventCommand, now: float) -> Applied | LeaseLost:
        state = self._states.get(ref.id)
        applied = Refused("no such event") if state is None else transition(state, command, now)
        if isinstance(applied, Refused):
            return LeaseLost(ref.id, applied.reason)
        self._apply(state, applied, now)
        return applied

    def _renew(self, ref: ClaimRef, lease: float, now: float) -> float | LeaseLost:
        done = self._command(ref, Renew(ref, lease), now)
        if isinstance(done, LeaseLost):
            return done
        event = done.state.event
        self._bus_queue(event.bus).leased(event)
        claimed = self._event_locks.get(ref.token)
        if claimed is not None:
            lock = self._locks.get(claimed.key)
            renewed = renew_lock(lock, claimed, lease, now)
            # The lease of another event of the token may end later.
            if lock is not None and not isinstance(renewed, Refused) and renewed.expires_ts > lock.expires_ts:
                self._locks[lock.key] = renewed
                self._event_locks[ref.token] = replace(claimed, expires_ts=renewed.expires_ts)
        return now + lease

    def _settle(
        self, settlement: Settlement, now: float, applied: list[Settlement], *, with_entry: bool = False
    ) -> Settled | LeaseLost:
        """End a claim, and note in ``applied`` a settlement that took effect and has to do with children."""
        before = self._states.get(settlement.ref.id)
        if settlement.results:
            settlement = self._waits.with_stored(settlement)
        done = self._command(settlement.ref, settlement, now)
        if isinstance(done, LeaseLost):
            return done
        if settlement.results:
            self._waits.note(done.state)
        if before is not None and before.handlers:
            self._free_handler_locks(before, done.state)
        if done.records and (settlement.children or (isinstance(settlement, Release) and settlement.until_children)):
            applied.append(settlement)
        if settlement.results:
            self._offers.note(done.state)
        settled = done.state.settled
        if settled is None:
            raise ConfigurationError("the lifecycle returned no outcome for a settlement: a bug, report it")
        if with_entry and done.records:
            # Built from the record: a full history may have forgotten the event and its entries already.
            return replace(settled.outcome, entry=done.records[-1].entry(self._log.last_given))
        return settled.outcome

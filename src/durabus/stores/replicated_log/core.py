"""The memory store of a replica: fast paths for batches, and its whole state as tables for snapshots.

A busy log consists mostly of plain claims and completions. The fast paths do what ``lifecycle.transition`` does, for a
whole batch in one loop, because a batch has one time, one bus and one token. All other commands use ``transition``. The
differential tests compare both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from durabus.clock import Clock
from durabus.errors import LeaseLost
from durabus.lifecycle.handlers import held_handlers, offered_handlers
from durabus.lifecycle.state import EventState, LockState, Record, SettledClaim
from durabus.model.claim import Claim, ClaimRef, ClaimRequest, LockClaim, OfferRequest
from durabus.model.event import Event, NewEvent
from durabus.model.handler import BusInfo, HandlerInfo
from durabus.model.settlement import Complete, Keep, Settled, Settlement
from durabus.model.statuses import LIVE, Action, EventMode, EventStatus
from durabus.store.claims import SettleAnswer
from durabus.stores.memory.bus_queue import BusQueue
from durabus.stores.memory.core import Registration
from durabus.stores.memory.store import MemoryStore
from durabus.stores.replicated_log.wire import PackedCompletions, PackedSettlement
from durabus.stores.wakeups import ENDS


class BulkCore(MemoryStore):
    """A memory store with fast paths. ``settle`` takes settlements as the log holds them."""

    def settle(
        self, sent: Sequence[PackedSettlement], then_claim: ClaimRequest | None, *, with_entries: bool = False
    ) -> SettleAnswer:
        """Do what ``settle_events`` does."""
        with self._lock:
            self._check_open()
            now = self._clock.now()
            outcomes: list[Settled | LeaseLost] = []
            applied: list[Settlement] = []
            for one in sent:
                if isinstance(one, PackedCompletions) and not with_entries:
                    outcomes += self._complete_all(one, now)
                else:
                    outcomes += [
                        self._settle(made, now, applied, with_entry=with_entries) for made in one.settlements()
                    ]
            self._add_children(applied, now)
            return SettleAnswer(outcomes, [] if then_claim is None else self._claim(then_claim, now))

    def _complete_all(self, done: PackedCompletions, now: float) -> list[Settled | LeaseLost]:
        token, fence, states = done.token, done.fence, self._states
        most = self._max_history + self._max_history // 5
        outcomes: list[Settled | LeaseLost] = []
        records: list[Record] = []
        bus = queue = None
        for id_, milliseconds, handler_id in done.items:
            state = states.get(id_)
            if state is None or not _plainly_held(state, token, fence) or token in self._event_locks:
                self._log.append(records)
                records = []
                one = Complete(ClaimRef(id_, token, fence), (), (), milliseconds, handler_id=handler_id)
                outcomes.append(self._settle(one, now, []))
                continue
            event = replace(state.event, status=EventStatus.COMPLETED, updated_ts=now, expires_ts=None)
            outcome = Settled(id_, EventStatus.COMPLETED)
            states[id_] = EventState(event, None, (), SettledClaim(token, fence, Action.COMPLETED, outcome))
            records.append(
                Record(Action.COMPLETED, event, now, event.worker_id, None, milliseconds, handler_id=handler_id)
            )
            outcomes.append(outcome)
            self._let_go(id_, token)
            if queue is None or event.bus != bus:
                bus, queue = event.bus, self._bus_queue(event.bus)
            queue.left(event)
            queue.history[id_] = None
            if len(queue.history) > most:
                self._log.append(records)
                records = []
                self._forget_excess(queue, self._max_history)
        self._log.append(records)
        if ENDS in self._waiting:
            self._waiting.wake(ENDS)
        return outcomes

    def _claim(self, request: ClaimRequest, now: float) -> list[Claim]:
        token, states = request.token, self._states
        plain = request.mode is EventMode.PARALLEL and not request.tags and request.event_id is None
        if not plain or token in self._held:
            return super()._claim(request, now)
        queue = self._bus_queue(request.bus)
        self._expire(queue, request.max_attempts, now)
        worker_id, expires_ts = request.worker_id, now + request.lease
        revision = self._revisions.get(request.bus, "")
        claims: list[Claim] = []
        records: list[Record] = []
        for id_ in list(islice(queue.eligible(now), request.limit)):
            before = states[id_]
            event = before.event
            event = replace(
                event,
                status=EventStatus.PROCESSING,
                attempts=event.attempts + 1,
                fence=event.fence + 1,
                worker_id=worker_id,
                updated_ts=now,
                picked_ts=now,
                started_ts=None,
                expires_ts=expires_ts,
            )
            states[id_] = EventState(event, token, before.handlers, before.settled)
            records.append(Record(Action.PICKED, event, now, worker_id))
            queue.leased(event)
            claims.append(Claim(event, token, before.results, revision))
        if claims:
            self._log.append(records)
            self._held[token] = {claim.event.id: None for claim in claims}
            self._saw_process(token, now)
        return claims


def _plainly_held(state: EventState, token: str, fence: int) -> bool:
    """Return whether the claim is current, the event has no stored handler results, and it is no child."""
    event = state.event
    return (
        state.token == token
        and event.fence == fence
        and event.status is EventStatus.PROCESSING
        and not state.handlers
        and event.parent_id is None
    )


class CoreTables(NamedTuple):
    """The whole state of a replica, in lists that do not change any more."""

    next_id: int
    last_fence: int
    last_revision: int
    last_number: int
    states: list[EventState]
    held: list[tuple[str, list[int]]]
    locks: list[LockState]
    event_locks: list[tuple[str, LockClaim]]
    log: list[tuple[int, Record]]
    positions: dict[str, str]
    buses: list[tuple[BusInfo, str | None]]
    handlers: list[tuple[str, HandlerInfo, float | None]]
    processes: dict[str, float]
    max_history: int
    unpublished: list[NewEvent]


class ReplicatedLogCore(BulkCore):
    """The store of a replica. Besides the contract it has checks that save writing a record to the log."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.unpublished: dict[str, NewEvent] = {}
        """The children that a settlement stored, by ``event_id``, until their public records arrive."""

    def _add_children(self, parents: Sequence[Settlement | Keep], now: float) -> None:
        children = (child for one in parents for child in one.children)
        self.unpublished.update((one.event_id, one) for one in children if self._stored_id(one) is None)
        super()._add_children(parents, now)

    def without_ended(self, new: Sequence[NewEvent]) -> list[NewEvent]:
        """Leave out children whose public records arrive after they have ended and were deleted: they are not new."""
        return [one for one in new if one.event_id not in self.unpublished or self._stored_id(one) is not None]

    def not_published(
        self, parents: Sequence[Settlement | Keep], outcomes: Sequence[Settled | LeaseLost | None]
    ) -> list[NewEvent]:
        """Return those of the children that are stored and not on the public lane yet."""
        pairs = zip(parents, outcomes, strict=True)
        children = [child for one, outcome in pairs if not isinstance(outcome, LeaseLost) for child in one.children]
        with self._lock:
            return [one for one in children if one.event_id in self.unpublished]

    def tables(self) -> CoreTables:
        """Return a copy of the state. It shares the rows, which never change."""
        with self._lock:
            log, last_number = self._log.numbered()
            return CoreTables(
                next_id=self._next_id,
                last_fence=self._last_fence,
                last_revision=self._last_revision,
                last_number=last_number,
                states=list(self._states.values()),
                held=[(token, list(ids)) for token, ids in self._held.items()],
                locks=list(self._locks.values()),
                event_locks=list(self._event_locks.items()),
                log=log,
                positions=dict(self._positions),
                buses=[(info, self._revisions.get(bus)) for bus, info in self._buses.items()],
                handlers=[
                    (bus, one.info, one.kept_until) for bus, known in self._handlers.items() for one in known.values()
                ],
                processes=dict(self._processes),
                max_history=self._max_history,
                unpublished=list(self.unpublished.values()),
            )

    def restore(self, tables: CoreTables, *, now: float) -> None:
        """Take over the state in ``tables`` at the log's time ``now``."""
        with self._lock:
            self._next_id, self._last_fence = tables.next_id, tables.last_fence
            self._last_revision, self._max_history = tables.last_revision, tables.max_history
            self._locks = {lock.key: lock for lock in tables.locks}
            self._event_locks = dict(tables.event_locks)
            self._held = {token: dict.fromkeys(ids) for token, ids in tables.held}
            self._positions = dict(tables.positions)
            self._processes = dict(tables.processes)
            self.unpublished = {one.event_id: one for one in tables.unpublished}
            self._log.restore(tables.log, tables.last_number)
            self._put_back(tables.states, now)
            for info, revision in tables.buses:
                self._buses[info.bus] = info
                if revision is not None:
                    self._revisions[info.bus] = revision
            for bus, handler, kept_until in tables.handlers:
                known = self._handlers.setdefault(bus, {})
                known[handler.handler_id, handler.node] = Registration(handler, kept_until)

    def _put_back(self, states: list[EventState], now: float) -> None:
        """Add the events of a snapshot. There may be millions of them, most of them PENDING on a few buses."""
        known, ids, queue, bus = self._states, self._ids, BusQueue({}), None
        for state in states:
            event = state.event
            id_, status = event.id, event.status
            known[id_] = state
            ids[event.event_id] = id_
            if event.idempotency_key is not None:
                self._keys[event.bus, event.idempotency_key] = id_
            self._offers.note(state)
            if event.bus != bus:
                bus = event.bus
                queue = self._bus_queue(bus)
            if event.parent_id is not None and status in LIVE:
                self._live_children.setdefault(event.parent_id, set()).add(id_)
            if state.handlers:
                self._waits.note(state)
            if status is EventStatus.PENDING:
                queue.pending(event, now)
            elif status is EventStatus.PROCESSING:
                queue.live.add(id_)
                queue.leased(event)
            elif status is EventStatus.COMPLETED:
                queue.history[id_] = None
            elif status is EventStatus.CANCELLED:
                queue.history[id_] = None
                queue.cancelled.add(id_)
            else:
                self._dead[id_] = None

    def _forget_excess(self, queue: BusQueue, keep: int, limit: int | None = None, node: str | None = None) -> int:
        """Keep events whose entries a reader with a saved position has not read, unless a call asks to delete them.

        All replicas must delete the same events, so only the state decides when to look again: after each fifth of
        ``keep``.
        """
        if limit is not None or not self._positions:
            return super()._forget_excess(queue, keep, limit, node)
        if (len(queue.history) - keep - 1) % max(keep // 5, 1):
            return 0
        read = min(int(position) if position.isdigit() else 0 for position in self._positions.values())
        unread = {record.event.id for number, record in self._log.numbered()[0] if number > read}
        excess = [id_ for id_ in sorted(queue.history)[: max(len(queue.history) - keep, 0)] if id_ not in unread]
        self._forget_history(queue, excess)
        return len(excess)

    def knows_any(self, new: Sequence[NewEvent]) -> bool:
        """Return whether one of these events is stored already."""
        with self._lock:
            return any(self._stored_id(one) is not None for one in new)

    def stored(self, new: Sequence[NewEvent]) -> list[Event] | None:
        """Return the stored events for these, if all of them are stored already."""
        with self._lock:
            ids = [self._stored_id(one) for one in new]
            found = [self._states[id_].event for id_ in ids if id_ is not None]
            return found if len(found) == len(new) else None

    def nothing_to_claim(self, request: ClaimRequest) -> bool:
        """Return whether a claim now would find no event, take back none, and is not a repeat."""
        with self._lock:
            if request.token in self._held:
                return False
            queue = self._bus_queues.get(request.bus)
            instant = None if queue is None else queue.next_instant()
            return instant is None or instant > self._clock.now()

    def nothing_offered(self, request: OfferRequest) -> bool:
        """Return whether a claim of offered handlers would find none, and is not a repeat."""
        with self._lock:
            now, states = self._clock.now(), [self._states[id_] for id_ in self._offers.of(request.bus)]
            return not any(
                held_handlers(state, request.token) or offered_handlers(state, request, now) for state in states
            )

    def nothing_expired(self) -> bool:
        """Return whether no lease is over."""
        with self._lock:
            now = self._clock.now()
            held = (self._states[id_].event.expires_ts for ids in self._held.values() for id_ in ids)
            return all(expires_ts is None or expires_ts > now for expires_ts in held)

    @property
    def size(self) -> int:
        """The number of events in the store."""
        return len(self._states)

    def wake_all(self) -> None:
        """End every wait for work."""
        self._waiting.wake(None)

    def _stored_id(self, new: NewEvent) -> int | None:
        id_ = self._ids.get(new.event_id)
        if id_ is None and new.idempotency_key is not None:
            id_ = self._keys.get((new.bus, new.idempotency_key))
        return id_

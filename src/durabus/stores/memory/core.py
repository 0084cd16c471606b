"""The state of the memory store, and the only code that applies transitions to it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, takewhile
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from durabus.clock import Clock, SystemClock
from durabus.errors import ConfigurationError, EventNotFound, StoreClosedError
from durabus.lifecycle.handlers import ended_handler_claims, release_lock, void_handler
from durabus.lifecycle.state import Applied, EventState, Expire, LockState, Refused
from durabus.lifecycle.transition import children_ended, publish, transition
from durabus.model.claim import MARK, LockClaim, handler_lock_key, incarnation_of
from durabus.model.event import Event, NewEvent, may_be_unread
from durabus.model.handler import BusInfo, HandlerInfo
from durabus.model.settlement import Keep, Release, Settlement
from durabus.model.statuses import DEAD_LETTER, EventStatus
from durabus.store.events import EventRef
from durabus.store.features import Features
from durabus.store.log import ARCHIVE
from durabus.store.processes import PRESENT_FOR
from durabus.stores.memory.bus_queue import BusQueue, Offers
from durabus.stores.memory.log import MemoryLog
from durabus.stores.memory.waits import WaitIndex
from durabus.stores.wakeups import ENDS, WaitingWorkers

DEFAULT_HISTORY = 10_000

FEATURES = Features(
    scheme="memory",
    survives_process_kill=False,
    survives_power_loss=False,
    shared_between_processes=False,
    caller_transactions=False,
    manual_clock=True,
    ordering_keys=True,
    claims_by_event_id=True,
    calls_in_order=True,
)


class Registration(NamedTuple):
    """A handler of a node, and when its registration expires."""

    info: HandlerInfo
    kept_until: float | None

    def lives(self, now: float) -> bool:
        """Return whether the registration has not expired."""
        return self.kept_until is None or self.kept_until > now


class MemoryCore:
    """All state behind one lock. Every public call takes the lock once and never awaits while it holds it."""

    features = FEATURES

    def __init__(self, clock: Clock | None = None, *, max_history: int = DEFAULT_HISTORY) -> None:
        self._clock = clock or SystemClock()
        self._max_history = max_history
        self._lock = threading.RLock()
        self._closed = False
        self._next_id = 1
        self._last_fence = 0
        self._states: dict[int, EventState] = {}
        self._ids: dict[str, int] = {}
        self._keys: dict[tuple[str, str], int] = {}
        self._bus_queues: dict[str, BusQueue] = {}
        self._dead: dict[int, None] = {}
        self._live_children: dict[str, set[int]] = {}
        """The ids of the live children of each event, by the ``event_id`` of the parent."""
        self._held: dict[str, dict[int, None]] = {}
        self._offers = Offers(self._states)
        self._locks: dict[str, LockState] = {}
        self._event_locks: dict[str, LockClaim] = {}
        """The lock that a token claimed together with its events."""
        self._log = MemoryLog()
        self._positions: dict[str, str] = {}
        self._buses: dict[str, BusInfo] = {}
        self._handlers: dict[str, dict[tuple[str, str], Registration]] = {}
        self._revisions: dict[str, str] = {}
        self._last_revision = 0
        self._processes: dict[str, float] = {}
        """When each process last claimed something or showed its presence, by its incarnation."""
        self._waiting = WaitingWorkers()
        self._waits = WaitIndex(self._states)

    @classmethod
    def options_from_url(cls, url: str) -> dict[str, int]:
        """Return the options of ``memory://?max_history=N``: how many ended events of a bus are kept."""
        options = dict(parse_qsl(urlsplit(url).query))
        history = options.pop("max_history", str(DEFAULT_HISTORY))
        if options or not history.isdigit():
            raise ConfigurationError(f"{url!r}: the only option of memory:// is max_history=<whole number>")
        return {"max_history": int(history)}

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("this memory store is closed: its events are gone, open a new one")

    def _bus_queue(self, bus: str) -> BusQueue:
        queue = self._bus_queues.get(bus)
        if queue is None:
            queue = self._bus_queues[bus] = BusQueue(self._states)
        return queue

    def _state(self, ref: EventRef) -> EventState | None:
        id_ = ref if isinstance(ref, int) else self._ids.get(ref)
        return None if id_ is None else self._states.get(id_)

    def _known(self, ref: EventRef) -> EventState:
        state = self._state(ref)
        if state is None:
            raise EventNotFound(ref)
        return state

    def _apply(self, before: EventState | None, applied: Applied, now: float) -> None:
        """Apply a transition to the state, queue, holders, locks, log and history."""
        after, records = applied.state, applied.records
        event = after.event
        self._states[event.id] = after
        if not records:
            return
        self._log.append(records)
        status = event.status
        if status is EventStatus.PROCESSING:
            if after.token is not None and (before is None or before.token != after.token):
                self._bus_queue(event.bus).leased(event)
                self._held.setdefault(after.token, {})[event.id] = None
            return
        if before is not None:
            if before.token is not None:
                self._let_go(event.id, before.token)
            if before.event.status in DEAD_LETTER:
                del self._dead[event.id]
        if status is EventStatus.PENDING:
            if event.parent_id is not None:
                self._live_children.setdefault(event.parent_id, set()).add(event.id)
            queue = self._bus_queue(event.bus)
            queue.pending(event, now)
            if event.bus in self._waiting and (event.due_ts > now or event.bus not in self._waiting.planned):
                self._wake_workers(queue, event, now)
        else:
            self._ended(event)

    def _wake_workers(self, queue: BusQueue, event: Event, now: float) -> None:
        """Wake the workers that wait for the bus. They plan for an event that is due later; one that is due now may be
        claimed in this turn of the event loop.
        """

        def is_ready() -> bool:
            with self._lock:
                return queue.next_instant() == 0.0

        if event.due_ts > now:
            self._waiting.wake(event.bus)
        else:
            self._waiting.wake_after_turn(event.bus, is_ready)

    def _ended(self, event: Event) -> None:
        self._waits.forget(event.id)
        if ENDS in self._waiting:
            self._waiting.wake(ENDS)
        queue = self._bus_queue(event.bus)
        queue.left(event)
        if event.parent_id is not None:
            self._wake_parent(event.parent_id, event.id)
        if event.status is EventStatus.CANCELLED:
            queue.cancelled.add(event.id)
            # The event may have held the lock of its bus, or the ordering key of an event that waits.
            self._waiting.wake(event.bus)
        if event.status is EventStatus.COMPLETED or event.status is EventStatus.CANCELLED:
            queue.history[event.id] = None
            if len(queue.history) > self._max_history + self._max_history // 5:
                self._forget_excess(queue, self._max_history)
        else:
            self._dead[event.id] = None

    def _wake_parent(self, parent_id: str, gone: int | None = None) -> None:
        """Make an event due that waits for its children, if none of them lives. ``gone`` is one that has just left."""
        live = self._live_children.get(parent_id)
        if live is not None:
            live.discard(gone or 0)
            if live:
                return
            del self._live_children[parent_id]
        state = self._state(parent_id)
        woken = None if state is None else children_ended(state)
        if woken is not None:
            event = woken.event
            self._states[event.id] = woken
            self._bus_queue(event.bus).pending(event, event.due_ts)
            self._waiting.wake(event.bus)

    def _let_go(self, id_: int, token: str) -> None:
        held = self._held.get(token)
        if held is not None:
            held.pop(id_, None)
            if not held:
                del self._held[token]
                lock = self._event_locks.pop(token, None)
                if lock is not None:
                    self._free(lock)

    def _free(self, claim: LockClaim) -> None:
        freed = release_lock(self._locks.get(claim.key), claim)
        if not isinstance(freed, Refused):
            self._locks[claim.key] = freed

    def _free_handler_locks(self, before: EventState, after: EventState) -> None:
        """Free the serial lock of each handler whose claim has ended."""
        held = self._locks.get(handler_lock_key(before.event.event_id))
        if held is not None and held.token is not None and held.token in ended_handler_claims(before, after):
            self._free(lock_claim(held, held.token))

    def _expire(self, queue: BusQueue, max_attempts: int | None, now: float, limit: int | None = None) -> int:
        count = 0
        for id_ in sorted(islice(queue.expired(now), limit)):
            state = self._states[id_]
            applied = transition(state, Expire(max_attempts), now)
            if isinstance(applied, Applied):
                self._apply(state, applied, now)
                count += 1
        return count

    def _take_lock(self, lock: LockState, now: float, max_attempts: int | None = None) -> None:
        """Write a granted lock. A holder that let it expire loses what it claimed with it: events, or a handler."""
        lost = self._locks.get(lock.key)
        self._locks[lock.key] = lock
        if lost is None or lost.token is None or lost.token == lock.token:
            return
        event_lock = self._event_locks.get(lost.token)
        held = self._held.get(lost.token, ()) if event_lock is not None and event_lock.key == lock.key else ()
        for id_ in sorted(held):
            state = self._states[id_]
            applied = transition(state, Expire(max_attempts), now)
            if isinstance(applied, Applied):
                self._apply(state, applied, now)
        owner = self._state(lock.key.removeprefix("handler:event:"))
        if owner is not None:
            self._states[owner.event.id] = void_handler(owner, lost.token)

    def _forget(self, state: EventState) -> None:
        event = state.event
        self._waits.forget(event.id)
        del self._states[event.id]
        self._ids.pop(event.event_id, None)
        if event.idempotency_key is not None:
            self._keys.pop((event.bus, event.idempotency_key), None)
        if state.token is not None:
            self._let_go(event.id, state.token)
        queue = self._bus_queue(event.bus)
        queue.left(event)
        if event.parent_id is not None:
            self._wake_parent(event.parent_id, event.id)
        queue.history.pop(event.id, None)
        queue.cancelled.discard(event.id)
        self._dead.pop(event.id, None)

    def _forget_excess(self, queue: BusQueue, keep: int, limit: int | None = None, node: str | None = None) -> int:
        excess = self._archived(sorted(queue.history)[: max(len(queue.history) - keep, 0)])[:limit]
        if node is not None:
            states, now = self._states, self._clock.now()
            excess = list(takewhile(lambda id_: not may_be_unread(states[id_].event, node, now), excess))
        self._forget_history(queue, excess)
        return len(excess)

    def _archived(self, ids: list[int]) -> list[int]:
        """Return those of these events that have no entry after the position of an archive."""
        archives = archives_in(self._positions)
        if not archives:
            return ids
        unread = self._log.after(min(map(self._log.number, archives.values())))
        return [id_ for id_ in ids if id_ not in unread]

    def _forget_history(self, queue: BusQueue, ids: Sequence[int]) -> None:
        """Delete events of the history, which are nowhere else, and their log entries."""
        for id_ in ids:
            event = self._states.pop(id_).event
            del queue.history[id_]
            queue.cancelled.discard(id_)
            del self._ids[event.event_id]
            if event.idempotency_key is not None:
                self._keys.pop((event.bus, event.idempotency_key), None)
        self._log.forget(ids)

    def _saw_process(self, token: str, now: float) -> None:
        """A claim shows the presence of the process that its token belongs to."""
        name = incarnation_of(token) if token.startswith(MARK) else ""
        if not name:
            return
        if name not in self._processes:
            # Processes come and go. Those that are silent and hold nothing need not be remembered.
            holders = holders_of(self._locks, self._held, self._offers, now)
            self._processes = {
                known: seen_ts
                for known, seen_ts in self._processes.items()
                if seen_ts + PRESENT_FOR > now or known in holders
            }
        self._processes[name] = now


class MemoryPublishing(MemoryCore):
    """Adds events: those of publishers, and the children of settlements."""

    def _add(self, new: NewEvent, now: float) -> int:
        """Store an event unless it is known. Returns its id."""
        known = self._ids.get(new.event_id)
        if known is None and new.idempotency_key is not None:
            known = self._keys.get((new.bus, new.idempotency_key))
        if known is not None:
            return known
        applied = publish(new, self._next_id, now)
        self._next_id += 1
        event = applied.state.event
        self._ids[event.event_id] = event.id
        if event.idempotency_key is not None:
            self._keys[event.bus, event.idempotency_key] = event.id
        self._apply(None, applied, now)
        if self._waits:
            for waiter in self._waits.meet(event):
                self._bus_queue(waiter.bus).pending(waiter, now)
                self._waiting.wake(waiter.bus)
        return event.id

    def _add_children(self, parents: Sequence[Settlement | Keep], now: float) -> None:
        """Store the children of settlements that took effect. Then parents that wait for no live child are due."""
        for one in parents:
            for child in one.children:
                self._add(child, now)
        for one in parents:
            if isinstance(one, Release) and one.until_children:
                self._wake_parent(self._states[one.ref.id].event.event_id)


def archives_in(positions: Mapping[str, str]) -> dict[str, str]:
    """Return the positions of the lakes that follow the store."""
    return {name: position for name, position in positions.items() if name.startswith(ARCHIVE)}


def lock_claim(lock: LockState, token: str) -> LockClaim:
    """Return a lock as its holder sees it."""
    return LockClaim(key=lock.key, worker_id=lock.worker_id, token=token, fence=lock.fence, expires_ts=lock.expires_ts)


def holders_of(locks: Mapping[str, LockState], held: Iterable[str], offers: Offers, now: float) -> set[str]:
    """Return the incarnations of processes that hold events, handlers or locks."""
    tokens = {lock.token for lock in locks.values() if lock.expires_ts > now}.union(held)
    tokens.update(handler.token for state in offers.all() for handler in state.handlers)
    return {incarnation_of(token) for token in tokens if token is not None}

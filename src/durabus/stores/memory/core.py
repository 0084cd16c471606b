"""The state of the memory store, and the only code that applies transitions to it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from durabus.clock import Clock, SystemClock
from durabus.errors import ConfigurationError, EventNotFound, StoreClosedError
from durabus.lifecycle.handlers import release_lock, void_handler
from durabus.lifecycle.state import Applied, EventState, Expire, LockState, Refused
from durabus.lifecycle.transition import transition
from durabus.model.claim import LockClaim, handler_lock_key
from durabus.model.event import Event
from durabus.model.handler import BusInfo, HandlerInfo
from durabus.model.statuses import DEAD_LETTER, EventStatus
from durabus.store.events import EventRef
from durabus.store.features import Features
from durabus.stores.memory.bus_queue import BusQueue
from durabus.stores.memory.log import MemoryLog
from durabus.stores.wakeups import WaitingWorkers

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
        self._held: dict[str, dict[int, None]] = {}
        self._locks: dict[str, LockState] = {}
        self._event_locks: dict[str, LockClaim] = {}
        """The lock that a token claimed together with its events."""
        self._log = MemoryLog()
        self._positions: dict[str, str] = {}
        self._buses: dict[str, BusInfo] = {}
        self._handlers: dict[str, dict[tuple[str, str], Registration]] = {}
        self._revisions: dict[str, str] = {}
        self._last_revision = 0
        self._waiting = WaitingWorkers()

    @classmethod
    def options_from_url(cls, url: str) -> dict[str, int]:
        """Return the options of ``memory://?max_history=N``: how many COMPLETED events of a bus are kept."""
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
            self._bus_queue(event.bus).pending(event, now)
            if event.bus in self._waiting:
                self._waiting.wake(event.bus)
        else:
            self._ended(event)

    def _ended(self, event: Event) -> None:
        queue = self._bus_queue(event.bus)
        queue.left(event)
        if event.status is EventStatus.COMPLETED:
            queue.history[event.id] = None
            if len(queue.history) > self._max_history + self._max_history // 5:
                self._forget_excess(queue, self._max_history)
        else:
            self._dead[event.id] = None

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
        """Free the serial lock of each handler whose claim the settlement ended by writing its result."""
        held = self._locks.get(handler_lock_key(before.event.event_id))
        gone = {handler.token for handler in before.handlers} - {handler.token for handler in after.handlers}
        if held is not None and held.token is not None and held.token in gone:
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
        del self._states[event.id]
        self._ids.pop(event.event_id, None)
        if event.idempotency_key is not None:
            self._keys.pop((event.bus, event.idempotency_key), None)
        if state.token is not None:
            self._let_go(event.id, state.token)
        queue = self._bus_queue(event.bus)
        queue.left(event)
        queue.history.pop(event.id, None)
        self._dead.pop(event.id, None)

    def _forget_excess(self, queue: BusQueue, keep: int, limit: int | None = None) -> int:
        excess = sorted(queue.history)[: max(len(queue.history) - keep, 0)][:limit]
        self._forget_completed(queue, excess)
        return len(excess)

    def _forget_completed(self, queue: BusQueue, ids: Sequence[int]) -> None:
        """Delete COMPLETED events, which are only in the history, and their log entries."""
        for id_ in ids:
            event = self._states.pop(id_).event
            del queue.history[id_]
            del self._ids[event.event_id]
            if event.idempotency_key is not None:
                self._keys.pop((event.bus, event.idempotency_key), None)
        self._log.forget(ids)

    def _fence(self) -> int:
        self._last_fence += 1
        return self._last_fence


def lock_claim(lock: LockState, token: str) -> LockClaim:
    """Return a lock as its holder sees it."""
    return LockClaim(key=lock.key, worker_id=lock.worker_id, token=token, fence=lock.fence, expires_ts=lock.expires_ts)

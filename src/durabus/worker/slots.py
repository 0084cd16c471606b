"""Slots: the tasks in which claimed events run."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from durabus.clock import monotonic
from durabus.model.settlement import Release, Settlement
from durabus.worker.children.children import Children
from durabus.worker.children.emissions import RUN
from durabus.worker.claimed_event import ClaimedEvent, EventLock
from durabus.worker.dispatcher import Dispatcher
from durabus.worker.executor import EventExecutor
from durabus.worker.progress import Keeper

LEFT_BEHIND = 2.0
"""Seconds that the next event of a serial bus waits for a handler that the worker told to stop."""


class Slot:
    """One task in which handlers run, one event after another. Code inside a handler finds it in ``SLOT``."""

    __slots__ = ("claimed", "slots")

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.claimed: ClaimedEvent | None = None
        """The event that runs, or ran last: its ``task`` is None once it is over."""


SLOT: contextvars.ContextVar[Slot | None] = contextvars.ContextVar("durabus_slot", default=None)


class SharedLocks:
    """Locks that handlers share with the events they wait for, by the ``event_id`` of those events."""

    def __init__(self) -> None:
        self._locks: dict[str, list[tuple[EventLock, ...]]] = {}

    @contextmanager
    def share(self, event_id: str, locks: tuple[EventLock, ...]) -> Iterator[None]:
        """While the holder of ``locks`` waits for an event, that event runs under them, however it was claimed here."""
        self._locks.setdefault(event_id, []).append(locks)
        try:
            yield
        finally:
            self._locks[event_id].remove(locks)
            if not self._locks[event_id]:
                del self._locks[event_id]

    def add_to(self, claimed: ClaimedEvent) -> None:
        """Let the event run under the locks of the handlers that wait for it."""
        for locks in self._locks.get(claimed.claim.event.event_id, ()) if self._locks else ():
            claimed.add_locks(locks)


class Slots:
    """Up to ``size`` tasks, each of which runs one event after another.

    A new task starts only when all others wait inside a handler. So short handlers share one task, and long ones run
    side by side. A handler that waits for the end of another event yields its slot.
    In a serial mode (``lock``) the next event begins when no handler runs, or all that run wait.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        size: int,
        *,
        done: Callable[[ClaimedEvent, Settlement], None],
        died: Callable[[ClaimedEvent], None],
        on_yield: Callable[[], None],
        lock: EventLock | None = None,
        children: Children | None = None,
        keeper: Keeper | None = None,
        strict: bool = False,
    ) -> None:
        self._limit = size
        """How many slots may run now: ``size``, and one more for each that is yielded."""
        self._done = done
        self._on_yield = on_yield
        self.lock = lock
        """The lock that every event of this bus holds while it runs, in a serial mode."""
        self.executor = EventExecutor(
            self, dispatcher, done=done, died=died, children=children, keeper=keeper, strict=strict
        )
        self._waits: dict[ClaimedEvent, int] = {}
        """The events whose handlers wait, and the number of other events that each waits for."""
        self.shared_locks = SharedLocks()
        self._queue: deque[ClaimedEvent] = deque()
        self._inside: set[ClaimedEvent] = set()
        """The events whose handlers run. Used in serial modes only."""
        self._active = 0
        self._asked_for_more = False
        self.closing = False
        """The worker cancels what is left, and writes nothing of it any more."""
        self.tasks: set[asyncio.Task[None]] = set()
        self.loop: asyncio.AbstractEventLoop
        self.variables = contextvars.copy_context()
        self.variables.run(RUN.set, None)  # a handler may start a bus, which outlives it
        """The context variables that each slot begins with."""

    @property
    def yielded(self) -> int:
        """The number of slots that are yielded because their handlers wait for other events."""
        return len(self._waits)

    def is_waiting(self, claimed: ClaimedEvent) -> bool:
        """Whether a handler of the event waits for other events."""
        return claimed in self._waits

    @property
    def is_drained(self) -> bool:
        """Whether no event waits to begin."""
        return not self._queue

    def put(self, claimed: ClaimedEvent) -> None:
        """Queue an event; ``go`` starts it."""
        if self.lock is not None:
            claimed.locks = (self.lock,)
        self.shared_locks.add_to(claimed)
        self._queue.append(claimed)

    def put_first(self, claimed: ClaimedEvent, under: tuple[EventLock, ...]) -> None:
        """Run an event before all that are queued; the event that waits for it holds ``under``."""
        claimed.locks = under if self.lock is None or self.lock in under else (*under, self.lock)
        self._queue.appendleft(claimed)
        self.go()

    def go(self) -> None:
        """Start one more slot for the queued events, if there is room for one."""
        if self._active < self._limit and self._may_begin():
            self._active += 1
            self.loop = asyncio.get_running_loop()
            # A fresh context for each slot, so that what handlers set does not travel from event to event.
            task = self.loop.create_task(self._slot(), context=self.variables.copy())
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def lose(self, claimed: ClaimedEvent) -> None:
        """The claim is lost: do not begin the event, or stop it."""
        claimed.lost = True
        self._interrupt(claimed)

    def give_back(self, claimed: ClaimedEvent) -> None:
        """Put the event back into the queue without losing an attempt: there is no time left for it."""
        claimed.returning = True
        if self._interrupt(claimed):
            self._done(claimed, Release(claimed.ref))

    def drain(self) -> None:
        """Give back the events that only wait for handlers, and hold no further one."""
        self.executor.drain()
        for claimed in list(self.executor.held):
            self.give_back(claimed)

    def give_back_rest(self) -> None:
        """Put the events that have not begun back into the queue, without losing an attempt."""
        rest, self._queue = self._queue, deque()
        for claimed in rest:
            claimed.returning = True
            self._done(claimed, Release(claimed.ref))

    def yield_slot(self, claimed: ClaimedEvent) -> None:
        """A handler of the event begins to wait for another event: a further event may run meanwhile."""
        if claimed.task is None:
            return  # the event is over: a task that its handler left behind waits
        self._waits[claimed] = self._waits.get(claimed, 0) + 1
        if self._waits[claimed] == 1:
            self._limit += 1
            self._on_yield()
            self.go()

    def resume(self, claimed: ClaimedEvent) -> None:
        """The wait is over. For a moment more handlers may run than there are slots."""
        if claimed in self._waits:
            self._waits[claimed] -= 1
            if not self._waits[claimed]:
                self._end_waits(claimed)

    def leave(self, claimed: ClaimedEvent) -> None:
        """The event is outside its handlers. A task that a handler left behind may still wait; it does not count."""
        self._inside.discard(claimed)
        if self._waits:
            self._end_waits(claimed)

    def _end_waits(self, claimed: ClaimedEvent) -> None:
        if self._waits.pop(claimed, None) is not None:
            self._limit -= 1

    def _may_begin(self) -> bool:
        if self.lock is not None and self._inside and not self._inside <= self._waits.keys():
            return False
        return bool(self._queue)

    def _leave_behind(self, claimed: ClaimedEvent) -> None:
        """Wait no longer for a handler that refuses to stop: nothing it does counts any more.

        A function in a thread whose event is still claimed is the exception: the lock that the others need is its own.
        """
        if claimed in self._inside and (claimed.lost or not claimed.has_no_limit):
            self._inside.remove(claimed)
            self.go()

    def _interrupt(self, claimed: ClaimedEvent) -> bool:
        """Cancel the event if it runs; True if it had not begun."""
        if claimed.task is not None:
            claimed.task.cancel()
            if self.lock is not None:
                self.loop.call_later(LEFT_BEHIND, self._leave_behind, claimed)
        elif claimed in self._queue:
            self._queue.remove(claimed)
            return True
        return False

    async def _slot(self) -> None:
        """Run queued events one after another; return when none is left, or when a handler changed the context."""
        slot, task = Slot(self), asyncio.current_task()
        SLOT.set(slot)
        untouched = contextvars.copy_context()
        try:
            while self._may_begin() and self._active <= self._limit and contextvars.copy_context() == untouched:
                claimed = self._queue.popleft()
                if self.lock is not None:
                    if claimed.deadline <= monotonic():
                        # As after the process was frozen: another node may have the lock now.
                        claimed.returning = True
                        self._done(claimed, Release(claimed.ref))
                        continue
                    self._inside.add(claimed)
                elif self._queue and not self._asked_for_more:
                    # Once the loop turns, the handler that runs now waits: then further slots take what is queued.
                    self._asked_for_more = True
                    asyncio.get_running_loop().call_soon(self._start_more)
                slot.claimed, claimed.task = claimed, task
                settlement = await self.executor.run(claimed)
                if not claimed.lost:
                    self._done(claimed, settlement)
        finally:
            self._active -= 1
            self.go()

    def _start_more(self) -> None:
        self._asked_for_more = False
        for _ in range(min(len(self._queue), self._limit - self._active)):
            self.go()

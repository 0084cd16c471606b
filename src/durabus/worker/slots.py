"""Slots: the tasks in which claimed events are run."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from durabus.clock import monotonic
from durabus.errors import StoreError
from durabus.model.claim import Claim
from durabus.model.result import HandlerResult
from durabus.model.settlement import NO_HANDLER, Complete, Fail, Release, Settlement
from durabus.store.contract import EventStore
from durabus.worker.children.children import Child, Children
from durabus.worker.dispatcher import Dispatcher
from durabus.worker.execution import describe
from durabus.worker.heartbeat import HeldClaim
from durabus.worker.threads import NotStarted, is_in_thread, threads_ended

logger = logging.getLogger("durabus.worker")

EventLock = tuple[EventStore, str]
"""The lock that an event of a serial bus holds while it runs, and where."""
TROUBLE_PAUSE = 0.5
"""How long an event rests whose dispatch was kept from its end by something other than a handler."""
HELD_AT_MOST = 1000
"""Events that wait in place, at most: each takes some memory and is renewed. Others go back for longer and longer."""
BACK_FOR = 0.1
"""How long an event of a serial bus is in the queue before it is claimed without the lock."""
HANDLERS_CHANGED = "the handlers of the bus have changed"
TOLD_TO_STOP = "the worker was told to stop before it was done"
LEFT_BEHIND = 2.0
"""How long the next event of a serial bus waits for a handler that was told to stop."""


class ClaimedEvent(HeldClaim):
    """A claim on its way through a slot."""

    __slots__ = ("children", "claim", "gave_away", "held", "locks", "lost", "returning", "task", "turn", "waits_next")

    def __init__(self, claim: Claim, deadline: float) -> None:
        self.ref = claim.ref
        self.deadline = deadline
        self.claim = claim
        self.task: asyncio.Task[None] | None = None
        """The slot while it is inside the handlers, and only then: cancelling it must not hit the next event."""
        self.lost = False
        """Another claim may hold the event: nothing of this one is written."""
        self.returning = False
        """The event goes back to the queue, whatever the handler makes of its cancellation."""
        self.gave_away = False
        """The event goes back for a handler of another node, which is to claim it."""
        self.waits_next = False
        """The event goes back to be claimed without the lock, and to wait in place."""
        self.held = False
        """It waits in place for a handler that no live node has."""
        self.children: list[Child] | None = None
        """What its handlers emitted."""
        self.locks: tuple[EventLock, ...] = ()
        """What it runs under: its own lock in a serial mode, and those of the events whose handlers wait for it."""
        self.turn: asyncio.Lock | None = None
        """Children that run under its lock do so one at a time."""

    @property
    def has_begun(self) -> bool:
        """Whether it is inside its handlers."""
        return self.task is not None

    @property
    def has_no_limit(self) -> bool:
        """It waits in place; or a function of it runs in a thread, which cannot be stopped."""
        return self.held or is_in_thread(self.claim.event)

    def add_locks(self, locks: tuple[EventLock, ...]) -> None:
        """It runs under these, too: their holder waits for it."""
        self.locks = (*self.locks, *(lock for lock in locks if lock not in self.locks))


class Slot:
    """The task in which handlers run, one event after another, as code inside them can find it."""

    __slots__ = ("running", "slots")

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.running: ClaimedEvent | None = None
        """Over when its ``task`` is None."""


PLACE: contextvars.ContextVar[Slot | None] = contextvars.ContextVar("durabus_place", default=None)


class Slots:
    """Up to ``size`` tasks, each of which runs one event after another.

    A new one starts only when all others are waiting inside a handler. So short handlers share one task, and long
    ones run side by side. One whose handler waits for the end of another event does not count: its place is lent.
    In a serial mode (``lock``) the next event begins when no handler is inside, or all of them wait.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        size: int,
        *,
        done: Callable[[ClaimedEvent, Settlement], None],
        died: Callable[[ClaimedEvent], None],
        lent: Callable[[], None],
        lock: EventLock | None = None,
        children: Children | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._places = size
        """How many may run now: as many as asked for, and one more for each that is lent."""
        self._done = done
        self._died = died
        self._lent = lent
        self.lock = lock
        """What every event that runs here holds, in a serial mode."""
        self._children = children
        self._waits: dict[ClaimedEvent, int] = {}
        """Whose handlers wait, and for how many other events."""
        self._lent_locks: dict[str, list[tuple[EventLock, ...]]] = {}
        """By event_id: what those run under who wait for the event."""
        self._queue: deque[ClaimedEvent] = deque()
        self._inside: set[ClaimedEvent] = set()
        """In a serial mode, whose handlers run."""
        self._active = 0
        self._asked_for_more = False
        self.held: set[ClaimedEvent] = set()
        """What waits in place for handlers that no live node has."""
        self.held_without_lock: set[ClaimedEvent] = set()
        """The same in a serial mode: no slot runs it."""
        self.draining = False
        """Nothing more is to wait in place."""
        self.closing = False
        """The worker cancels what is left: nothing of it is written any more."""
        self.tasks: set[asyncio.Task[None]] = set()
        self.loop: asyncio.AbstractEventLoop
        self._context = contextvars.copy_context()

    @property
    def lent(self) -> int:
        """How many handlers wait for other events."""
        return len(self._waits)

    def is_waiting(self, running: ClaimedEvent) -> bool:
        """Whether its handler waits for other events."""
        return running in self._waits

    @property
    def is_drained(self) -> bool:
        """Whether nothing waits to begin."""
        return not self._queue

    @contextmanager
    def lending(self, event_id: str, locks: tuple[EventLock, ...]) -> Iterator[None]:
        """While the holder of ``locks`` waits for an event, that event runs under them, however it was claimed here."""
        self._lent_locks.setdefault(event_id, []).append(locks)
        try:
            yield
        finally:
            self._lent_locks[event_id].remove(locks)
            if not self._lent_locks[event_id]:
                del self._lent_locks[event_id]

    def put(self, running: ClaimedEvent) -> None:
        """Queue an event; ``go`` starts it."""
        if self.lock is not None:
            running.locks = (self.lock,)
        for locks in self._lent_locks.get(running.claim.event.event_id, ()) if self._lent_locks else ():
            running.add_locks(locks)
        self._queue.append(running)

    def put_first(self, running: ClaimedEvent, under: tuple[EventLock, ...]) -> None:
        """Run an event before all that are queued; the event that waits for it holds ``under``."""
        running.locks = under if self.lock is None or self.lock in under else (*under, self.lock)
        self._queue.appendleft(running)
        self.go()

    def go(self) -> None:
        """Let one more slot take what is queued, if there is room for one."""
        if self._active < self._places and self._may_begin():
            self._active += 1
            self.loop = asyncio.get_running_loop()
            # A fresh context for each slot, so that what handlers set does not travel from event to event.
            task = self.loop.create_task(self._slot(), context=self._context.copy())
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def lose(self, running: ClaimedEvent) -> None:
        """The claim is lost: do not begin, or stop."""
        running.lost = True
        self._interrupt(running)

    def give_back(self, running: ClaimedEvent) -> None:
        """There is no time left: the event goes back to the queue without losing an attempt."""
        running.returning = True
        if self._interrupt(running):
            self._done(running, Release(running.ref))

    def drain(self) -> None:
        """Give back what waits in place, and let nothing more do so."""
        self.draining = True
        for running in list(self.held):
            self.give_back(running)

    def give_back_rest(self) -> None:
        """What has not begun goes back to the queue without losing an attempt."""
        rest, self._queue = self._queue, deque()
        for running in rest:
            running.returning = True
            self._done(running, Release(running.ref))

    def lend(self, running: ClaimedEvent) -> None:
        """Its handler begins to wait for another event: somebody else may have its place."""
        if running.task is None:
            return  # it is over: somebody it left behind waits
        self._waits[running] = self._waits.get(running, 0) + 1
        if self._waits[running] == 1:
            self._places += 1
            self._lent()
            self.go()

    def take_back(self, running: ClaimedEvent) -> None:
        """The wait is over. For a moment more handlers may run than there are places."""
        if running in self._waits:
            self._waits[running] -= 1
            if not self._waits[running]:
                self._end_waits(running)

    def _end_waits(self, running: ClaimedEvent) -> None:
        if self._waits.pop(running, None) is not None:
            self._places -= 1

    def _may_begin(self) -> bool:
        if self.lock is not None and self._inside and not self._inside <= self._waits.keys():
            return False
        return bool(self._queue)

    def _leave_behind(self, running: ClaimedEvent) -> None:
        """Its handler refuses to stop, and nothing it does counts any more: the others cannot wait for ever.

        But for a function in a thread whose event is still claimed: the lock that the others need is its own.
        """
        if running in self._inside and (running.lost or not running.has_no_limit):
            self._inside.remove(running)
            self.go()

    def _interrupt(self, running: ClaimedEvent) -> bool:
        """Cancel it if it runs; True if it had not begun."""
        if running.task is not None:
            running.task.cancel()
            if self.lock is not None:
                self.loop.call_later(LEFT_BEHIND, self._leave_behind, running)
        elif running in self._queue:
            self._queue.remove(running)
            return True
        return False

    async def _slot(self) -> None:
        """Run queued events one after another; leave when none is left, or when a handler changed the context."""
        place, task = Slot(self), asyncio.current_task()
        PLACE.set(place)
        settled: list[HandlerResult] = []
        untouched = contextvars.copy_context()
        try:
            while self._may_begin() and self._active <= self._places and contextvars.copy_context() == untouched:
                running = self._queue.popleft()
                if self.lock is not None:
                    if running.deadline <= monotonic():
                        # As after the process was frozen: the lock may be somebody else's now.
                        running.returning = True
                        self._done(running, Release(running.ref))
                        continue
                    self._inside.add(running)
                elif self._queue and not self._asked_for_more:
                    # Once the loop turns, whoever runs now is waiting: then others may take what is still queued.
                    self._asked_for_more = True
                    asyncio.get_running_loop().call_soon(self._start_more)
                place.running, running.task = running, task
                settlement = await self._run(running, settled)
                if not running.lost:
                    self._done(running, settlement)
                if settled:
                    settled = []
        finally:
            self._active -= 1
            self.go()

    def _start_more(self) -> None:
        self._asked_for_more = False
        for _ in range(min(len(self._queue), self._places - self._active)):
            self.go()

    async def _run(  # noqa: C901, PLR0912  (one flat list of endings)
        self, running: ClaimedEvent, settled: list[HandlerResult]
    ) -> Settlement:
        """Dispatch one event. Whatever happens inside, the slot survives and the claim gets a settlement."""
        try:
            settlement = await self._dispatcher.dispatch(running.claim, settled)
            if self._dispatcher.gave_away == running.ref and isinstance(settlement, Release):
                settlement = await self._given_away(running, settlement)
            if running.children is not None or running.claim.event.fence > 1:
                settlement = await self._after_children(running, settlement)
        except asyncio.CancelledError as error:
            if not (running.lost or running.returning):
                # The handler cancelled its own task, or somebody cancels all tasks: the slot ends.
                self._cancelled_by_others(running, error, settled)
                raise
            settlement = Release(running.ref)
            if is_in_thread(running.claim.event) and not running.lost:
                await self._keep(running)
        except (NotStarted, StoreError) as error:
            logger.warning("event %s goes back to the queue: %s", running.claim.event.event_id, error)
            settlement = Release(running.ref, TROUBLE_PAUSE, tuple(settled), describe(error))
        except Exception as error:
            logger.exception("dispatch of event %s failed", running.claim.event.event_id)
            settlement = self._failed(running, error, settled)
        except BaseException:
            # Python closes this coroutine, as when its loop is gone: the lease gives the event back.
            self._died(running)
            raise
        finally:
            task, running.task = running.task, None
            self._inside.discard(running)
            if self._waits:
                self._end_waits(running)  # it may have left somebody behind who waits
            if running.lost or running.returning:
                while task is not None and task.uncancel():
                    pass
        if running.returning:
            # Even if the handler swallowed the cancellation and returned: it was told to stop before it was done.
            return Release(running.ref, 0.0, tuple(settled), TOLD_TO_STOP)
        return settlement

    def _failed(self, running: ClaimedEvent, error: BaseException, settled: list[HandlerResult]) -> Fail:
        delay = None if self._is_last_attempt(running) else TROUBLE_PAUSE
        return Fail(running.ref, describe(error), delay, tuple(settled))

    def _cancelled_by_others(
        self, running: ClaimedEvent, error: asyncio.CancelledError, settled: list[HandlerResult]
    ) -> None:
        """A failed attempt, if the worker is there to write it; else the lease gives the event back."""
        if self.closing:
            self._died(running)
        else:
            self._done(running, self._failed(running, error, settled))

    async def _keep(self, running: ClaimedEvent) -> None:
        """It is to go back, but not while a function of it runs in a thread: another node would begin beside it.

        At a shutdown that waits no longer it is left behind, and comes back with its lease.
        """
        try:
            await threads_ended(running.claim.event)
        except asyncio.CancelledError:
            self._died(running)
            raise

    async def _given_away(self, running: ClaimedEvent, settlement: Release) -> Release:
        """If no live node has what the event lacks, it waits in place: else its log would grow for as long as it waits.

        Once it went back, with the reason in its log. In a serial mode it must not keep the lock from the others: it
        goes back for a moment, and is claimed without the lock.
        """
        event, running.gave_away = running.claim.event, settlement.reason != NO_HANDLER
        full = len(self.held) + len(self.held_without_lock) >= HELD_AT_MOST or self.draining
        if settlement.results or full:
            return settlement
        if self.lock is not None:
            running.waits_next = self.lock[0].features.claims_by_event_id and self._dispatcher.lacks_handlers(
                running.claim
            )
            running.gave_away = running.gave_away and not running.waits_next
            return replace(settlement, delay=BACK_FOR) if running.waits_next else settlement
        if event.fence == event.attempts:
            return settlement
        running.held = True
        self.held.add(running)
        self.lend(running)
        try:
            waited = await self._dispatcher.wait_for_others(running.claim)
        finally:
            running.held = False
            self.held.discard(running)
            self.take_back(running)
        return Release(running.ref, 0.0, (), HANDLERS_CHANGED) if waited else settlement

    async def _after_children(self, running: ClaimedEvent, settlement: Settlement) -> Settlement:
        if running.turn is not None:
            async with running.turn:  # somebody it left behind may still wait for a child that runs under its lock
                pass
        if not isinstance(settlement, Complete) or self._children is None:
            return settlement
        handlers = [handler.id for handler in self._dispatcher.route(running.claim.event.type)]
        waits = self.lock is None  # in a serial mode it goes back to the queue for as long as they live
        if waits:
            self.lend(running)
        try:
            after = await self._children.after(running.claim, running.children or (), settlement, handlers)
        finally:
            if waits:
                self.take_back(running)
        return replace(after, delay=None) if isinstance(after, Fail) and self._is_last_attempt(running) else after

    def _is_last_attempt(self, running: ClaimedEvent) -> bool:
        event = running.claim.event
        limit = event.max_attempts if event.max_attempts is not None else self._dispatcher.max_attempts
        return limit is not None and event.attempts >= limit

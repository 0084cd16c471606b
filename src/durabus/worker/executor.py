"""Run one claimed event through its handlers. Whatever happens there, the claim gets a settlement."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from msgspec.structs import replace

from durabus.errors import LeaseLost, StoreError
from durabus.model.result import HandlerResult, any_offered
from durabus.model.settlement import Complete, Fail, Release, Settlement
from durabus.worker.children.children import Children
from durabus.worker.claimed_event import ClaimedEvent, EventLock
from durabus.worker.dispatcher import Dispatcher
from durabus.worker.execution import describe
from durabus.worker.progress import EventProgress, Keeper, ProgressParts, SlotYielder
from durabus.worker.threads import NotStarted, is_in_thread, threads_ended

logger = logging.getLogger("durabus.worker")

TROUBLE_PAUSE = 0.5
"""Seconds that an event rests after something other than a handler kept its dispatch from ending."""
HELD_AT_MOST = 1000
"""Maximum number of claims held for events that wait for a handler. Each uses memory and renewals; other events go
back to the queue, each time for longer."""
BACK_FOR = 0.1
"""Seconds that an event of a serial bus is in the queue before the worker claims it without the lock."""
HANDLERS_CHANGED = "the handlers of the bus have changed"
TOLD_TO_STOP = "the worker stopped its work on the event before it was finished"


class SlotOwner(SlotYielder, Protocol):
    """What the executor needs of the slots in which events run."""

    lock: EventLock | None
    closing: bool

    def give_back(self, claimed: ClaimedEvent) -> None:
        """Put the event back into the queue without losing an attempt."""
        ...

    def leave(self, claimed: ClaimedEvent) -> None:
        """Count the event no more: it is outside its handlers."""
        ...


class EventExecutor:
    """Runs claimed events, each in the slot that calls ``run``.

    ``done`` gets the settlement of an event that others cancelled; ``died`` an event that gets no settlement.
    """

    def __init__(
        self,
        slots: SlotOwner,
        dispatcher: Dispatcher,
        *,
        done: Callable[[ClaimedEvent, Settlement], None],
        died: Callable[[ClaimedEvent], None],
        children: Children | None,
        keeper: Keeper | None,
        strict: bool,
    ) -> None:
        self._slots = slots
        self._parts = ProgressParts(keeper, strict=strict, slots=slots, holder=self)
        self._dispatcher = dispatcher
        self._done = done
        self._died = died
        self._children = children
        self.held: dict[ClaimedEvent, None] = {}
        """Events whose claims are kept while they only wait for handlers of other nodes, live or not. A set of objects
        would have another order in every run."""
        self.held_without_lock: dict[ClaimedEvent, None] = {}
        """Events held in a serial mode, where no slot runs them."""
        self.draining = False
        """Whether the worker stops, so that it holds no further event."""

    @contextmanager
    def holding(self, claimed: ClaimedEvent) -> Iterator[None]:
        """Inside the block, the event only waits for handlers. Its slot is free, unless too many events wait already.

        In a serial mode its children may run in the slot: they run under the lock that the event holds.
        """
        claimed.held = True
        is_full = self.is_full
        self.held[claimed] = None
        if self.draining:
            self._slots.give_back(claimed)
        elif not is_full:
            self._slots.yield_slot(claimed)
        try:
            yield
        finally:
            claimed.held = False
            self.held.pop(claimed, None)
            self._slots.resume(claimed)

    @property
    def is_full(self) -> bool:
        """Whether so many events are held that a further one must keep its slot."""
        return len(self.held) + len(self.held_without_lock) >= HELD_AT_MOST

    async def run(self, claimed: ClaimedEvent) -> Settlement:  # noqa: C901  (one flat list of endings)
        """Dispatch one event and return its settlement. The slot survives whatever happens inside."""
        progress = EventProgress(claimed.ref, self._parts, claimed)
        settled = progress.settled
        try:
            settlement = await self._dispatcher.dispatch(claimed.claim, progress)
            if self._dispatcher.gave_away == claimed.ref and isinstance(settlement, Release):
                settlement = await self._leave_to_others(claimed, settlement)
            if claimed.children is not None or claimed.claim.event.fence > 1 or progress.is_shared:
                settlement = await self._after_children(claimed, settlement, progress)
        except asyncio.CancelledError as error:
            if not (claimed.lost or claimed.returning):
                # The handler cancelled its own task, or the program cancels all tasks: the slot ends.
                self._cancelled_by_others(claimed, error, progress)
                raise
            settlement = Release(claimed.ref)
            if is_in_thread(claimed.claim.event) and not claimed.lost:
                await self._keep(claimed)
        except (LeaseLost, NotStarted, StoreError) as error:
            # After LeaseLost the store refuses the release too, and the worker reports the loss.
            logger.warning("event %s goes back to the queue: %s", claimed.claim.event.event_id, error)
            settlement = Release(claimed.ref, TROUBLE_PAUSE, tuple(settled), describe(error))
        except Exception as error:
            logger.exception("dispatch of event %s failed", claimed.claim.event.event_id)
            settlement = self._failed(claimed, error, settled)
        except BaseException:
            # Python closes this coroutine, as when its loop is gone: the event comes back when its lease expires.
            self._died(claimed)
            raise
        finally:
            task, claimed.task = claimed.task, None
            self._slots.leave(claimed)
            if claimed.lost or claimed.returning:
                while task is not None and task.uncancel():
                    pass
        if claimed.returning:
            # The worker told the handler to stop. That holds even if it ignored the cancellation and returned.
            settlement = Release(claimed.ref, 0.0, tuple(settled), TOLD_TO_STOP)
        return progress.finished(settlement, is_lost=claimed.lost)

    def _failed(self, claimed: ClaimedEvent, error: BaseException, settled: list[HandlerResult]) -> Fail:
        delay = None if self._is_last_attempt(claimed) else TROUBLE_PAUSE
        return Fail(claimed.ref, describe(error), delay, tuple(settled))

    def _cancelled_by_others(
        self, claimed: ClaimedEvent, error: asyncio.CancelledError, progress: EventProgress
    ) -> None:
        """Count a failed attempt. If the worker closes and cannot write it, the event comes back with its lease."""
        if self._slots.closing:
            self._died(claimed)
        else:
            self._done(claimed, progress.finished(self._failed(claimed, error, progress.settled)))

    async def _keep(self, claimed: ClaimedEvent) -> None:
        """Keep the claim while a function of the event runs in a thread: another node would run it a second time.

        A shutdown that waits no longer leaves the event behind; it comes back when its lease expires.
        """
        try:
            await threads_ended(claimed.claim.event)
        except asyncio.CancelledError:
            self._died(claimed)
            raise

    async def _leave_to_others(self, claimed: ClaimedEvent, settlement: Release) -> Release:
        """Decide how the event waits for a handler that this node does not have.

        If no live node has that handler, the worker keeps the claim; otherwise each return would add to the event's
        log. The event has gone back once before, so its log has the reason. In a serial mode the event must not hold
        the lock of the bus: it goes back for a moment, and the worker claims it again without the lock.
        """
        event = claimed.claim.event
        if settlement.results or self.is_full or self.draining:
            return settlement
        lock = self._slots.lock
        if lock is not None:
            claimed.waits_next = (
                lock[0].features.claims_by_event_id
                and not any_offered(claimed.claim.results)
                and self._dispatcher.missing.lacks_handlers(claimed.claim)
            )
            return replace(settlement, delay=BACK_FOR) if claimed.waits_next else settlement
        if event.fence == event.attempts:
            return settlement
        with self.holding(claimed):
            waited = await self._dispatcher.missing.wait(claimed.claim)
        return Release(claimed.ref, 0.0, (), HANDLERS_CHANGED) if waited else settlement

    def drain(self) -> None:
        """Hold no further event, and wait for no children any more: the worker stops."""
        self.draining = True
        if self._children is not None:
            self._children.stop()

    async def _after_children(
        self, claimed: ClaimedEvent, settlement: Settlement, progress: EventProgress
    ) -> Settlement:
        if claimed.child_turn is not None:
            async with claimed.child_turn:  # a task that the handler left behind may still wait for a child
                pass
        if not isinstance(settlement, Complete) or self._children is None:
            return settlement
        handlers = [handler.id for handler in self._dispatcher.route(claimed.claim.event.type)]
        waits = self._slots.lock is None  # in a serial mode the event goes back to the queue until they have ended
        if waits:
            self._slots.yield_slot(claimed)
        try:
            return await self._children.after(claimed.claim, claimed.children or (), settlement, handlers, progress)
        finally:
            if waits:
                self._slots.resume(claimed)

    def _is_last_attempt(self, claimed: ClaimedEvent) -> bool:
        event = claimed.claim.event
        limit = event.max_attempts if event.max_attempts is not None else self._dispatcher.max_attempts
        return limit is not None and event.attempts >= limit

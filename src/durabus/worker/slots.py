"""Slots: the tasks in which claimed events are run."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable

from durabus.errors import StoreError
from durabus.model.claim import Claim
from durabus.model.result import HandlerResult
from durabus.model.settlement import Fail, Release, Settlement
from durabus.worker.dispatcher import Dispatcher
from durabus.worker.execution import describe
from durabus.worker.heartbeat import Held

logger = logging.getLogger("durabus.worker")

TROUBLE_PAUSE = 0.5
"""How long an event rests whose dispatch was kept from its end by something other than a handler."""


class Running(Held):
    """A claim on its way through a slot."""

    __slots__ = ("claim", "lost", "returning", "succeeded", "task")

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
        self.succeeded: list[HandlerResult] = []


class Slots:
    """Up to ``size`` tasks, each of which runs one event after another.

    A new one starts only when all others are waiting inside a handler. So short handlers share one task, and long
    ones run side by side.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        size: int,
        *,
        done: Callable[[Running, Settlement], None],
        died: Callable[[Running], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._size = size
        self._done = done
        self._died = died
        self._queue: deque[Running] = deque()
        self._active = 0
        self._asked_for_more = False
        self.tasks: set[asyncio.Task[None]] = set()
        self._context = contextvars.copy_context()

    def put(self, running: Running) -> None:
        """Queue an event; ``go`` starts it."""
        self._queue.append(running)

    def go(self) -> None:
        """Let one more slot take what is queued, if there is room for one."""
        if self._queue and self._active < self._size:
            self._active += 1
            # A fresh context for each slot, so that what handlers set does not travel from event to event.
            task = asyncio.get_running_loop().create_task(self._slot(), context=self._context.copy())
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def lose(self, running: Running) -> None:
        """The claim is lost: do not begin, or stop."""
        running.lost = True
        self._interrupt(running)

    def give_back(self, running: Running) -> None:
        """There is no time left: the event goes back to the queue without losing an attempt."""
        running.returning = True
        if self._interrupt(running):
            self._done(running, Release(running.ref))

    def _interrupt(self, running: Running) -> bool:
        """Cancel it if it runs; True if it had not begun."""
        if running.task is not None:
            running.task.cancel()
        elif running in self._queue:
            self._queue.remove(running)
            return True
        return False

    async def _slot(self) -> None:
        """Run queued events one after another; leave when none is left, or when a handler changed the context."""
        untouched, task = contextvars.copy_context(), asyncio.current_task()
        try:
            while self._queue and contextvars.copy_context() == untouched:
                running = self._queue.popleft()
                if self._queue and not self._asked_for_more:
                    # Once the loop turns, whoever runs now is waiting: then others may take what is still queued.
                    self._asked_for_more = True
                    asyncio.get_running_loop().call_soon(self._start_more)
                running.task = task
                settlement = await self._run(running)
                if not running.lost:
                    self._done(running, settlement)
        finally:
            self._active -= 1
            self.go()

    def _start_more(self) -> None:
        self._asked_for_more = False
        for _ in range(min(len(self._queue), self._size - self._active)):
            self.go()

    async def _run(self, running: Running) -> Settlement:
        """Dispatch one event. Whatever happens inside, the slot survives and the claim gets a settlement."""
        try:
            settlement = await self._dispatcher.dispatch(running.claim, running.succeeded)
        except asyncio.CancelledError:
            if not (running.lost or running.returning):
                # The task was cancelled by somebody else: the slot ends, and the lease gives the event back.
                self._died(running)
                raise
            settlement = Release(running.ref)
        except StoreError as error:
            logger.warning("event %s goes back to the queue: %s", running.claim.event.event_id, error)
            settlement = Release(running.ref, TROUBLE_PAUSE)
        except Exception as error:
            logger.exception("dispatch of event %s failed", running.claim.event.event_id)
            settlement = Fail(running.ref, describe(error), None if self._is_last_attempt(running) else TROUBLE_PAUSE)
        except BaseException:
            # A handler that ends the program, or means to: the slot ends, and the lease gives the event back.
            self._died(running)
            raise
        finally:
            task, running.task = running.task, None
            if running.lost or running.returning:
                while task is not None and task.uncancel():
                    pass
        if running.returning:
            # Even if the handler swallowed the cancellation and returned: it was told to stop before it was done.
            return Release(running.ref, 0.0, tuple(running.succeeded))
        return settlement

    def _is_last_attempt(self, running: Running) -> bool:
        event = running.claim.event
        limit = event.max_attempts if event.max_attempts is not None else self._dispatcher.max_attempts
        return limit is not None and event.attempts >= limit

"""An event loop in virtual time that runs many processes at once, in an order that a seed decides."""

from __future__ import annotations

import asyncio
import contextvars
import math
import random
import threading
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SWEEP_EVERY = 64


class SimulationError(Exception):
    """The simulation itself cannot go on: it stands still, runs away, or something left its one thread."""


class ThreadQueue:
    """What one thread of one process has to run: in the order of scheduling, as its event loop promises.

    Only between lanes does the seed choose. Shuffled inside, callbacks would come in an order that cannot be.
    """

    __slots__ = ("dead", "held", "name", "owner", "ready", "speed", "started", "tasks")

    def __init__(self, name: str, *, owner: object = None, started: float = 0.0, speed: float = 1.0) -> None:
        self.name = name
        self.owner = owner
        """The process."""
        self.ready: deque[asyncio.Handle] = deque()
        self.held = False
        """Frozen: what it has to run waits."""
        self.dead = False
        """Killed: nothing of it ever runs again, no ``finally`` either."""
        self.started = started
        """What its monotonic clock showed when the simulation began."""
        self.speed = speed
        """Of its clocks, where 1.0 is right."""
        self.tasks: list[SimulatedTask] = []
        """Kept here, because a task that nobody holds would run its ``finally`` when it is collected."""

    def keep(self, task: SimulatedTask) -> None:
        """Hold a task, and let go of those that have ended now and then."""
        if len(self.tasks) % SWEEP_EVERY == SWEEP_EVERY - 1:
            self.tasks = [kept for kept in self.tasks if not kept.done()]
        self.tasks.append(task)


LANE: contextvars.ContextVar[ThreadQueue] = contextvars.ContextVar("durabus_simulation_lane")


class SimulatedTask(asyncio.Task[Any]):
    """Hashed by its number: the order of a set must not depend on addresses."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class Future(asyncio.Future[Any]):
    """As ``SimulatedTask``."""

    def __init__(self, number: int, lane: ThreadQueue, *, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        self.lane = lane
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualLoop(asyncio.BaseEventLoop):
    """Never sleeps: with nothing to run, time jumps to the next timer."""

    _running = False

    def __init__(self, seed: int, *, max_steps: int = 1_000_000) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._now = 0.0
        self._numbers = 0
        self._max_steps = max_steps
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._runnable: list[ThreadQueue] = []
        self._closed = False
        self._thread = threading.get_ident()
        self.outside = ThreadQueue("outside")
        """Where everything runs that belongs to no process: the network, the store's server, the director."""
        self._outside_context = self.context_of(self.outside)
        self.current = self.outside
        self.lanes: list[ThreadQueue] = [self.outside]
        self.steps = 0
        self.errors: list[str] = []
        """What nobody caught."""

    def lane(self, name: str, *, owner: object, started: float = 0.0, speed: float = 1.0) -> ThreadQueue:
        """A new thread of a process."""
        made = ThreadQueue(name, owner=owner, started=started, speed=speed)
        self.lanes.append(made)
        return made

    def context_of(self, lane: ThreadQueue) -> contextvars.Context:
        """A context whose callbacks and tasks belong to ``lane``."""
        context = contextvars.Context()
        context.run(LANE.set, lane)
        return context

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run until ``main`` ends, then drop everything else where it stands."""
        task: asyncio.Task[T] = self.create_task(main, context=self.context_of(self.outside))
        events._set_running_loop(self)  # noqa: SLF001  (the documented way for those who write loops)
        self._running = True
        try:
            while not task.done():
                self._step()
        finally:
            self._running = False
            events._set_running_loop(None)  # noqa: SLF001
            self._drop_everything()
        return task.result()

    def kill(self, lane: ThreadQueue) -> None:
        """Nothing of it runs from now on."""
        lane.dead = True
        lane.ready.clear()
        if lane in self._runnable:
            self._runnable.remove(lane)

    def freeze(self, lane: ThreadQueue) -> None:
        """What it has to run waits until ``thaw``."""
        lane.held = True
        if lane in self._runnable:
            self._runnable.remove(lane)

    def thaw(self, lane: ThreadQueue) -> None:
        """Go on."""
        if lane.held and not lane.dead:
            lane.held = False
            if lane.ready:
                self._runnable.append(lane)

    @property
    def now(self) -> float:
        """Virtual seconds since the beginning, whosever clock is slow or fast."""
        return self._now

    def outside_in(self, delay: float, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Let something happen that belongs to no process, ``delay`` right seconds from now."""
        self._plan(self._now + delay, callback, args, self._outside_context)

    def local_time(self) -> float:
        """The monotonic clock of the process that runs now."""
        lane = self.current
        return lane.started + self._now * lane.speed

    def _step(self) -> None:
        runnable = self._runnable
        if not runnable:
            self._jump()
            return
        place = 0 if len(runnable) == 1 else int(self._random.random() * len(runnable))
        lane = runnable[place]
        handle = lane.ready.popleft()
        if not lane.ready:
            runnable[place] = runnable[-1]
            runnable.pop()
        self.steps += 1
        if self.steps > self._max_steps:
            raise SimulationError(f"{self.steps} steps in {self._now:.1f} virtual seconds: something runs in circles")
        if not handle.cancelled():
            self.current = lane
            handle._run()  # noqa: SLF001  (what a loop does with its handles)
            self.current = self.outside

    def _jump(self) -> None:
        timers = self._timers
        while timers and (timers[0][2].cancelled() or self._lane_of(timers[0][2]).dead):
            heappop(timers)
        if not timers:
            raise SimulationError(f"nothing left to run at {self._now:.1f}: everybody waits for something that is lost")
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            handle = heappop(timers)[2]
            if not handle.cancelled():
                self._put(handle)

    def _put(self, handle: asyncio.Handle) -> None:
        lane = self._lane_of(handle)
        if lane.dead:
            return
        lane.ready.append(handle)
        if len(lane.ready) == 1 and not lane.held:
            self._runnable.append(lane)

    def _lane_of(self, handle: asyncio.Handle) -> ThreadQueue:
        lane: ThreadQueue = handle._context.get(LANE, self.outside)  # type: ignore[attr-defined]  # noqa: SLF001
        return lane

    def _drop_everything(self) -> None:
        """Close what is left, now that nothing it does can matter: a collector would do it at any moment instead."""
        self._closed = True
        self._timers.clear()
        for lane in self.lanes:
            lane.ready.clear()
            for task in lane.tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
                try:
                    task.get_coro().close()
                except BaseException:  # noqa: BLE001, S112  (its process is gone: whatever it still says, nobody hears)
                    continue
            lane.tasks.clear()

    # What asyncio asks of a loop.

    def time(self) -> float:
        """Seconds since the beginning by the clock of the process that runs now."""
        return self._now * self.current.speed

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Run it next, after what its lane has to run already."""
        handle = asyncio.Handle(callback, args, self, context)
        if not self._closed:
            self._put(handle)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """As ``call_soon``: there is one thread only."""
        if threading.get_ident() != self._thread:
            raise SimulationError(
                f"{callback!r} comes from thread {threading.current_thread().name}: there may be none"
            )
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run it in ``delay`` seconds, by the clock of the process that asks."""
        return self._plan(self._now + delay / self.current.speed, callback, args, context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run it at ``when``, by the clock of the process that asks."""
        speed = self.current.speed
        due = when / speed
        while due * speed < when:  # rounded down: a timer that is early by its own clock may be set again for ever
            due = math.nextafter(due, math.inf)
        return self._plan(due, callback, args, context)

    def _plan(
        self, when: float, callback: Any, args: tuple[Any, ...], context: contextvars.Context | None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._closed:
            self._numbers += 1
            heappush(self._timers, (when, self._numbers, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        self._numbers += 1
        return Future(self._numbers, self.current, loop=self)

    def create_task(
        self,
        coro: Any,
        *,
        name: object = None,
        context: contextvars.Context | None = None,
        **_options: Any,
    ) -> asyncio.Task[Any]:
        """A task of the lane that its context belongs to."""
        self._numbers += 1
        context = contextvars.copy_context() if context is None else context
        task = SimulatedTask(coro, self._numbers, loop=self, name=str(name or f"task-{self._numbers}"), context=context)
        context.get(LANE, self.outside).keep(task)
        return task

    def get_debug(self) -> bool:
        """Never."""
        return False

    def is_running(self) -> bool:
        """Inside ``run``."""
        return self._running

    def is_closed(self) -> bool:
        """After ``run``."""
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Nobody caught it: the run has failed, unless the one who should have is dead."""
        error, future = context.get("exception"), context.get("future")
        if isinstance(future, Future) and future.lane.dead:
            return
        self.errors.append(f"{context.get('message')}: {error!r}" if error is not None else str(context.get("message")))

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:  # noqa: ARG002
        """Refused: threads do not run in virtual time."""
        raise SimulationError(f"{func!r} would run in a thread, which no seed can repeat")

    async def shutdown_asyncgens(self) -> None:
        """Nothing to do: they are held by their tasks."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """There is none."""

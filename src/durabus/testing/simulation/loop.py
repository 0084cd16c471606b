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
    """The simulation cannot go on: nothing can run, it runs in circles, or code uses another thread."""


class ThreadQueue:
    """The callbacks of one thread of one process. They run in the order of scheduling, as in a real event loop.

    The seed chooses only between threads. Inside a thread another order would be impossible in reality.
    """

    __slots__ = ("dead", "held", "name", "owner", "ready", "speed", "started", "tasks")

    def __init__(self, name: str, *, owner: object = None, started: float = 0.0, speed: float = 1.0) -> None:
        self.name = name
        self.owner = owner
        """The process that has the thread."""
        self.ready: deque[asyncio.Handle] = deque()
        self.held = False
        """Whether the thread is frozen: its callbacks wait."""
        self.dead = False
        """Whether the thread was killed: nothing of it runs again, not even a ``finally``."""
        self.started = started
        """The time of its monotonic clock when the simulation began."""
        self.speed = speed
        """The speed of its clocks; 1.0 is correct."""
        self.tasks: list[SimulatedTask] = []
        """The tasks of the thread. Without a reference Python would collect them, and that runs their ``finally``."""

    def keep(self, task: SimulatedTask) -> None:
        """Keep a reference to a task, and drop those to ended tasks from time to time."""
        if len(self.tasks) % SWEEP_EVERY == SWEEP_EVERY - 1:
            self.tasks = [kept for kept in self.tasks if not kept.done()]
        self.tasks.append(task)


THREAD: contextvars.ContextVar[ThreadQueue] = contextvars.ContextVar("durabus_simulation_thread")


class Numbered:
    """An object whose hash is its number, because the order of a set must not depend on addresses."""

    _number: int

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimulatedTask(Numbered, asyncio.Task[Any]):
    """A task with a number."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coroutine, **options)


class Future(Numbered, asyncio.Future[Any]):
    """A future with a number."""

    def __init__(self, number: int, thread: ThreadQueue, *, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        self.thread = thread
        super().__init__(loop=loop)


def context_of(thread: ThreadQueue) -> contextvars.Context:
    """Return a context whose callbacks and tasks belong to ``thread``."""
    context = contextvars.Context()
    context.run(THREAD.set, thread)
    return context


class ThreadScheduler:
    """Chooses by the seed which thread runs next, and stops threads that are frozen or killed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._runnable: list[ThreadQueue] = []
        self.outside = ThreadQueue("outside")
        """The thread of everything outside of the processes: the network, the store's server, the director."""
        self.queues: list[ThreadQueue] = [self.outside]

    def new_thread(self, name: str, *, owner: object, started: float = 0.0, speed: float = 1.0) -> ThreadQueue:
        """Return the queue of a new thread of a process."""
        made = ThreadQueue(name, owner=owner, started=started, speed=speed)
        self.queues.append(made)
        return made

    def thread_of(self, handle: asyncio.Handle) -> ThreadQueue:
        """Return the queue that a callback belongs to."""
        thread: ThreadQueue = handle._context.get(THREAD, self.outside)  # type: ignore[attr-defined]  # noqa: SLF001
        return thread

    def put(self, handle: asyncio.Handle) -> None:
        """Add a callback to its queue. Drop it if its thread was killed."""
        thread = self.thread_of(handle)
        if thread.dead:
            return
        thread.ready.append(handle)
        if len(thread.ready) == 1 and not thread.held:
            self._runnable.append(thread)

    def take(self) -> tuple[ThreadQueue, asyncio.Handle] | None:
        """Remove the next callback and return it with its queue. Returns None if no thread can run."""
        runnable = self._runnable
        if not runnable:
            return None
        place = 0 if len(runnable) == 1 else int(self._random.random() * len(runnable))
        thread = runnable[place]
        handle = thread.ready.popleft()
        if not thread.ready:
            runnable[place] = runnable[-1]
            runnable.pop()
        return thread, handle

    def kill(self, thread: ThreadQueue) -> None:
        """End a thread: none of its callbacks runs from now on."""
        thread.dead = True
        thread.ready.clear()
        self._stop(thread)

    def freeze(self, thread: ThreadQueue) -> None:
        """Stop a thread until ``thaw``."""
        thread.held = True
        self._stop(thread)

    def thaw(self, thread: ThreadQueue) -> None:
        """Let a frozen thread go on."""
        if thread.held and not thread.dead:
            thread.held = False
            if thread.ready:
                self._runnable.append(thread)

    def _stop(self, thread: ThreadQueue) -> None:
        if thread in self._runnable:
            self._runnable.remove(thread)


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop that never sleeps. If no callback can run, time jumps to the next timer."""

    _running = False

    def __init__(self, seed: int, *, max_steps: int = 1_000_000) -> None:
        super().__init__()
        self.set_debug(False)
        self._now = 0.0
        self._numbers = 0
        self._max_steps = max_steps
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._closed = False
        self._thread = threading.get_ident()
        self.threads = ThreadScheduler(seed)
        self._outside_context = context_of(self.threads.outside)
        self.current = self.threads.outside
        self.steps = 0
        self.errors: list[str] = []
        """Exceptions that no code caught."""

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run until ``main`` ends, then drop everything else."""
        task: asyncio.Task[T] = self.create_task(main, context=context_of(self.threads.outside))
        events._set_running_loop(self)  # noqa: SLF001  (the documented way for event loops)
        self._running = True
        try:
            while not task.done():
                self._step()
        finally:
            self._running = False
            events._set_running_loop(None)  # noqa: SLF001
            self._drop_everything()
        return task.result()

    @property
    def now(self) -> float:
        """Virtual seconds since the beginning, by a correct clock."""
        return self._now

    def outside_in(self, delay: float, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Schedule a callback outside of the processes, in ``delay`` seconds by a correct clock."""
        self._plan(self._now + delay, callback, args, self._outside_context)

    def local_time(self) -> float:
        """Return the monotonic time of the process that runs now."""
        thread = self.current
        return thread.started + self._now * thread.speed

    def _step(self) -> None:
        taken = self.threads.take()
        if taken is None:
            self._jump()
            return
        thread, handle = taken
        self.steps += 1
        if self.steps > self._max_steps:
            raise SimulationError(f"{self.steps} steps in {self._now:.1f} virtual seconds: something runs in circles")
        if not handle.cancelled():
            self.current = thread
            handle._run()  # noqa: SLF001  (what a loop does with its handles)
            self.current = self.threads.outside

    def _jump(self) -> None:
        timers = self._timers
        while timers and (timers[0][2].cancelled() or self.threads.thread_of(timers[0][2]).dead):
            heappop(timers)
        if not timers:
            raise SimulationError(
                f"nothing left to run at {self._now:.1f}: all processes wait for something that is lost"
            )
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            handle = heappop(timers)[2]
            if not handle.cancelled():
                self.threads.put(handle)

    def _drop_everything(self) -> None:
        """Close the remaining tasks. Otherwise the garbage collector would close them at a random moment."""
        self._closed = True
        self._timers.clear()
        for thread in self.threads.queues:
            thread.ready.clear()
            for task in thread.tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
                try:
                    task.get_coro().close()
                except BaseException:  # noqa: BLE001, S112  (its process is gone)
                    continue
            thread.tasks.clear()

    # The methods from here on are what asyncio calls.

    def time(self) -> float:
        """Return the seconds since the beginning, by the clock of the process that runs now."""
        return self._now * self.current.speed

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Run a callback after those that its thread already has."""
        handle = asyncio.Handle(callback, args, self, context)
        if not self._closed:
            self.threads.put(handle)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Run a callback as ``call_soon`` does, because there is only one real thread."""
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
        """Run a callback in ``delay`` seconds, by the clock of the calling process."""
        return self._plan(self._now + delay / self.current.speed, callback, args, context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback at ``when``, by the clock of the calling process."""
        speed = self.current.speed
        due = when / speed
        # A timer that is rounded down is early by its own clock, and its caller may set it again for ever.
        while due * speed < when:
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
        """Do nothing: the timer is skipped when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
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
        """Return a task of the thread that the context belongs to."""
        self._numbers += 1
        context = contextvars.copy_context() if context is None else context
        task = SimulatedTask(coro, self._numbers, loop=self, name=str(name or f"task-{self._numbers}"), context=context)
        context.get(THREAD, self.threads.outside).keep(task)
        return task

    def is_running(self) -> bool:
        """Return whether ``run`` is under way."""
        return self._running

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note an exception that no code caught. It does not count if the thread that should catch it was killed."""
        error, future = context.get("exception"), context.get("future")
        if isinstance(future, Future) and future.thread.dead:
            return
        self.errors.append(f"{context.get('message')}: {error!r}" if error is not None else str(context.get("message")))

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:  # noqa: ARG002
        """Refuse: a real thread does not run in virtual time."""
        raise SimulationError(f"{func!r} would run in a thread, which no seed can repeat")

"""The processes of a simulated fleet but for its workers: their hosts, and what they do with durabus."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from durabus.bus.event_bus import EventBus
from durabus.errors import DurabusError, EventCancelled, EventFailed, NoAnswer, StoreError
from durabus.maintenance.services import Expiry
from durabus.model.claim import LockClaim
from durabus.model.event import Event
from durabus.model.payload import encode_payload
from durabus.model.query import EventQuery
from durabus.model.statuses import EventStatus
from durabus.queue.dead_letters import DLQInspector
from durabus.queue.locks import LockManager
from durabus.store.contract import EventStore
from durabus.testing.history.history import Holding, Line, VerbEnd
from durabus.testing.simulation.loop import THREAD, SimulationError, ThreadQueue, VirtualLoop, context_of
from durabus.testing.simulation.scenario import EventPlan, Scenario, plan_of
from durabus.worker.cancelling import cancel_events
from durabus.worker.heartbeat import STOP_TIMEOUT, Heartbeat

MAIN = "main"
BUS = "simulated"
LOCK = "ledger"
REQUESTED = "sim.requested"
"""The type of events whose value a process requests."""
TRY_AGAIN = 0.4
"""Seconds that a process waits after an error of the store."""
READ_EVERY = 1.0
LOOKS_FOR_PARENT = 20
LOOK_FOR_EXPIRED = 0.1
"""The part of a lease after which a server looks for expired claims again."""
LIVE = (EventStatus.PENDING, EventStatus.PROCESSING)
NEVER = 1e6


class Host:
    """One life of a process. A restart is another ``Host`` with the same name and pid, as can happen on a machine."""

    def __init__(
        self, loop: VirtualLoop, name: str, life: int, *, wall_ahead: float, started: float, speed: float
    ) -> None:
        self._loop = loop
        self.name = name
        self.life = life
        self.wall_ahead = wall_ahead
        """Seconds by which the wall clock is ahead of the store's."""
        self._started = started
        self._speed = speed
        self._threads: dict[str, ThreadQueue] = {}
        self.crashed = False
        self.frozen = False

    @property
    def id(self) -> str:
        """The name of this life."""
        return f"{self.name}.{self.life}"

    def run(self, work: Coroutine[Any, Any, Any], thread: str = MAIN) -> asyncio.Task[Any]:
        """Start a task in a thread of the process."""
        return self._loop.create_task(work, context=self.context(thread))

    def context(self, thread: str = MAIN) -> contextvars.Context:
        """Return the context of a thread. Callbacks of this context run in that thread."""
        queue = self._threads.get(thread)
        if queue is None:
            queue = self._loop.threads.new_thread(
                f"{self.id}/{thread}", owner=self, started=self._started, speed=self._speed
            )
            self._threads[thread] = queue
            if self.crashed:
                self._loop.threads.kill(queue)
            elif self.frozen:
                self._loop.threads.freeze(queue)
        return context_of(queue)

    def crash(self) -> None:
        """Kill the process, as kill -9 does."""
        self.crashed = True
        for queue in self._threads.values():
            self._loop.threads.kill(queue)

    def freeze(self) -> None:
        """Stop the process, as SIGSTOP does."""
        self.frozen = True
        for queue in self._threads.values():
            self._loop.threads.freeze(queue)

    def thaw(self) -> None:
        """Let the process go on, as SIGCONT does."""
        self.frozen = False
        for queue in self._threads.values():
            self._loop.threads.thaw(queue)


def host_here() -> Host:
    """Return the process that runs now."""
    owner = THREAD.get().owner
    if not isinstance(owner, Host):
        raise SimulationError("this runs outside of every simulated process")
    return owner


class Process:
    """One life of one process. ``write`` and ``now`` record its history outside of the store."""

    def __init__(
        self, scenario: Scenario, host: str, store: EventStore, write: Callable[[Line], None], now: Callable[[], float]
    ) -> None:
        self.scenario = scenario
        self.host = host
        self.store = store
        self._write = write
        self._now = now
        self.bus: EventBus | None = None
        self.done = False

    async def run(self) -> None:
        """Work until the work is done or the process is killed."""
        raise NotImplementedError

    async def shut_down(self) -> None:
        """Shut down, as after SIGTERM."""
        if self.bus is not None:
            await self.bus.shutdown(self.scenario.lease)
        self.done = True


class PublisherProcess(Process):
    """Publishes its events. ``left`` outlives the process, like a file: it has the events without acknowledgement."""

    def __init__(self, *args: Any, left: dict[int, str]) -> None:
        super().__init__(*args)
        self._left = left
        """The ids of the events that are still to be published, by number."""

    async def run(self) -> None:
        """Publish the events in the order of their times, each one until it is acknowledged."""
        self.bus = EventBus(self.store, name=BUS, lease=self.scenario.lease)
        plans = sorted((plan_of(self.scenario, number) for number in self._left), key=lambda plan: plan.at)
        for plan in plans:
            await asyncio.sleep(max(plan.at - self._now(), 0.0))
            await self._publish(self.bus, plan)
        self.done = True

    async def _publish(self, bus: EventBus, plan: EventPlan) -> None:
        while plan.number in self._left and not self.done:
            try:
                await bus.publish(
                    "sim.event",
                    {"number": plan.number, "group": plan.group},
                    event_id=self._left[plan.number],
                    delay=plan.delay,
                    ordering_key=plan.ordering_key,
                    idempotency_key=plan.idempotency_key,
                    max_attempts=plan.max_attempts,
                    expires=None if plan.expires is None else plan.delay + plan.expires,
                )
            except DurabusError:
                if not plan.given_up:
                    await asyncio.sleep(TRY_AGAIN)
                    continue
            self._left.pop(plan.number, None)  # a process that shuts down and its successor may both publish the event


class RequesterProcess(Process):
    """Requests the values of its events, all side by side. ``left`` outlives the process, as that of a publisher."""

    def __init__(self, *args: Any, left: dict[int, str]) -> None:
        super().__init__(*args)
        self._left = left
        """The ids of the events that have no answer yet, by number."""

    async def run(self) -> None:
        """Request each event at its time, until it has an answer."""
        bus = self.bus = EventBus(self.store, name=BUS, lease=self.scenario.lease)
        await asyncio.gather(*(self._request(bus, plan_of(self.scenario, number)) for number in self._left))
        self.done = True

    async def _request(self, bus: EventBus, plan: EventPlan) -> None:
        event_id = self._left[plan.number]
        await asyncio.sleep(max(plan.at - self._now(), 0.0))
        while plan.number in self._left and not self.done:
            since, value, error = self._now(), None, None
            try:
                value = await bus.request(
                    REQUESTED,
                    {"number": plan.number, "group": plan.group},
                    timeout=plan.patience,
                    event_id=event_id,
                    ordering_key=plan.ordering_key,
                    max_attempts=plan.max_attempts,
                )
            except (EventFailed, EventCancelled, NoAnswer, TimeoutError) as raised:
                error = type(raised).__name__
            except DurabusError:
                await asyncio.sleep(TRY_AGAIN)
                continue
            answer = None if value is None else encode_payload(value)
            self._write(VerbEnd(self._now(), self.host, "request", event_id, since, answer, error))
            self._left.pop(plan.number, None)  # see ``PublisherProcess``


class LogReaderProcess(Process):
    """Reads the log. ``place`` outlives the process: it has the position of the reader."""

    def __init__(self, *args: Any, place: list[str], seed: int) -> None:
        super().__init__(*args)
        self._place = place
        self._chance = random.Random(f"{seed}/reader")

    async def run(self) -> None:
        """Read small pages until the process ends."""
        while not self.done:
            try:
                page = await self.store.read_log(after=self._place[-1], limit=self._chance.randint(1, 12))
            except StoreError:
                await asyncio.sleep(TRY_AGAIN)
                continue
            if page.next == self._place[-1]:
                await asyncio.sleep(READ_EVERY)
            self._place.append(page.next)


class Locker(Process):
    """Works under a lock, as one process at a time."""

    async def run(self) -> None:
        """Claim the lock again and again, as long as there are faults."""
        locks = LockManager(self.store, lease=self.scenario.lease)
        chance = random.Random(f"{self.scenario.seed}/{self.host}")
        while not self.done and self._now() < self.scenario.chaos_ends:
            since = self._now()
            try:
                async with locks.hold(LOCK, wait=self.scenario.lease) as lock:
                    await self._use(lock, since, chance.choice((0.1, 0.5, 1.2)) * self.scenario.lease)
            except DurabusError:
                await asyncio.sleep(TRY_AGAIN)
        self.done = True

    async def _use(self, lock: LockClaim, since: float, seconds: float) -> None:
        self._write(Holding(self._now(), self.host, lock.key, lock.fence, since, "start"))
        try:
            await asyncio.sleep(seconds)
        finally:
            self._write(Holding(self._now(), self.host, lock.key, lock.fence, since, "end"))


class Administrator(Process):
    """Requeues dead letters and cancels events, a few times, some of them with their children."""

    async def run(self) -> None:
        """Look for dead letters and for live events from time to time."""
        inspector, chance = DLQInspector(self.store), random.Random(f"{self.scenario.seed}/administrator")
        requeues, cancels = self.scenario.requeues, self.scenario.cancels
        while (requeues or cancels) and not self.done and self._now() < self.scenario.chaos_ends:
            await asyncio.sleep(self.scenario.lease)
            try:
                for event in (await inspector.list(limit=1)).events if requeues else ():
                    requeues -= 1
                    await inspector.retry(event.event_id)
                live = (await self.store.find(EventQuery(bus=BUS, statuses=LIVE))).events if cancels else ()
                if live:
                    cancels -= 1
                    await self._cancel(live, chance)
            except DurabusError:
                continue
        self.done = True

    async def _cancel(self, live: Sequence[Event], chance: random.Random) -> None:
        """Cancel one of the events; in a scenario with children, a parent with its children if there is one soon."""
        parent = await self._parent() if self.scenario.children else None
        if parent is None:
            await self.store.cancel_event(chance.choice(live).event_id, reason="planned")
            return
        since = self._now()
        await cancel_events(self.store, parent, reason="planned", children=True)
        self._write(VerbEnd(self._now(), self.host, "cancel", parent, since))

    async def _parent(self) -> str | None:
        """Return the parent of a live event, as soon as there is one; None if that takes too long."""
        for _ in range(LOOKS_FOR_PARENT):
            live = (await self.store.find(EventQuery(bus=BUS, statuses=LIVE))).events
            found = next((event.parent_id for event in live if event.parent_id is not None), None)
            if found is not None:
                return found
            await asyncio.sleep(TRY_AGAIN)
        return None


class ServingProcess(Process):
    """Returns expired events to the queue, as a server does. It has no worker."""

    async def run(self) -> None:
        """Look for expired claims several times in a lease."""
        expiry = Expiry(self.store)
        while not self.done:
            await asyncio.sleep(LOOK_FOR_EXPIRED * self.scenario.lease)
            with suppress(StoreError):
                await expiry.run_once()


class LaneHeartbeat(Heartbeat[Any]):
    """A heartbeat in its own simulated thread, so that the seed decides how it interleaves with the event loop."""

    def start(self) -> None:
        """Start the heartbeat."""
        self._loop = asyncio.get_running_loop()
        self._see_loop()
        self._beating = host_here().run(self._keep_beating(), "heartbeat")

    def end(self) -> None:
        """Stop the heartbeat without waiting for its end."""
        self._cancel()

    async def stop(self, within: float = STOP_TIMEOUT) -> None:
        """Stop the heartbeat and wait for its end."""
        self.end()
        if self._beating is not None:
            await asyncio.wait({self._beating}, timeout=within)


def spawn_in_lane(_watch: object, work: Coroutine[Any, Any, None]) -> asyncio.Task[Any]:
    """Start a task of the process watch in the simulated thread of the heartbeat."""
    return host_here().run(work, "heartbeat")

"""One run: start the fleet, disturb it, heal it, wait until all events have ended, and record everything."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Callable

import msgspec

from durabus.errors import StoreError
from durabus.model.event import new_event_id
from durabus.store.contract import EventStore
from durabus.testing.history.completeness import remains
from durabus.testing.history.history import Disturbed, Line, RunSettings, encode
from durabus.testing.history.recorder import recorded_store
from durabus.testing.simulation.loop import VirtualLoop
from durabus.testing.simulation.places import MakePlace, StorePlace
from durabus.testing.simulation.processes import (
    BUS,
    TRY_AGAIN,
    Administrator,
    Host,
    Locker,
    LogReaderProcess,
    Process,
    PublisherProcess,
    RequesterProcess,
    ServingProcess,
)
from durabus.testing.simulation.scenario import BATCH_HANDLER, STORE_RESTART, Disturbance, Scenario, plan_of
from durabus.testing.simulation.workers import BusWorker, QueueWorker
from durabus.testing.simulation.world import EPOCH, world

PATIENCE = 400.0
"""Virtual seconds that a healed fleet may take to end all events. Breakers of 30 s open more than once."""
LOOK_EVERY = 0.5


class RunOutcome(msgspec.Struct, kw_only=True):
    """The outcome of a run."""

    scenario: Scenario
    lines: list[Line]
    steps: int
    seconds: float
    """The duration in virtual seconds."""
    fired: Counter[str]
    alarms: list[str]
    """Errors of durabus itself."""

    @property
    def trace(self) -> str:
        """A checksum. Two runs have the same one if everything in them happened alike."""
        return hashlib.sha256(encode(self.lines) + str(self.steps).encode()).hexdigest()


class Seat:
    """A process of the fleet in all its lives."""

    def __init__(self, name: str, make: Callable[[str, EventStore], Process]) -> None:
        self.name = name
        self.make = make
        self.lives = 0
        self.host: Host | None = None
        self.process: Process | None = None


class SimulationRun:
    """The director of a run. It is not part of the fleet, and nothing disturbs it."""

    def __init__(self, loop: VirtualLoop, scenario: Scenario, place: StorePlace) -> None:
        self._loop = loop
        self._scenario = scenario
        self._place = place
        self._chance = random.Random(f"{scenario.seed}/director")
        self.lines: list[Line] = []
        self.fired = place.fired
        self.alarms: list[str] = []
        self._read: list[str] = [""]
        self._ends: list[tuple[Host, asyncio.Task[None]]] = []
        self._left: list[dict[int, str]] = [{} for _ in range(scenario.publishers)]
        for number in scenario.events:
            self._left[plan_of(scenario, number).publisher][number] = new_event_id()
        self._asked = {number: new_event_id() for number in scenario.asked}
        worker = QueueWorker if scenario.queue else BusWorker
        self._seats = [
            *(Seat(f"worker-{n}", self._maker(worker)) for n in range(scenario.workers)),
            *(
                Seat(f"publisher-{n}", self._maker(PublisherProcess, left=self._left[n]))
                for n in range(scenario.publishers)
            ),
            Seat("reader", self._maker(LogReaderProcess, place=self._read, seed=scenario.seed)),
            *(Seat(f"locker-{n}", self._maker(Locker)) for n in range(scenario.lockers)),
            Seat("administrator", self._maker(Administrator)),
            *([Seat("requester", self._maker(RequesterProcess, left=self._asked))] if scenario.requests else []),
            *([Seat("server", self._maker(ServingProcess))] if scenario.served else []),
        ]

    async def direct(self) -> None:
        """Play the whole scenario."""
        scenario, loop = self._scenario, self._loop
        for seat in self._seats:
            self._start(seat)
        for disturbance in scenario.disturbances:
            await asyncio.sleep(max(disturbance.at - loop.now, 0.0))
            self._disturb(disturbance)
        await asyncio.sleep(max(scenario.chaos_ends - loop.now, 0.0))
        self._heal()
        await asyncio.sleep(2 * scenario.lease)  # late calls still arrive
        auditor = self._place.auditor()
        await auditor.open()
        drained = await self._come_to_rest(auditor)
        await self._end()
        self.lines.append(self._settings(drained=drained))
        self.lines += await remains(auditor, BUS)

    def _settings(self, *, drained: bool) -> RunSettings:
        scenario = self._scenario
        handlers = scenario.handler_names
        if scenario.queue:
            handlers = ("queue",)
        elif scenario.split:
            handlers = ()  # an event may end before the store knows the worker with the other handler
        return RunSettings(
            epoch=EPOCH,
            drained=drained,
            handlers=handlers,
            stops_in_time=not scenario.queue,
            strict=scenario.strict,
            shows_results=not scenario.queue,
            one_child=scenario.children,
            batched=(BATCH_HANDLER,) if scenario.batch else (),
            emitter="handler-0" if scenario.children and not scenario.awaited else None,
        )

    def _maker(self, kind: type[Process], **options: object) -> Callable[[str, EventStore], Process]:
        def make(host: str, store: EventStore) -> Process:
            return kind(self._scenario, host, store, self._write, self._now, **options)

        return make

    def _now(self) -> float:
        return self._loop.now

    def _write(self, line: Line) -> None:
        if not self._loop.is_closed():  # dead processes write lines when their tasks are closed
            self.lines.append(line)

    def _start(self, seat: Seat) -> None:
        skewed = self._scenario.skewed
        seat.lives += 1
        host = seat.host = Host(
            self._loop,
            seat.name,
            seat.lives,
            wall_ahead=self._chance.uniform(-3600, 3600) if skewed else 0.0,
            started=self._chance.uniform(0, 1e6),
            speed=self._chance.uniform(0.97, 1.03) if skewed else 1.0,
        )
        store = recorded_store(self._place.store_for(host), host.id, self._write, self._now)
        process = seat.process = seat.make(host.id, store)

        async def live() -> None:
            try:
                await store.open()
            except StoreError:
                # The process ends, and its supervisor starts it again.
                self._loop.outside_in(TRY_AGAIN, self._start_again, seat, host)
                return
            await process.run()

        host.run(live())

    def _disturb(self, disturbance: Disturbance) -> None:
        if disturbance.what == STORE_RESTART:
            self._place.restart_server(disturbance.seconds)
            return
        seat = self._seats[disturbance.target % len(self._seats)]
        host, process = seat.host, seat.process
        if host is None or process is None or host.crashed or host.frozen or process.done:
            return
        self.fired[disturbance.what] += 1
        self.lines.append(Disturbed(self._loop.now, host.id, disturbance.what))
        match disturbance.what:
            case "crash":
                host.crash()
                self._loop.outside_in(disturbance.seconds, self._start_again, seat, host)
            case "freeze":
                host.freeze()
                self._loop.outside_in(disturbance.seconds, self._thaw, host)
            case "cut off":
                self._place.cut_off(host, disturbance.seconds)
            case "shutdown":
                self._ends.append((host, host.run(process.shut_down())))
                self._loop.outside_in(disturbance.seconds, self._start_again, seat, host)

    def _start_again(self, seat: Seat, before: Host) -> None:
        if seat.host is before:
            self._start(seat)

    def _thaw(self, host: Host) -> None:
        if host.frozen and not host.crashed:
            self.lines.append(Disturbed(self._loop.now, host.id, "thaw"))
            host.thaw()

    def _heal(self) -> None:
        self._place.heal()
        for seat in self._seats:
            host, process = seat.host, seat.process
            if host is None or process is None:
                continue
            self._thaw(host)
            if host.crashed or (process.done and isinstance(process, BusWorker | QueueWorker | LogReaderProcess)):
                self._start(seat)

    async def _come_to_rest(self, auditor: EventStore) -> bool:
        """Wait until every event has ended. Returns False if that takes too long."""
        deadline = self._loop.now + PATIENCE
        while self._loop.now < deadline:
            await asyncio.sleep(LOOK_EVERY)
            counts = await auditor.counts(BUS)
            head = await auditor.log_head()
            published = not any((*self._left, self._asked))
            if published and not counts.pending + counts.processing and self._read[-1] == head:
                return True
        return False

    async def _end(self) -> None:
        """Shut down all running processes, as a deployment does."""
        for seat in self._seats:
            if seat.host is not None and seat.process is not None and not seat.process.done:
                self._ends.append((seat.host, seat.host.run(seat.process.shut_down())))
        ends = [end for host, end in self._ends if not host.crashed]
        if ends:
            await asyncio.wait(ends, timeout=PATIENCE)
        for end in ends:
            if not end.done():
                self.alarms.append(f"a shutdown hangs: {end!r}")
            elif end.exception() is not None:
                self.alarms.append(f"a shutdown failed: {end.exception()!r}")


def simulate(scenario: Scenario, make_place: MakePlace) -> RunOutcome:
    """Play a scenario to its end. The same scenario always has the same outcome."""
    loop = VirtualLoop(scenario.seed)
    with world(loop, scenario.seed) as alarms:
        place = make_place(loop, scenario)
        try:
            run = SimulationRun(loop, scenario, place)
            loop.run(run.direct())
        finally:
            place.close()
    return RunOutcome(
        scenario=scenario,
        lines=run.lines,
        steps=loop.steps,
        seconds=loop.now,
        fired=run.fired,
        alarms=[*run.alarms, *alarms.messages, *loop.errors],
    )

"""Schedulers in virtual time: they crash and freeze, calls and replies get lost, and each slot has one tick.

Each planted bug below is caught by these seeds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from unittest.mock import patch

import msgspec
import pytest
from msgspec.structs import replace
from tests.simulation.judge import PLACES, scenario_of

from durabus.errors import ScheduleChanged, StoreError
from durabus.model.claim import Claim, ClaimRequest
from durabus.model.event import Event, NewEvent
from durabus.model.query import EventQuery
from durabus.model.settlement import Complete, Settlement
from durabus.schedules.reading import LIVE
from durabus.schedules.schedule import state_bus
from durabus.schedules.scheduler import Scheduler
from durabus.schedules.schedules import Schedules
from durabus.store.contract import EventStore
from durabus.testing.simulation.loop import VirtualLoop
from durabus.testing.simulation.network import Fault
from durabus.testing.simulation.places import StorePlace
from durabus.testing.simulation.processes import BUS, TRY_AGAIN, Host
from durabus.testing.simulation.world import world

SEEDS = range(1, 31)
NODES = 3
EVERY = 0.25
CHAOS = 60.0
"""Virtual seconds that the faults last."""
REST = 30.0
"""Virtual seconds after which a healed fleet has caught up."""
FAULTS = (Fault.REFUSED, Fault.REPLY_LOST, Fault.LATE_REQUEST, Fault.DUPLICATE, Fault.HINTS_LOST, Fault.SLOW)


class Fleet:
    """Some nodes with a scheduler, and an administrator who asks for ticks."""

    def __init__(self, loop: VirtualLoop, place: StorePlace, seed: int) -> None:
        self._loop = loop
        self._place = place
        self._chance = random.Random(f"{seed}/schedules")
        self._hosts: dict[str, Host] = {}
        self._lives = 0
        self._has_put = False
        self.asked: list[str] = []
        """Ticks whose request returned."""
        self.wrong: list[str] = []

    async def direct(self) -> None:
        """Disturb the fleet, heal it, and check what it published."""
        self._start("administrator", self._administrate)
        for number in range(NODES):
            self._start(f"node-{number}", self._schedule)
        while self._loop.now < CHAOS:
            await asyncio.sleep(self._chance.uniform(0.2, 3))
            self._disturb(f"node-{self._chance.randrange(NODES)}")
        self._place.heal()
        for host in self._hosts.values():
            host.thaw()
        await asyncio.sleep(REST)
        auditor = self._place.auditor()
        await auditor.open()
        schedules = Schedules(auditor, BUS)
        await schedules.delete("s")
        await asyncio.sleep(REST)
        await self._check(auditor)

    def _start(self, name: str, work: Callable[[EventStore], Awaitable[None]]) -> None:
        self._lives += 1
        ahead, started = self._chance.uniform(-3600, 3600), self._chance.uniform(0, 1e6)
        host = Host(self._loop, name, self._lives, wall_ahead=ahead, started=started, speed=1.0)
        self._hosts[name] = host
        store = self._place.store_for(host)

        async def live() -> None:
            try:
                await store.open()
            except StoreError:  # the process ends, and its supervisor starts it again
                self._loop.outside_in(TRY_AGAIN, self._start, name, work)
                return
            await work(store)

        host.run(live())

    def _disturb(self, name: str) -> None:
        host, seconds = self._hosts[name], self._chance.uniform(0.1, 5)
        if host.crashed or host.frozen:
            return
        if self._chance.random() < 0.7:
            host.crash()
            self._loop.outside_in(seconds, self._start, name, self._schedule)
        else:
            host.freeze()
            self._loop.outside_in(seconds, host.thaw)

    async def _schedule(self, store: EventStore) -> None:
        Scheduler(store, BUS).start()
        await asyncio.Event().wait()

    async def _administrate(self, store: EventStore) -> None:
        schedules = Schedules(store, BUS)
        while not self._has_put:
            with suppress(StoreError):
                await schedules.put("s", EVERY, "sim.tick", catch_up="all", overlap="parallel")
                self._has_put = True
            await asyncio.sleep(TRY_AGAIN)
        while self._loop.now < CHAOS:
            await asyncio.sleep(self._chance.uniform(0.1, 2))
            calls = [self._ask(schedules) for _ in range(self._chance.randint(1, 3))]
            await asyncio.gather(*calls)

    async def _ask(self, schedules: Schedules) -> None:
        with suppress(StoreError, ScheduleChanged):  # then it may have been asked for, or not
            self.asked.append(await schedules.run_now("s"))

    async def _check(self, auditor: EventStore) -> None:
        slots: list[int] = []
        ids: set[str] = set()
        before: int | None = None
        while True:
            page = await auditor.find(EventQuery(bus=BUS, type="sim.tick", before_id=before, limit=1_000))
            slots += [_slot(event) for event in page.events if "schedule_slot" in event.metadata]
            ids |= {event.event_id for event in page.events}
            before = page.next_before_id
            if before is None:
                break
        slots.sort()
        expected = range(slots[0], slots[-1] + 1, round(EVERY * 1000)) if slots else range(0)
        if len(set(slots)) != len(slots):
            self.wrong.append("a slot has two ticks")
        if set(slots) != set(expected):
            self.wrong.append(f"slots are left out: {sorted(set(expected) - set(slots))}")
        if len(expected) * EVERY < CHAOS:
            self.wrong.append(f"the schedule has stopped after {len(expected)} slots")
        if lost := set(self.asked) - ids:
            self.wrong.append(f"{len(lost)} of {len(self.asked)} ticks that were asked for are lost")
        live = (await auditor.find(EventQuery(bus=state_bus(BUS), statuses=LIVE))).events
        if live:
            self.wrong.append(f"a deleted schedule has {len(live)} live states")


def _slot(event: Event) -> int:
    return round(datetime.fromisoformat(event.metadata["schedule_slot"]).timestamp() * 1000)


def play(seed: int, store: str = "memory") -> list[str]:
    """Run a seed, and return what was wrong."""
    scenario = replace(
        scenario_of(seed, store), lease=5.0, faults=FAULTS, often=0.15, presence=seed % 2 == 0, skewed=True
    )
    loop = VirtualLoop(seed)
    with world(loop, seed) as alarms:
        place = PLACES[store](loop, scenario)
        try:
            fleet = Fleet(loop, place, seed)
            loop.run(fleet.direct())
        finally:
            place.close()
    return [*fleet.wrong, *alarms.messages]


@pytest.mark.parametrize("seed", SEEDS)
def test_each_slot_has_one_tick_whatever_dies(seed: int) -> None:
    assert play(seed) == []


@pytest.mark.parametrize("store", ["sqlite", "replicated_log"])
@pytest.mark.parametrize("seed", SEEDS[:4])
def test_the_same_holds_on_other_stores(store: str, seed: int) -> None:
    assert play(seed, store) == []


async def ticks_after_the_state(
    self: Scheduler, settlements: Sequence[Settlement], asked: ClaimRequest | None
) -> list[Claim]:
    """Plants: the ticks are stored in a call of their own, after the step that moves the schedule on."""
    ticks: list[NewEvent] = []
    bare: list[Settlement] = []
    for one in settlements:
        if isinstance(one, Complete) and one.children:
            ticks += one.children[:-1]
            bare.append(msgspec.structs.replace(one, children=one.children[-1:]))
        else:
            bare.append(one)
    claims = await EXCHANGE(self, bare, asked)
    await self._store.add_events(ticks)
    return claims


EXCHANGE = Scheduler._exchange


PLANTED: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "ticks after the state": lambda: patch.object(Scheduler, "_exchange", ticks_after_the_state),
    "lost race not noticed": lambda: patch.object(Schedules, "_has_won", staticmethod(lambda *_: True)),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str) -> None:
    with PLANTED[bug]():
        assert any(play(seed) for seed in SEEDS)

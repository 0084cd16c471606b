"""Two rounds of durable work: a saga under kills, and a kill between two handlers of many events."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
from tests.lab.crew import Crew
from tests.lab.journal import CHARGES, TICKS
from tests.lab.life import Life, line_writer, lines_of, wall
from tests.lab.round import BUS, HOST, Report
from tests.lab.workloads import (
    AFTER_CHILDREN,
    BEFORE_CHILDREN,
    CHILDREN,
    FIRST,
    GO_ON,
    ORDER,
    PAIR,
    SECOND,
)
from tests.simulation.counts import remembered, takeovers

from durabus import EventStatus, EventStore, new_event, open_store
from durabus.clock import monotonic
from durabus.errors import StoreError
from durabus.testing.history.checker import check
from durabus.testing.history.completeness import remains
from durabus.testing.history.history import Effect, History, Line, RunSettings, Violation
from durabus.testing.history.recorder import recorded_store
from durabus.worker.progress import KEEP_AFTER

LOOK_EVERY = 0.05
CHUNK = 100
BATCH, BETWEEN_BATCHES = 10, 0.01
TURNS = 6
"""Turns of the event loop, and one to spare, from the timer of a write to the call of the store."""


class SagaPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A saga for each of some orders, and a kill -9 of one worker again and again."""

    orders: int
    kill_every: float = 0.5
    kills: int | None = None
    """How many kills there are at most; None: until all orders have ended."""
    step_seconds: float = 0.02
    workers: int = 4
    concurrency: int = 8
    lease: float = 5.0
    within: float = 600.0


class DurableRound:
    """What both rounds share: a crew on one store, and the history at the end."""

    def __init__(self, url: str, folder: Path, *, seed: int, direct: str | None = None) -> None:
        self._url = url
        self._direct = direct or url
        self._folder = folder
        self._random = random.Random(seed)
        self._write = line_writer(folder / f"{HOST}.jsonl")

    def _crew(self, life: Life, workers: int) -> Crew:
        return Crew(life, workers, lives=(0.0, 0.0), skew=0.0, disturbed=self._write, rng=self._random)

    async def _history(self, settings: RunSettings) -> list[Line]:
        lines = [line for file in sorted(self._folder.glob("*.jsonl")) for line in lines_of(file)]
        lines.append(settings)
        auditor = await open_store(self._direct)
        try:
            return [*lines, *await remains(auditor, BUS)]
        finally:
            await auditor.close()

    async def _all_ended(self, store: EventStore, crew: Crew) -> bool:
        crew.replace_the_dead()
        try:
            counts = await store.counts()
        except StoreError:
            return False
        return counts.pending + counts.processing == 0


class SagaRound(DurableRound):
    """Every charge of every order exactly once, whatever is killed."""

    async def run(self, plan: SagaPlan) -> Report:
        life = Life(
            host="worker",
            url=self._url,
            folder=str(self._folder),
            lease=plan.lease,
            concurrency=plan.concurrency,
            handler_seconds=plan.step_seconds,
            workload="saga",
        )
        store = recorded_store(await open_store(self._url), HOST, self._write, wall)
        crew = self._crew(life, plan.workers)
        try:
            async with asyncio.timeout(plan.within):
                await crew.all_up()
                for first in range(0, plan.orders, CHUNK):
                    chunk = range(first, min(first + CHUNK, plan.orders))
                    await store.add_events([new_event(ORDER, {"order": number}) for number in chunk])
                await self._kill_until_all_ended(store, crew, plan)
                await crew.stop()
        finally:
            crew.end()
            await store.close()
        lines = await self._history(RunSettings(tolerance=0.05, repeats=True))
        history, charges = History(lines), self._charges()
        counts = crew.counts + Counter(
            {
                "orders": plan.orders,
                "charges": len(charges),
                "charges sent again with the same key": charges.total() - len(charges),
                "steps remembered": remembered(history),
                "takeovers": takeovers(history),
            }
        )
        return Report(counts=counts, wrong=[*check(lines), *_unpaid(history, charges, plan.orders)], lines=lines)

    async def _kill_until_all_ended(self, store: EventStore, crew: Crew, plan: SagaPlan) -> None:
        next_kill = monotonic() + plan.kill_every
        while not await self._all_ended(store, crew):
            if monotonic() >= next_kill and (plan.kills is None or crew.counts["kills"] < plan.kills):
                crew.kill_one()
                next_kill = max(next_kill + plan.kill_every, monotonic())
            await asyncio.sleep(LOOK_EVERY)

    def _charges(self) -> Counter[str]:
        return Counter((self._folder / CHARGES).read_text().splitlines())


def _unpaid(history: History, charges: Counter[str], orders: int) -> Iterator[Violation]:
    """Yield what is missing or too much: an order that did not complete, a charge, or a child."""
    wanted = {
        f"{number} {key}"
        for number in range(orders)
        for key in (
            *(f"{ORDER}/{name}" for name in (*BEFORE_CHILDREN, *AFTER_CHILDREN)),
            *(f"{kind}/book" for kind in CHILDREN),
        )
    }
    for key in sorted(wanted ^ charges.keys()):
        yield Violation("saga", f"charge {key!r} is {'missing' if key in wanted else 'not of this saga'}")
    children: dict[str | None, list[str]] = {}
    for event in history.finals.values():
        children.setdefault(event.parent_id, []).append(event.type)
        if event.status is not EventStatus.COMPLETED:
            yield Violation("saga", f"event {event.id} ({event.type}) is {event.status}: {event.errors}")
    for event in history.finals.values():
        if event.type == ORDER and sorted(children.get(event.event_id, ())) != sorted(CHILDREN):
            yield Violation("saga", f"order {event.id} has the children {sorted(children.get(event.event_id, ()))}")


class PairRound(DurableRound):
    """A kill -9 while the second handlers of many events run: the store knows the successes of the first ones."""

    async def run(self, events: int, *, strict: bool, within: float = 120.0) -> Report:
        """Kill the only worker once all second handlers run, and let another one finish."""
        life = Life(
            host="worker",
            url=self._url,
            folder=str(self._folder),
            lease=3.0,
            concurrency=events,
            handler_seconds=0.0,
            workload="pair",
            results="strict" if strict else "soon",
        )
        store = recorded_store(await open_store(self._url), HOST, self._write, wall)
        crew = self._crew(life, 1)
        try:
            async with asyncio.timeout(within):
                await crew.all_up()
                for _ in range(events // BATCH):  # their successes are not all of the same age
                    await store.add_events([new_event(PAIR, None) for _ in range(BATCH)])
                    await asyncio.sleep(BETWEEN_BATCHES)
                while self._begun(life) < events:  # noqa: ASYNC110  (another process writes the file)
                    await asyncio.sleep(0.002)
                died = crew.kill_one()
                assert died is not None
                (self._folder / GO_ON).touch()
                while not await self._all_ended(store, crew):  # noqa: ASYNC110  (other processes end them)
                    await asyncio.sleep(LOOK_EVERY)
                await crew.stop()
        finally:
            crew.end()
            await store.close()
        settings = RunSettings(
            tolerance=0.05, repeats=True, handlers=(FIRST, SECOND), strict=strict, shows_results=True
        )
        lines = await self._history(settings)
        history = History(lines)
        again = list(_again(history))
        spared = _died_young(history, died, self._ticks(life))
        counts = crew.counts + Counter(
            {
                "events": events,
                "first handlers that ran again": len(again),
                "successes that died before the store could know them": len(spared),
            }
        )
        wrong = [
            Violation("results", f"{FIRST} of event {id_} ran again, although its success was old enough to be known")
            for id_ in again
            if id_ not in spared
        ]
        return Report(counts=counts, wrong=[*check(lines), *wrong], lines=lines)

    def _ticks(self, life: Life) -> list[float]:
        lines = (self._folder / f"{life.host}-1{TICKS}").read_text().splitlines(keepends=True)
        return [float(line) for line in lines if line.endswith("\n")]

    def _begun(self, life: Life) -> int:
        ledger = msgspec.structs.replace(life, host=f"{life.host}-1").ledger
        return sum(
            isinstance(line, Effect) and line.handler == SECOND and line.what == "start" for line in lines_of(ledger)
        )


def _again(history: History) -> Iterator[int]:
    """Yield the events whose first handler began under more than one claim."""
    begun = Counter(one.id for one in history.effects if one.handler == FIRST and one.what == "start")
    return (id_ for id_, times in begun.items() if times > 1)


def _died_young(history: History, died: float, ticks: list[float]) -> set[int]:
    """Return the events whose first success the store could not know when the worker died.

    The worker had begun to write each success that was ``KEEP_AFTER`` seconds old some turns of its event loop before.
    A write that had no reply when the worker died may be lost.
    """
    seen = ticks[-TURNS] if len(ticks) >= TURNS else 0.0
    done = {one.id: one.at for one in reversed(history.effects) if one.handler == FIRST and one.what == "done"}
    written = {
        subject.id
        for call in history.of("keep_results")
        for subject in call.invoke.subjects
        if call.ends < died or not call.invoke.host.endswith("-1")
    }
    begun = {subject.id for call in history.of("keep_results") for subject in call.invoke.subjects}
    return {id_ for id_, at in done.items() if id_ not in written and (id_ in begun or at + KEEP_AFTER > seen)}

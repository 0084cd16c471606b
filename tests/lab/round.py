"""One round: a crew works while the lab disturbs it, its server and its network; then the checker judges."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from tests.lab.crew import BrokenSync, Crew
from tests.lab.failpoints import all_failpoints
from tests.lab.life import SYNC_BROKEN, Life, line_writer, lines_of, wall
from tests.lab.mixed_work import BATCHES, HANDLER, SHARED, MixedEvents
from tests.simulation.counts import dead_letters, refused, takeovers, verbs

from durabus import EventStore, StoreUnavailableError, open_store
from durabus.errors import DurabusError, StoreError
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.query import EventQuery
from durabus.model.settlement import Release
from durabus.model.statuses import LIVE
from durabus.testing.history.checker import check
from durabus.testing.history.completeness import remains
from durabus.testing.history.history import Disturbed, History, Invoke, Line, Ok, RunSettings, Unknown, Violation
from durabus.testing.history.recorder import recorded_store
from durabus.worker.cancelling import cancel_events

TICK = 0.01
BACKLOG = 1000
BUS = "default"
HOST = "publisher"
SLEPT_OVER = 20
"""The number of events that the sleeper claims and keeps until other workers have them."""
CANCEL_EVERY = 0.1
FULL_FOR = (0.05, 0.4)
DISK_ERROR = "SQLite: disk I/O error"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What happens in a round."""

    kills: int
    """The round goes on until so many processes were killed."""
    events: int = 0
    """The round also goes on until so many events were published."""
    keys: int = 20
    """Ordering keys that a fifth of the events share."""
    workers: int = 4
    concurrency: int = 8
    handler_seconds: float = 0.01
    lease: float = 1.0
    lives: tuple[float, float] = (0.02, 0.5)
    freezes: int = 1
    server_kills: int = 0
    cuts: int = 0
    """How often the network is cut, half of the times between a request and its reply."""
    full_disks: int = 0
    """How often a disk is full for a while: that of a worker, or the server's if there is one."""
    broken_syncs: int = 0
    """How many workers get a disk that no longer syncs."""
    skew: float = 0.0
    batch: int = 20
    pause: float = 0.05
    tolerance: float = 0.05
    """By how many seconds the store's clock may differ from the host's."""
    failpoints: bool = True
    within: float = 300.0


class Report(msgspec.Struct, kw_only=True):
    """The faults of a round, and the promises that were broken."""

    counts: Counter[str]
    wrong: list[Violation]
    lines: list[Line]
    """The history that was judged."""


class Disturbances(msgspec.Struct, frozen=True, kw_only=True):
    """The faults that the lab can cause in a store from outside."""

    kill_server: Callable[[], None] | None = None
    cut: Callable[[], None] | None = None
    swallow: Callable[[], None] | None = None
    fill_disk: Callable[[float], None] | None = None
    """Fills the disk of the server for a number of seconds."""


class Round:
    """One round. The crew opens the store by ``url``; the auditor opens it by ``direct`` at the end."""

    def __init__(
        self, plan: Plan, url: str, folder: Path, *, seed: int, outside: Disturbances, direct: str | None = None
    ) -> None:
        self._plan = plan
        self._url = url
        self._direct = direct or url
        self._folder = folder
        self._outside = outside
        self._random = random.Random(seed)
        self._write = line_writer(folder / f"{HOST}.jsonl")
        self._counts: Counter[str] = Counter()

    async def run(self) -> Report:
        plan = self._plan
        life = Life(
            host="worker",
            url=self._url,
            folder=str(self._folder),
            lease=plan.lease,
            concurrency=plan.concurrency,
            handler_seconds=plan.handler_seconds,
        )
        store = recorded_store(await open_store(self._url), HOST, self._write, wall)
        crew = Crew(life, plan.workers, lives=plan.lives, skew=plan.skew, disturbed=self._write, rng=self._random)
        try:
            async with asyncio.timeout(plan.within):
                await crew.all_up()
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._publish(store, crew))
                    tasks.create_task(self._sleep_over_leases(store, crew))
                    tasks.create_task(self._cancel(store, crew))
                    tasks.create_task(self._disturb(crew))
                await self._rest(store, crew)
                await crew.stop()
            return await self._judge(crew)
        finally:
            crew.end()
            await store.close()

    def _over(self, crew: Crew) -> bool:
        return crew.counts["kills"] >= self._plan.kills and self._counts["events"] >= self._plan.events

    async def _publish(self, store: EventStore, crew: Crew) -> None:
        """Publish batches. A batch with an unknown outcome is sent again, and must not be stored twice."""
        events = MixedEvents(self._random, self._plan.keys if store.features.ordering_keys else 0)
        while not self._over(crew):
            if await self._is_too_far_behind(store):
                await asyncio.sleep(self._plan.pause)
                continue
            batch = events.batch(self._plan.batch)
            while True:
                try:
                    await store.add_events(batch)
                    break
                except StoreUnavailableError:
                    self._counts["batches sent again"] += 1
                    await asyncio.sleep(0.05)
            self._counts["events"] += len(batch)
            await asyncio.sleep(self._plan.pause)

    async def _sleep_over_leases(self, store: EventStore, crew: Crew) -> None:
        """Claim events, sleep until other workers have taken them over, then try to write."""
        lease = self._plan.lease
        while not self._over(crew):
            request = ClaimRequest(bus=BUS, worker_id="sleeper", token=new_token(), limit=SLEPT_OVER, lease=lease)
            try:
                refs = [claim.ref for claim in await store.claim_next_events(request)]
                await asyncio.sleep(1.3 * lease if refs else self._plan.pause)
                await store.renew_event_claims(refs, lease=lease)
                await store.settle_events([Release(ref) for ref in refs])
            except StoreError:
                await asyncio.sleep(self._plan.pause)

    async def _cancel(self, store: EventStore, crew: Crew) -> None:
        """Cancel one of the newest live events with its children, again and again; half of the times a parent."""
        newest = EventQuery(bus=BUS, statuses=tuple(LIVE), limit=100)
        while not self._over(crew):
            await asyncio.sleep(CANCEL_EVERY)
            try:
                live = (await store.find(newest)).events
                parents = [event.parent_id for event in live if event.parent_id is not None]
                if not live:
                    continue
                wants_parent = parents and self._random.random() < 0.5
                chosen = self._random.choice(parents if wants_parent else [event.event_id for event in live])
                cancelled = await cancel_events(store, chosen, reason="planned", children=True)
            except DurabusError:
                continue  # it has ended, or the store cannot be reached
            self._counts["children cancelled"] += sum(event.parent_id is not None for event in cancelled[1:])

    async def _is_too_far_behind(self, store: EventStore) -> bool:
        """Return whether too many events wait: on a slow machine a round would end with hours of work."""
        try:
            return (await store.counts()).pending > BACKLOG
        except StoreError:
            return False

    async def _disturb(self, crew: Crew) -> None:
        plan = self._plan
        fates = [*(all_failpoints() if plan.failpoints else ()), *[BrokenSync()] * plan.broken_syncs]
        crew.fates = self._random.sample(fates, len(fates))
        todo: list[tuple[Callable[[Crew], Awaitable[bool]], list[float]]] = [
            (what, sorted(self._random.uniform(0.05, 0.9) * plan.kills for _ in range(count)))
            for what, count in (
                (self._freeze, plan.freezes),
                (self._kill_server, plan.server_kills),
                (self._cut, plan.cuts),
                (self._fill_disk, plan.full_disks),
            )
        ]
        while not self._over(crew) or any(at for _, at in todo) or crew.any_disturbed:
            await asyncio.sleep(TICK)
            crew.replace_the_dead()
            crew.kill_the_old()
            if self._over(crew):
                crew.fates = []
            for what, at in todo:
                if at and crew.counts["kills"] >= at[0] and await what(crew):
                    at.pop(0)

    async def _freeze(self, crew: Crew) -> bool:
        return crew.freeze_one(self._plan.lease + 0.5)

    async def _kill_server(self, _crew: Crew) -> bool:
        assert self._outside.kill_server is not None
        await asyncio.to_thread(self._outside.kill_server)
        self._counts["server kills"] += 1
        return True

    async def _cut(self, _crew: Crew) -> bool:
        assert self._outside.cut is not None
        assert self._outside.swallow is not None
        (self._outside.swallow if self._counts["network cuts"] % 2 else self._outside.cut)()
        self._counts["network cuts"] += 1
        return True

    async def _fill_disk(self, crew: Crew) -> bool:
        seconds = self._random.uniform(*FULL_FOR)
        if self._outside.fill_disk is None:
            return crew.fill_disk_of_one(seconds)
        self._outside.fill_disk(seconds)
        self._counts["full disks"] += 1
        return True

    async def _rest(self, store: EventStore, crew: Crew) -> None:
        """Wait until every event has ended. The lab disturbs nothing any more."""
        while True:
            crew.replace_the_dead()
            try:
                counts = await store.counts()
                if counts.pending + counts.processing == 0:
                    return
            except StoreError:
                self._counts["counts not answered"] += 1
            await asyncio.sleep(0.05)

    async def _judge(self, crew: Crew) -> Report:
        lines = [line for file in sorted(self._folder.glob("*.jsonl")) for line in lines_of(file)]
        lines.append(
            RunSettings(
                tolerance=self._plan.tolerance,
                handlers=(HANDLER,),
                repeats=True,
                shows_results=True,
                one_child=True,
                batched=(BATCHES,),
                emitter=HANDLER,
            )
        )
        auditor = await open_store(self._direct)
        try:
            lines += await remains(auditor, BUS)
        finally:
            await auditor.close()
        wrong = check(lines)
        history = History(lines)
        answered = {line.call for line in lines if isinstance(line, Ok)}
        self._counts["calls"] = sum(isinstance(line, Invoke) for line in lines)
        self._counts["unknown outcomes"] = self._counts["calls"] - len(answered)
        self._counts["broken syncs"] = sum(isinstance(line, Disturbed) and line.what == SYNC_BROKEN for line in lines)
        self._counts["writes refused by the disk"] = sum(
            isinstance(line, Unknown) and DISK_ERROR in line.error for line in lines
        )
        self._counts["takeovers"] = takeovers(history)
        self._counts["stale writes refused"] = refused(history)
        self._counts["dead letters"] = dead_letters(history)
        self._counts["handlers run for another worker"] = sum(
            handler == SHARED for _, _, handler, _ in history.handler_grants
        )
        self._counts += verbs(history)
        return Report(counts=self._counts + crew.counts, wrong=wrong, lines=lines)

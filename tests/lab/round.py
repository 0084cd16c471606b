"""One round: a crew works on a store while it, its server and its network are disturbed; then the checker judges."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
from tests.lab.crew import Crew
from tests.lab.failpoints import all_failpoints
from tests.lab.life import HANDLER, Life, line_writer, wall

from durabus import EventQuery, EventStore, NewEvent, StoreUnavailableError, new_event, open_store
from durabus.errors import StoreError
from durabus.testing.history.checker import check
from durabus.testing.history.claims import dead_letters, refused, takeovers
from durabus.testing.history.history import History, Violation
from durabus.testing.history.lines import Final, Invoke, Line, Logged, Ok, Settings, decode
from durabus.testing.history.recorder import recorded_store

TICK = 0.01
BACKLOG = 1000
HOST = "publisher"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What happens in a round."""

    kills: int
    """The round goes on until so many processes were killed."""
    workers: int = 4
    concurrency: int = 8
    handler_seconds: float = 0.01
    lease: float = 1.0
    lives: tuple[float, float] = (0.02, 0.5)
    freezes: int = 1
    server_kills: int = 0
    cuts: int = 0
    """How often the network is cut, half of the times between a request and its answer."""
    skew: float = 0.0
    batch: int = 20
    pause: float = 0.05
    tolerance: float = 0.05
    """By how many seconds the store's clock may differ from the host's."""
    failpoints: bool = True
    within: float = 300.0


class Report(msgspec.Struct, kw_only=True):
    """What was done, and what came of it."""

    counts: Counter[str]
    wrong: list[Violation]


class Disturbances(msgspec.Struct, frozen=True, kw_only=True):
    """What can be done to a store from outside."""

    kill_server: Callable[[], None] | None = None
    cut: Callable[[], None] | None = None
    swallow: Callable[[], None] | None = None


class Round:
    """``url`` is how the crew reaches the store, ``direct`` how the auditor does when all is over."""

    def __init__(
        self, plan: Plan, url: str, folder: Path, *, seed: int, outside: Disturbances, direct: str | None = None
    ) -> None:
        self._plan = plan
        self._url = url
        self._direct = direct or url
        self._folder = folder
        self._outside = outside
        self._random = random.Random(seed)
        self._write = line_writer(str(folder), HOST)
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
                    tasks.create_task(self._disturb(crew))
                await self._rest(store, crew)
                await crew.stop()
            return await self._judge(crew)
        finally:
            crew.end()
            await store.close()

    def _over(self, crew: Crew) -> bool:
        return crew.counts["kills"] >= self._plan.kills

    async def _publish(self, store: EventStore, crew: Crew) -> None:
        """A batch whose fate is unknown is sent again, and must not be there twice."""
        keys = store.features.ordering_keys
        while not self._over(crew):
            if await self._is_too_far_behind(store):
                await asyncio.sleep(self._plan.pause)
                continue
            batch = [self._event(keys=keys) for _ in range(self._plan.batch)]
            while True:
                try:
                    await store.add_events(batch)
                    break
                except StoreUnavailableError:
                    self._counts["batches sent again"] += 1
                    await asyncio.sleep(0.05)
            self._counts["events"] += len(batch)
            await asyncio.sleep(self._plan.pause)

    async def _is_too_far_behind(self, store: EventStore) -> bool:
        """On a slow machine a round would otherwise end with hours of work."""
        try:
            return (await store.counts()).pending > BACKLOG
        except StoreError:
            return False

    def _event(self, *, keys: bool) -> NewEvent:
        kind = self._random.choices(("lab.works", "lab.fails_once", "lab.fails"), (96, 3, 1))[0]
        key = f"key-{self._random.randrange(20)}" if keys and self._random.random() < 0.2 else None
        return new_event(kind, None, max_attempts=3 if kind == "lab.fails" else None, ordering_key=key)

    async def _disturb(self, crew: Crew) -> None:
        plan = self._plan
        crew.failpoints = self._random.sample(found := all_failpoints(), len(found)) if plan.failpoints else []
        at = {
            name: sorted(self._random.uniform(0.05, 0.9) * plan.kills for _ in range(count))
            for name, count in (("freeze", plan.freezes), ("server", plan.server_kills), ("cut", plan.cuts))
        }
        while not self._over(crew) or any(at.values()) or crew.any_frozen:
            await asyncio.sleep(TICK)
            crew.replace_the_dead()
            crew.kill_the_old()
            done = crew.counts["kills"]
            if at["freeze"] and done >= at["freeze"][0] and crew.freeze_one(plan.lease + 0.5):
                at["freeze"].pop(0)
            if at["server"] and done >= at["server"][0] and self._outside.kill_server is not None:
                at["server"].pop(0)
                await asyncio.to_thread(self._outside.kill_server)
                self._counts["server kills"] += 1
            if at["cut"] and done >= at["cut"][0] and self._outside.cut and self._outside.swallow:
                (self._outside.cut if len(at["cut"]) % 2 else self._outside.swallow)()
                at["cut"].pop(0)
                self._counts["network cuts"] += 1

    async def _rest(self, store: EventStore, crew: Crew) -> None:
        """Nothing is disturbed any more: everything must come to its end."""
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
        lines = [line for file in sorted(self._folder.glob("*.jsonl")) for line in decode(file.read_bytes())]
        lines.append(Settings(tolerance=self._plan.tolerance, handlers=(HANDLER,), repeats=True))
        auditor = await open_store(self._direct)
        try:
            lines += await _remains(auditor)
        finally:
            await auditor.close()
        wrong = check(lines)
        history = History(lines)
        answered = {line.call for line in lines if isinstance(line, Ok)}
        self._counts["calls"] = sum(isinstance(line, Invoke) for line in lines)
        self._counts["unknown outcomes"] = self._counts["calls"] - len(answered)
        self._counts["takeovers"] = takeovers(history)
        self._counts["stale writes refused"] = refused(history)
        self._counts["dead letters"] = dead_letters(history)
        return Report(counts=self._counts + crew.counts, wrong=wrong)


async def _remains(store: EventStore) -> list[Line]:
    """The log and every event, as they are when all is over."""
    lines: list[Line] = []
    position = ""
    while (page := await store.read_log(after=position, limit=5000)).next != position:
        lines += [Logged(entry) for entry in page.entries]
        position = page.next
    before: int | None = None
    while True:
        found = await store.find(EventQuery(bus="default", before_id=before, limit=500))
        lines += [Final(event) for event in found.events]
        before = found.next_before_id
        if before is None:
            return lines

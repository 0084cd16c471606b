"""The chaos run: workers are killed and frozen, the server is crashed, and in the end every event has ended once.

::

    python -m tests.processes.chaos postgresql
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from tests.processes.fleet import Fleet, Verdict, judge

from durabus import EventQueue, EventStore, StoreUnavailableError, new_event, open_store
from durabus.clock import monotonic
from durabus.servers.known import SERVERS, make_server

BATCH = 500


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to whom. Handlers sleep, so the events last for ``at_least`` seconds however fast the machine is."""

    events: int
    workers: int
    concurrency: int
    handler_seconds: float = 0.1
    lease: float
    freeze_at: Sequence[int] = ()
    """Seconds after which a worker is stopped for one second longer than its lease."""
    crash_at: Sequence[int] = ()
    """Seconds after which the server is restarted without warning."""
    within: float

    @property
    def at_least(self) -> float:
        return self.events / (self.workers * self.concurrency / self.handler_seconds)


LONG = Plan(
    events=50_000,
    workers=4,
    concurrency=25,
    lease=3.0,
    freeze_at=(3, 13, 23, 33, 43),
    crash_at=(8, 18, 28, 38, 46),
    within=1800,
)


class Outcome(msgspec.Struct, kw_only=True):
    """What was done, and what came of it."""

    plan: Plan
    seconds: float
    kills: int
    freezes: int
    crashes: int
    failed_starts: int
    publish_repeats: int
    completed: int
    handled: int
    refused: int
    verdict: Verdict

    def __str__(self) -> str:
        found = self.verdict
        return (
            f"{found.published:,} published ({self.publish_repeats} batches sent again), {self.completed:,} completed, "
            f"{len(found.terminals) - self.completed} lost in {self.seconds:.0f} s\n"
            f"{self.kills} workers killed, {self.freezes} frozen past their lease, server crashed {self.crashes} times "
            f"when {self.failed_starts} workers could not start\n"
            f"{found.takeovers:,} takeovers, {found.retries:,} retries, {self.refused:,} stale writes refused, "
            f"{found.stale_writes_accepted} accepted"
        )

    def check(self) -> None:
        """Fail unless all that was planned happened and nothing came of it."""
        events, found = self.plan.events, self.verdict
        assert self.kills >= self.plan.at_least // 2
        assert (self.freezes, self.crashes) == (len(self.plan.freeze_at), len(self.plan.crash_at))
        assert found.published == self.completed == len(found.terminals) == events
        assert set(found.terminals.values()) == {1}
        assert self.handled == events
        assert (found.stale_writes_accepted, found.fences_not_rising) == (0, 0), "\n".join(found.offenders)
        assert found.takeovers > 0
        assert found.retries >= events // 100  # every 50th fails once, unless its first attempt is lost
        assert self.refused > 0


class Chaos:
    """One run of a plan. ``crash`` restarts the server under everybody; a file has none."""

    def __init__(self, url: str, ledger: Path, plan: Plan, crash: Callable[[], None] | None = None) -> None:
        if plan.crash_at and crash is None:
            raise ValueError(f"crash_at={plan.crash_at}: there is no server that could crash")
        self._plan = plan
        self._crash = crash
        self._url = url
        self._ledger = ledger
        self._kills = self._freezes = self._crashes = self._failed_starts = self._publish_repeats = 0

    async def run(self) -> Outcome:
        plan, begun = self._plan, monotonic()
        store = await open_store(self._url)
        try:
            with Fleet(
                self._url,
                self._ledger,
                handler_seconds=plan.handler_seconds,
                lease=plan.lease,
                concurrency=plan.concurrency,
            ) as fleet:
                for _ in range(plan.workers):
                    fleet.start()
                await fleet.all_up()
                async with asyncio.timeout(plan.within), asyncio.TaskGroup() as tasks:
                    publishing = tasks.create_task(self._publish(store))
                    await self._disturb(store, fleet, publishing)
                await fleet.all_up()
                await fleet.stop()
                return await self._outcome(store, fleet, monotonic() - begun)
        finally:
            await store.close()

    async def _publish(self, store: EventStore) -> None:
        """All in the first half. A batch whose fate is unknown is sent again, and must not be there twice."""
        queue = EventQueue(store)
        pause = 0.5 * self._plan.at_least * BATCH / self._plan.events
        for start in range(0, self._plan.events, BATCH):
            size = min(BATCH, self._plan.events - start)
            batch = [new_event("race.event", {"number": start + n}) for n in range(size)]
            while True:
                try:
                    await queue.publish_batch(batch)
                    break
                except StoreUnavailableError:
                    self._publish_repeats += 1
                    await asyncio.sleep(0.1)
            await asyncio.sleep(pause)

    async def _disturb(self, store: EventStore, fleet: Fleet, publishing: asyncio.Task[None]) -> None:
        """Once a second, until there is nothing left to disturb."""
        freezes, crashes = list(self._plan.freeze_at), list(self._plan.crash_at)
        second, frozen = 0, None
        while freezes or crashes or fleet.frozen or not (publishing.done() and await drained(store)):
            await asyncio.sleep(1.0)  # the rhythm of the kills is what is tested
            second += 1
            self._failed_starts += fleet.replace_failed_starts()
            awake = fleet.awake()
            if freezes and second >= freezes[0] and len(awake) > 1:
                frozen = fleet.busiest(awake)
                fleet.freeze(frozen, self._plan.lease + 1.0)
                awake.remove(frozen)
                freezes.pop(0)
                self._freezes += 1
            if len(awake) > self._plan.workers // 2:  # on a slow machine the next one must be up first
                # The last that was frozen is spared: it still has to tell what it was refused.
                fleet.kill(next(worker for worker in awake if worker is not frozen))
                fleet.start()
                self._kills += 1
            if crashes and second >= crashes[0] and self._crash is not None:
                await asyncio.to_thread(self._crash)
                crashes.pop(0)
                self._crashes += 1

    async def _outcome(self, store: EventStore, fleet: Fleet, seconds: float) -> Outcome:
        return Outcome(
            plan=self._plan,
            seconds=seconds,
            kills=self._kills,
            freezes=self._freezes,
            crashes=self._crashes,
            failed_starts=self._failed_starts,
            publish_repeats=self._publish_repeats,
            completed=(await store.counts()).completed,
            handled=len({id_ for id_, _, _ in fleet.lines("end")}),
            refused=fleet.refused().total(),
            verdict=await judge(store),
        )


async def drained(store: EventStore) -> bool:
    """Whether nothing waits or runs; a store that cannot be asked has not said so."""
    try:
        counts = await store.counts()
    except StoreUnavailableError:
        return False
    return counts.pending + counts.processing == 0


def main(kind: str) -> None:
    with tempfile.TemporaryDirectory(prefix="durabus-chaos-") as folder:
        ledger = Path(folder, "ledger")
        if kind == "sqlite":
            plan = msgspec.structs.replace(LONG, crash_at=())
            outcome = asyncio.run(Chaos(f"sqlite:///{folder}/chaos.db", ledger, plan).run())
        else:
            with make_server(kind, Path(folder, kind)) as server:
                chaos = Chaos(server.url, ledger, LONG, lambda: server.restart(immediate=True))
                outcome = asyncio.run(chaos.run())
    print(outcome)  # noqa: T201  (the report)
    outcome.check()


if __name__ == "__main__":
    if sys.argv[1:] not in [["sqlite"], *([kind] for kind in SERVERS)]:
        sys.exit(f"python -m tests.processes.chaos {'|'.join(['sqlite', *SERVERS])}")
    main(sys.argv[1])

"""Runs the demo: two workers serve a shop, the demo kills one of them, and at the end it counts all events."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
from rich.console import Console

from durabus.clock import monotonic
from durabus.demo.dashboard import Dashboard
from durabus.demo.fleet import WorkerDied, WorkerProcess
from durabus.demo.pipeline import pipeline_process
from durabus.demo.place import TITLES, StoreKind, how_to_look, store_in
from durabus.demo.report import Report, read_report, render
from durabus.demo.screen import WIDTH, Progress, Screen, screen_for
from durabus.demo.shop import order
from durabus.demo.staying import stay_up
from durabus.errors import ConfigurationError
from durabus.store.connect import open_store
from durabus.store.contract import EventStore
from durabus.views.tally import Tally

ORDERS_PER_SECOND = 200
PUBLISH_EVERY = 0.1
TICK = 0.1
LEASE = 3.0
KILL_AFTER = 0.4
"""Share of the orders that must be placed before a worker is killed."""
KILL_HOLDING = 5
"""Events that a worker must hold before it is killed, so that the kill proves something; not after the last order."""
STALLED_AFTER = 30.0
MAX_ORDERS = 100_000
TERMINATED = 128 + signal.SIGTERM

Hook = Callable[[EventStore], Awaitable[None]]


class DemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of ``durabus demo``."""

    store: StoreKind = "sqlite"
    orders: int = 3000
    keep: bool = False
    json: bool = False
    pipeline: bool = False
    stay: bool = False

    def __post_init__(self) -> None:
        """Refuse an invalid number of orders."""
        if not 1 <= self.orders <= MAX_ORDERS:
            raise ConfigurationError(f"orders={self.orders}: must be from 1 to {MAX_ORDERS:,}")


async def run_demo(options: DemoOptions, *, before_report: Hook | None = None) -> int:
    """Run the demo. Returns 0 if all events are accounted for, 1 if any is lost or unfinished, 143 after SIGTERM."""
    with _sigterm_cancels() as terminated:
        try:
            code = await _run_in_folder(options, before_report)
        except asyncio.CancelledError:
            left = "the workers are stopped" if options.keep else "nothing is left behind"
            print(f"interrupted: {left}", file=sys.stderr, flush=True)
            if not terminated.is_set():
                raise
            return TERMINATED
    return TERMINATED if terminated.is_set() else code


@contextlib.contextmanager
def _sigterm_cancels() -> Iterator[asyncio.Event]:
    """Let SIGTERM cancel the current task as Ctrl-C does. Yields an event that SIGTERM sets."""
    loop, task, terminated = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()

    def asked() -> None:
        if task is not None and not terminated.is_set():
            terminated.set()
            task.cancel()

    # Windows has no such handlers, and only the main thread may set them.
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
        loop.add_signal_handler(signal.SIGTERM, asked)
    try:
        yield terminated
    finally:
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.remove_signal_handler(signal.SIGTERM)


async def _run_in_folder(options: DemoOptions, before_report: Hook | None) -> int:
    console = Console(stderr=options.json, highlight=False)
    if console.width > WIDTH or not console.is_terminal:
        console.width = WIDTH
    folder = Path(tempfile.mkdtemp(prefix="durabus-demo-"))
    try:
        with store_in(folder, options.store) as url:
            async with (
                pipeline_process(folder, wanted=options.pipeline, keep=options.keep) as process,
                _dashboard(options, url, folder, console) as dashboard,
            ):
                found = await _run(options, url, folder, console, before_report)
                if options.json:
                    sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
                console.print()
                console.print(render(found))
                complete = await process.run(url, console)
                if dashboard:
                    await stay_up(url, folder, console, placed=options.orders, lease=LEASE, dashboard=dashboard)
                else:
                    console.print("\nto see it in a browser, with new orders: durabus demo --stay", markup=False)
    except WorkerDied as error:
        console.print(f"✗ {error}", style="bold red", markup=False)
        return 1
    finally:
        if options.keep:
            console.print(f"\nkept in {folder}", soft_wrap=True, markup=False)
            console.print(f"to open it: {how_to_look(folder, options.store)}", soft_wrap=True, markup=False)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if found.problems or not complete else 0


@contextlib.asynccontextmanager
async def _dashboard(options: DemoOptions, url: str, folder: Path, console: Console) -> AsyncIterator[str]:
    """Yields the address of the dashboard; empty without ``--stay``."""
    if not options.stay:
        yield ""
        return
    async with Dashboard(url, folder / "dashboard.log") as dashboard:
        console.print(f"dashboard: {dashboard.url}", markup=False)
        yield dashboard.url


async def _run(options: DemoOptions, url: str, folder: Path, console: Console, before_report: Hook | None) -> Report:
    where = TITLES[options.store]
    console.print(f"[bold]durabus demo[/]  orders → payments → mail on {where}, two workers, leases of {LEASE:g} s\n")
    store = await open_store(url)
    workers: list[WorkerProcess] = []
    try:
        for number in (1, 2):
            log = folder / f"worker-{number}.log"
            workers.append(await WorkerProcess.start(f"worker {number}", store=url, lease=LEASE, log=log))
        for worker in workers:
            await worker.ready()
        with screen_for(console) as screen:
            run = DemoRun(store, options.orders, workers, screen)
            await run.play()
        totals = [await worker.stop() for worker in workers if worker.alive]
        if before_report is not None:
            await before_report(store)
        known = [total.lease_lost for total in totals if total is not None]
        return await read_report(
            store,
            orders=options.orders,
            orders_per_second=ORDERS_PER_SECOND,
            killed_ts=run.killed_ts,
            late_writes_refused=sum(known) if known else None,
        )
    finally:
        for worker in workers:
            await worker.end()
        await store.close()


class DemoRun:
    """Places orders, kills a worker, and waits until the other worker has finished all events."""

    def __init__(self, store: EventStore, orders: int, workers: list[WorkerProcess], screen: Screen) -> None:
        self.killed_ts: float | None = None
        self._store = store
        self._orders = orders
        self._placed = 0
        self._workers = workers
        self._screen = screen
        self._tally = Tally()
        self._started = monotonic()
        self._moved = self._started
        self._takeover_told = False

    async def play(self) -> None:
        """Run until every event has ended, or until nothing changes any more."""
        names = " and ".join(f"{worker.name} (pid {worker.pid})" for worker in self._workers)
        self._tell(f"{names} are running; orders come in")
        publishing = asyncio.create_task(self._place_orders())
        try:
            while not (publishing.done() and self.killed_ts is not None and await self._all_ended()):
                await asyncio.sleep(TICK)
                await self._look()
                if publishing.done():
                    publishing.result()
                if self._time_to_kill():
                    await self._kill(self._workers[0])
                if monotonic() - self._moved > STALLED_AFTER:
                    self._tell(f"nothing changed for {STALLED_AFTER:g} s, giving up", "bold red")
                    return
        finally:
            publishing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await publishing
        await self._look()
        self._tell("every event has ended", "green")

    async def _place_orders(self) -> None:
        """Publish orders at a steady rate, each batch in one step."""
        begun = monotonic()
        while self._placed < self._orders:
            due = min(self._orders, int((monotonic() - begun + PUBLISH_EVERY) * ORDERS_PER_SECOND))
            if due > self._placed:
                await self._store.add_events([order(number) for number in range(self._placed + 1, due + 1)])
                self._placed = due
            await asyncio.sleep(PUBLISH_EVERY)

    async def _look(self) -> None:
        for worker in self._workers:
            worker.refuse_if_died()
        if await self._tally.follow(self._store):
            self._moved = monotonic()
        self._tell_takeover()
        self._screen.show(
            Progress(
                seconds=self._seconds,
                orders=self._orders,
                placed=self._placed,
                tally=self._tally,
                workers=[worker.line for worker in self._workers],
            )
        )

    async def _all_ended(self) -> bool:
        """Whether the queue is empty. It then stays empty, because a follow-up is stored before its cause ends."""
        counts = await self._store.counts()
        return counts.pending + counts.processing == 0

    def _time_to_kill(self) -> bool:
        if self.killed_ts is not None or self._placed < KILL_AFTER * self._orders:
            return False
        held = len(self._tally.held_by[self._workers[0].worker_id])
        return held >= KILL_HOLDING or self._placed == self._orders

    async def _kill(self, victim: WorkerProcess) -> None:
        await victim.kill()
        self.killed_ts = await self._store.now()
        await self._tally.follow(self._store)
        held = len(self._tally.held_by[victim.worker_id])
        self._tell(f"kill -9 {victim.pid}: {victim.name} dies holding {held} events and is not restarted", "bold red")

    def _tell_takeover(self) -> None:
        if self._takeover_told or not self._tally.abandoned or self.killed_ts is None:
            return
        if self._tally.held_by[self._workers[0].worker_id]:
            return
        self._takeover_told = True
        number, after = len(self._tally.abandoned), max(self._tally.abandoned) - self.killed_ts
        survivors = " and ".join(worker.name for worker in self._workers if worker.alive)
        self._tell(f"{survivors} took over its {number} events, {after:.1f} s after the kill", "green")

    @property
    def _seconds(self) -> float:
        return monotonic() - self._started

    def _tell(self, text: str, style: str = "") -> None:
        self._screen.tell(self._seconds, text, style)

"""Runs the demo: two workers serve a shop, the demo kills one of them, and at the end it counts all events."""

from __future__ import annotations

import asyncio
import contextlib
import math
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import msgspec
from rich.console import Console

from durabus.clock import monotonic
from durabus.demo.pipeline import pipeline_process
from durabus.demo.processes import DemoProcess, ProcessDied
from durabus.demo.report import Report, read_report, render
from durabus.demo.screen import Progress, Screen
from durabus.demo.shop import BUS, LEASE, order
from durabus.errors import ConfigurationError
from durabus.store.connect import open_store
from durabus.store.contract import EventStore
from durabus.testing.servers.process import is_free
from durabus.testing.servers.server import make_server
from durabus.views.stats import Tally

WIDTH = 96
ORDERS_PER_SECOND = 200
PUBLISH_EVERY = 0.1
TICK = 0.1
KILL_AFTER = 0.4
"""Share of the orders that must be placed before a worker is killed."""
KILL_HOLDING = 5
"""Events that a worker must hold before it is killed, so that the kill proves something; not after the last order."""
STALLED_AFTER = 30.0
MAX_ORDERS = 100_000
DASHBOARD_PORT = 8484
TERMINATED = 128 + signal.SIGTERM

STAY_ORDERS_PER_SECOND = 20
KEEP_COMPLETED = 30_000
"""Completed events to keep, so that a shop that stays open for days does not fill the disk."""
TRIM_EVERY = 10.0

StoreKind = Literal["sqlite", "postgresql", "redis", "nats", "kafka"]
TITLES: dict[StoreKind, str] = {
    "sqlite": "SQLite",
    "postgresql": "PostgreSQL",
    "redis": "Redis",
    "nats": "NATS",
    "kafka": "Kafka",
}
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
            code = await Demo(options, before_report).run()
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


@contextlib.contextmanager
def store_in(folder: Path, kind: StoreKind) -> Iterator[str]:
    """Yields the URL of a new store in ``folder``. If it needs a server, that runs until the context ends."""
    if kind == "sqlite":
        yield _sqlite_url(folder)
        return
    # This blocks the event loop for a second, so that Ctrl-C waits until there is a server to stop.
    with make_server(kind, folder / kind) as server:
        yield server.url


def _sqlite_url(folder: Path) -> str:
    return f"sqlite:///{quote(str(folder))}/shop.db"


class Demo:
    """The acts of the demo, from the first worker to the last table."""

    def __init__(self, options: DemoOptions, before_report: Hook | None) -> None:
        self._options = options
        self._before_report = before_report
        self._folder = Path(tempfile.mkdtemp(prefix="durabus-demo-"))
        self._console = Console(stderr=options.json, highlight=False)
        if self._console.width > WIDTH or not self._console.is_terminal:
            self._console.width = WIDTH

    async def run(self) -> int:
        """Run all acts. Returns 0 if all events are accounted for, else 1."""
        options, folder = self._options, self._folder
        try:
            with store_in(folder, options.store) as url:
                async with (
                    pipeline_process(folder, url, wanted=options.pipeline, keep=options.keep) as pipeline,
                    self._dashboard(url) as dashboard,
                ):
                    found = await self._report(url)
                    complete = await pipeline.run(self._console)
                    if dashboard:
                        await self._stay_open(url, dashboard)
                    else:
                        self._say("\nto see it in a browser, with new orders: durabus demo --stay")
        except ProcessDied as error:
            self._console.print(f"✗ {error}", style="bold red", markup=False)
            return 1
        finally:
            if options.keep:
                self._say(f"\nkept in {folder}")
                self._say(f"to open it: {self._how_to_look()}")
            else:
                shutil.rmtree(folder, ignore_errors=True)
        return 1 if found.problems or not complete else 0

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False)

    def _how_to_look(self) -> str:
        """The command that opens the store in a kept folder."""
        kind = self._options.store
        if kind == "sqlite":
            return f"durabus dlq list --store {_sqlite_url(self._folder)}"
        return f"durabus dev up {kind} --data-dir {shlex.quote(str(self._folder / kind))}"

    @contextlib.asynccontextmanager
    async def _dashboard(self, url: str) -> AsyncIterator[str]:
        """Yields the address of the dashboard; empty without ``--stay``."""
        if not self._options.stay:
            yield ""
            return
        port = DASHBOARD_PORT if is_free(DASHBOARD_PORT) else 0
        serve = ("serve", "--bus", BUS, "--port", str(port), "--stop-within", "2")
        log = self._folder / "dashboard.log"
        async with DemoProcess.durabus("the dashboard", *serve, log=log, store=url) as server:
            address = f"{await server.ready()}/"
            self._say(f"dashboard: {address}")
            yield address
            await server.stop()

    @contextlib.asynccontextmanager
    async def _workers(self, url: str, *numbers: int) -> AsyncIterator[list[DemoProcess]]:
        """Yields workers that serve the shop. They have ended after the context."""
        serve = ("worker", "durabus.demo.shop:bus", "--json")
        async with contextlib.AsyncExitStack() as stack:
            workers = [
                await stack.enter_async_context(
                    DemoProcess.durabus(f"worker {n}", *serve, log=self._folder / f"worker-{n}.log", store=url)
                )
                for n in numbers
            ]
            for worker in workers:
                await worker.ready()
            yield workers

    async def _report(self, url: str) -> Report:
        """Run the shop through the kill, and show what the store then holds."""
        console, options = self._console, self._options
        told = f"orders → payments → mail on {TITLES[options.store]}, two workers, leases of {LEASE:g} s"
        console.print(f"[bold]durabus demo[/]  {told}\n")
        store = await open_store(url)
        try:
            async with self._workers(url, 1, 2) as workers:
                with Screen(console) as screen:
                    run = ShopRun(store, options.orders, workers, screen)
                    await run.play()
                totals = [await worker.stop() for worker in workers if worker.alive]
            if self._before_report is not None:
                await self._before_report(store)
            refused = [msgspec.json.decode(total)["claims_lost"] for total in totals if total]
            found = await read_report(
                store,
                orders=options.orders,
                orders_per_second=ORDERS_PER_SECOND,
                killed_ts=run.killed_ts,
                late_writes_refused=sum(refused) if refused else None,
            )
        finally:
            await store.close()
        if options.json:
            print(msgspec.json.format(msgspec.json.encode(found)).decode(), flush=True)
        console.print()
        console.print(render(found))
        return found

    async def _stay_open(self, url: str, dashboard: str) -> None:
        """Serve new orders until Ctrl-C or SIGTERM, the usual end."""
        store = await open_store(url)
        try:
            async with self._workers(url, 3, 4) as workers:
                pids = " and ".join(str(worker.pid) for worker in workers)
                self._say(f"\nthe shop stays open: {STAY_ORDERS_PER_SECOND} orders/s, workers with pid {pids}")
                self._say(f"dashboard: {dashboard}   (kill -9 a worker and watch; Ctrl-C stops everything)")
                counter = OrderCounter(store, STAY_ORDERS_PER_SECOND, placed=self._options.orders)
                with contextlib.suppress(asyncio.CancelledError):
                    while True:
                        await counter.place_for(TRIM_EVERY)
                        await store.cleanup_excess_events(BUS, keep=KEEP_COMPLETED)
                self._say("\nclosed")
                for worker in workers:
                    await worker.stop()
        finally:
            await store.close()


class OrderCounter:
    """Places orders at a steady rate, and counts them."""

    def __init__(self, store: EventStore, per_second: float, *, placed: int = 0) -> None:
        self.placed = placed
        self._store = store
        self._per_second = per_second

    async def place_for(self, seconds: float, *, at_most: int = sys.maxsize) -> None:
        """Publish a batch of orders every moment, each batch in one step."""
        begun, first = monotonic(), self.placed
        while self.placed < at_most and (passed := monotonic() - begun) < seconds:
            due = min(at_most, first + int((passed + PUBLISH_EVERY) * self._per_second))
            if due > self.placed:
                await self._store.add_events([order(number) for number in range(self.placed + 1, due + 1)])
                self.placed = due
            await asyncio.sleep(PUBLISH_EVERY)


class ShopRun:
    """Places orders, kills a worker, and waits until the other worker has finished all events."""

    def __init__(self, store: EventStore, orders: int, workers: list[DemoProcess], screen: Screen) -> None:
        self.killed_ts: float | None = None
        self._store = store
        self._orders = orders
        self._counter = OrderCounter(store, ORDERS_PER_SECOND)
        self._workers = workers
        self._screen = screen
        self._tally = Tally()
        self._started = self._moved = monotonic()
        self._takeover_told = False

    async def play(self) -> None:
        """Run until every event has ended, or until nothing changes any more."""
        names = " and ".join(f"{worker.name} (pid {worker.pid})" for worker in self._workers)
        self._tell(f"{names} are running; orders come in")
        publishing = asyncio.create_task(self._counter.place_for(math.inf, at_most=self._orders))
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

    async def _look(self) -> None:
        for worker in self._workers:
            worker.refuse_if_died()
        if await self._tally.follow(self._store):
            self._moved = monotonic()
        self._tell_takeover()
        self._screen.show(
            Progress(
                seconds=monotonic() - self._started,
                orders=self._orders,
                placed=self._counter.placed,
                tally=self._tally,
                workers=self._workers,
            )
        )

    async def _all_ended(self) -> bool:
        """Whether the queue is empty. It then stays empty, because a follow-up is stored before its cause ends."""
        counts = await self._store.counts()
        return counts.pending + counts.processing == 0

    def _time_to_kill(self) -> bool:
        placed = self._counter.placed
        if self.killed_ts is not None or placed < KILL_AFTER * self._orders:
            return False
        return self._tally.held_by(self._workers[0].worker_id) >= KILL_HOLDING or placed == self._orders

    async def _kill(self, victim: DemoProcess) -> None:
        await victim.kill()
        self.killed_ts = await self._store.now()
        await self._tally.follow(self._store)
        held = self._tally.held_by(victim.worker_id)
        self._tell(f"kill -9 {victim.pid}: {victim.name} dies holding {held} events and is not restarted", "bold red")

    def _tell_takeover(self) -> None:
        taken = self._tally.abandoned
        victim, survivor = self._workers
        if self._takeover_told or not taken or self.killed_ts is None or self._tally.held_by(victim.worker_id):
            return
        self._takeover_told = True
        after = max(taken) - self.killed_ts
        self._tell(f"{survivor.name} took over its {len(taken)} events, {after:.1f} s after the kill", "green")

    def _tell(self, text: str, style: str = "") -> None:
        self._screen.tell(monotonic() - self._started, text, style)

"""Runs the demo: two workers serve a shop, the demo kills one of them, and at the end it counts all events."""

from __future__ import annotations

import asyncio
import itertools
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext, suppress
from pathlib import Path
from urllib.parse import quote

import msgspec
from msgspec.structs import asdict
from rich.console import Console

from durabus.clock import monotonic
from durabus.demo.pipeline import run_pipeline
from durabus.demo.processes import DemoProcess, ProcessDied, durabus_process
from durabus.demo.screen import Screen, read_report, render
from durabus.demo.shop import BUS, LEASE, ORDERS_PER_SECOND, order
from durabus.errors import ConfigurationError
from durabus.store.connect import open_store
from durabus.store.contract import EventStore
from durabus.testing.servers.process import is_free
from durabus.testing.servers.server import make_server
from durabus.views.stats import RunTotals

WIDTH = 96
MAX_ORDERS = 100_000
TICK = 0.1
KILL_AFTER = 0.4
"""Share of the orders that must be placed before a worker is killed."""
KILL_HOLDING = 5
"""Events that a worker must hold before it is killed, so that the kill proves something; not after the last order."""
STALLED_AFTER = 30.0
DASHBOARD_PORT = 8484
WORKER = ("worker", "durabus.demo.shop:bus", "--json")
STAY_ORDERS_PER_SECOND = 20
KEEP_COMPLETED, TRIM_EVERY = 30_000, 200
"""Completed events to keep, and orders from one trim to the next. A shop that stays open must not fill the disk."""


class DemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of ``durabus demo``."""

    store: str = "sqlite"
    orders: int = 3000
    keep: bool = False
    json: bool = False
    pipeline: bool = False
    stay: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.orders <= MAX_ORDERS:
            raise ConfigurationError(f"orders={self.orders}: must be from 1 to {MAX_ORDERS:,}")


async def run_demo(options: DemoOptions) -> int:
    """Run the demo. Returns 0 if all events are accounted for, 1 if any is lost or unfinished, 143 after SIGTERM."""
    loop, task, terminated = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()

    def terminate() -> None:
        if task is not None and not terminated.is_set():
            terminated.set()
            task.cancel()

    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        code = await Demo(options).run()
    except asyncio.CancelledError:
        left = "the workers are stopped" if options.keep else "nothing is left behind"
        print(f"interrupted: {left}", file=sys.stderr, flush=True)
        if not terminated.is_set():
            raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
    return 128 + signal.SIGTERM if terminated.is_set() else code


class Demo:
    """The acts of the demo, from the first worker to the last table."""

    def __init__(self, options: DemoOptions) -> None:
        self._options = options
        self._folder = Path(tempfile.mkdtemp(prefix="durabus-demo-"))
        self._server = None if options.store == "sqlite" else make_server(options.store, self._folder / options.store)
        self._console = Console(stderr=options.json, highlight=False)
        if self._console.width > WIDTH or not self._console.is_terminal:
            self._console.width = WIDTH

    @property
    def _url(self) -> str:
        return self._server.url if self._server else f"sqlite:///{quote(str(self._folder))}/shop.db"

    async def run(self) -> int:
        """Run all acts. Returns 0 if all events are accounted for, else 1."""
        options, folder = self._options, self._folder
        try:
            # A start blocks the event loop for a second, so that Ctrl-C waits until there is a server to stop.
            with self._server or nullcontext():
                return await self._run_acts()
        except ProcessDied as error:
            self._console.print(f"✗ {error}", style="bold red", markup=False)
            return 1
        finally:
            if options.keep:
                data = shlex.quote(str(folder / options.store))
                how = f"dev up {options.store} --data-dir {data}" if self._server else f"dlq list --store {self._url}"
                self._say(f"\nkept in {folder}\nto open it: durabus {how}")
            else:
                shutil.rmtree(folder, ignore_errors=True)

    async def _run_acts(self) -> int:
        options, address = self._options, ""
        async with AsyncExitStack() as stack:
            if options.stay:
                port = DASHBOARD_PORT if is_free(DASHBOARD_PORT) else 0
                serve = ("serve", "--bus", BUS, "--port", str(port), "--stop-within", "2")
                (server,) = await self._start(stack, serve, "dashboard")
                address = f"{server.first_line}/"
                self._say(f"dashboard: {address}")
            store = await open_store(self._url)
            stack.push_async_callback(store.close)
            found = await self._run_shop(store)
            pipeline = (self._folder, self._url, self._console)
            complete = not options.pipeline or await run_pipeline(*pipeline, keep=options.keep)
            if options.stay:
                await self._stay_open(store, address)
            else:
                self._say("\nto see it in a browser, with new orders: durabus demo --stay")
        return 1 if found.problems or not complete else 0

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False)

    async def _start(self, stack: AsyncExitStack, command: Sequence[str], *names: str) -> list[DemoProcess]:
        """Start a ``durabus`` command under each name, and wait until all are ready. They end with the stack."""
        contexts = [durabus_process(name, *command, folder=self._folder, store=self._url) for name in names]
        processes = [await stack.enter_async_context(context) for context in contexts]
        for process in processes:
            await process.ready()
        return processes

    async def _run_shop(self, store: EventStore) -> RunTotals:
        """Run the shop through the kill, and show what the store then holds."""
        console, orders = self._console, self._options.orders
        title = self._server.title if self._server else "SQLite"
        told = f"orders → payments → mail on {title}, two workers, leases of {LEASE:g} s"
        console.print(f"[bold]durabus demo[/]  {told}\n")
        async with AsyncExitStack() as stack:
            workers = await self._start(stack, WORKER, "worker 1", "worker 2")
            screen = Screen(console, orders, workers)
            with screen.live or nullcontext():
                killed_ts = await play(store, screen)
            totals = [await worker.stop() for worker in workers if worker.alive]
        lost = [msgspec.json.decode(total)["claims_lost"] for total in totals if total]
        refused = sum(lost) if lost else None
        found = await read_report(store, orders, killed_ts)
        if self._options.json:
            facts = {"orders": orders, "orders_per_second": ORDERS_PER_SECOND, "late_writes_refused": refused}
            print(msgspec.json.format(msgspec.json.encode(facts | asdict(found))).decode(), flush=True)
        console.print()
        console.print(render(found, refused))
        return found

    async def _stay_open(self, store: EventStore, dashboard: str) -> None:
        """Serve new orders until Ctrl-C or SIGTERM, the usual end."""
        async with AsyncExitStack() as stack:
            workers = await self._start(stack, WORKER, "worker 3", "worker 4")
            pids = " and ".join(str(worker.pid) for worker in workers)
            self._say(f"\nthe shop stays open: {STAY_ORDERS_PER_SECOND} orders/s, workers with pid {pids}")
            self._say(f"dashboard: {dashboard}   (kill -9 a worker and watch; Ctrl-C stops everything)")
            with suppress(asyncio.CancelledError):
                for number in itertools.count(self._options.orders + 1):
                    await store.add_events([order(number)])
                    if number % TRIM_EVERY == 0:
                        await store.cleanup_excess_events(BUS, keep=KEEP_COMPLETED)
                    await asyncio.sleep(1 / STAY_ORDERS_PER_SECOND)
            self._say("\nclosed")
            for worker in workers:
                await worker.stop()


async def play(store: EventStore, screen: Screen) -> float | None:
    """Place orders, kill a worker, and wait until the other one has ended all events. Returns the time of the kill."""
    victim, survivor = screen.workers
    tally, orders, placed = screen.tally, screen.orders, 0
    begun = moved = monotonic()
    killed_ts, takeover_told = None, False
    names = " and ".join(f"{worker.name} (pid {worker.pid})" for worker in screen.workers)
    screen.tell(f"{names} are running; orders come in")
    while placed < orders or killed_ts is None or not await _all_ended(store):
        due = min(orders, int((monotonic() - begun + TICK) * ORDERS_PER_SECOND))
        if due > placed:
            await store.add_events([order(number) for number in range(placed + 1, due + 1)])
            placed = due
        await asyncio.sleep(TICK)
        victim.refuse_if_died()
        survivor.refuse_if_died()
        if await tally.follow(store):
            moved = monotonic()
        held, taken = tally.held_by(victim.worker_id), tally.abandoned
        if killed_ts is None and placed >= KILL_AFTER * orders and (held >= KILL_HOLDING or placed == orders):
            await victim.kill()
            killed_ts = await store.now()
            await tally.follow(store)
            told = f"dies holding {tally.held_by(victim.worker_id)} events and is not restarted"
            screen.tell(f"kill -9 {victim.pid}: {victim.name} {told}", "bold red")
        elif killed_ts is not None and taken and not held and not takeover_told:
            takeover_told = True
            told = f"{len(taken)} events, {max(taken) - killed_ts:.1f} s after the kill"
            screen.tell(f"{survivor.name} took over its {told}", "green")
        screen.show()
        if monotonic() - moved > STALLED_AFTER:
            screen.tell(f"nothing changed for {STALLED_AFTER:g} s, giving up", "bold red")
            return killed_ts
    await tally.follow(store)
    screen.tell("every event has ended", "green")
    return killed_ts


async def _all_ended(store: EventStore) -> bool:
    """Whether the queue is empty. It then stays empty, because a follow-up is stored before its cause ends."""
    counts = await store.counts()
    return counts.pending + counts.processing == 0

"""Keeps the shop open after the report, with new workers and new orders, until the user stops it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rich.console import Console

from durabus.clock import monotonic
from durabus.demo.fleet import WorkerProcess
from durabus.demo.shop import BUS, order
from durabus.store.connect import open_store

ORDERS_PER_SECOND = 20
PUBLISH_EVERY = 0.5
KEEP_COMPLETED = 30_000
"""Completed events to keep, so that a shop that stays open for days does not fill the disk."""
TRIM_EVERY = 10.0


async def stay_up(url: str, folder: Path, console: Console, *, placed: int, lease: float, dashboard: str) -> None:
    """Run until Ctrl-C or SIGTERM, the usual end."""
    store = await open_store(url)
    workers: list[WorkerProcess] = []
    try:
        for number in (3, 4):
            log = folder / f"worker-{number}.log"
            workers.append(await WorkerProcess.start(f"worker {number}", store=url, lease=lease, log=log))
        for worker in workers:
            await worker.ready()
        pids = " and ".join(str(worker.pid) for worker in workers)
        console.print(f"\nthe shop stays open: {ORDERS_PER_SECOND} orders/s, workers with pid {pids}", markup=False)
        console.print(f"dashboard: {dashboard}   (kill -9 a worker and watch; Ctrl-C stops everything)", markup=False)
        begun = trimmed = monotonic()
        first = placed
        while True:
            await asyncio.sleep(PUBLISH_EVERY)
            due = first + int((monotonic() - begun) * ORDERS_PER_SECOND)
            await store.add_events([order(number) for number in range(placed + 1, due + 1)])
            placed = due
            if monotonic() - trimmed > TRIM_EVERY:
                trimmed = monotonic()
                await store.cleanup_excess_events(BUS, keep=KEEP_COMPLETED)
    except asyncio.CancelledError:
        console.print("\nclosed", markup=False)
    finally:
        for worker in workers:
            if worker.alive:
                await worker.stop()
            await worker.end()
        await store.close()

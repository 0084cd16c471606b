"""One worker process of the demo. It serves the shop until its stdin closes, also because the demo has died."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import threading

import msgspec

from durabus.bus.event_bus import EventBus
from durabus.demo.shop import BUS, CONCURRENCY, RETRY, Shop

GRACE = 10.0
"""Seconds that a worker may take to stop after its stdin has closed."""


class WorkerTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers that a worker reports when it stops."""

    completed: int
    lease_lost: int


def main() -> None:
    """Run ``python -m durabus.demo.worker --store URL --lease SECONDS``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True)
    parser.add_argument("--lease", required=True, type=float)
    options = parser.parse_args()
    # Ctrl-C goes to the demo, which then closes this process's stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(serve(options.store, options.lease))


async def serve(url: str, lease: float) -> None:
    """Print ``ready``, serve the bus, then print a ``WorkerTotals``."""
    stdin_closed = _stdin_closed()
    bus = EventBus(url, name=BUS, retry=RETRY, lease=lease, concurrency=CONCURRENCY, poll_interval=0.25)
    Shop(bus)
    async with bus:
        print("ready", flush=True)
        await stdin_closed.wait()
    done = bus.metrics.snapshot()
    total = WorkerTotals(completed=sum(done.completed.values()), lease_lost=sum(done.lease_lost.values()))
    print(msgspec.json.encode(total).decode(), flush=True)


def _stdin_closed() -> asyncio.Event:
    loop, closed = asyncio.get_running_loop(), asyncio.Event()

    def watch() -> None:
        sys.stdin.buffer.read()
        loop.call_soon_threadsafe(closed.set)
        last_resort = threading.Timer(GRACE, os._exit, [1])
        last_resort.daemon = True
        last_resort.start()

    threading.Thread(target=watch, daemon=True).start()
    return closed


if __name__ == "__main__":
    main()

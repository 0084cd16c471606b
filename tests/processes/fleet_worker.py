"""A worker process for the race tests: handles events slowly and writes down every start and end outside the store.

python fleet_worker.py STORE_URL LEDGER HANDLER_SECONDS LEASE CONCURRENCY
"""

import asyncio
import contextlib
import logging
import os
import random
import signal
import sys
import threading

from durabus import Context, Event, EventBus, RetryPolicy, StoreUnavailableError

TELL_EVERY = 0.1


def die_with_parent() -> None:
    os.read(0, 1)  # not through sys.stdin, whose lock a daemon thread would hold at the end
    os._exit(1)


async def main(url: str, ledger: str, handler_seconds: float, lease: float, concurrency: int) -> None:
    threading.Thread(target=die_with_parent, daemon=True).start()
    logging.getLogger("durabus").setLevel(logging.ERROR)  # lost claims and retries are what the test makes happen
    lines = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(what: str, number: int = 0, fence: int = 0) -> None:
        os.write(lines, f"{what} {number} {fence} {os.getpid()}\n".encode())

    bus = EventBus(url, retry=RetryPolicy(max_retries=None, base_delay=0.05), lease=lease, concurrency=concurrency)

    @bus.on("race.*")
    async def handle(event: Event, _ctx: Context) -> None:
        write("start", event.id, event.fence)
        await asyncio.sleep(handler_seconds * random.uniform(0.5, 1.5))
        if event.id % 50 == 0 and event.attempts == 1:
            raise ConnectionError("fails the first time")
        write("end", event.id, event.fence)

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    try:
        await bus.start()
    except StoreUnavailableError as error:
        sys.exit(f"worker {os.getpid()}: {error}")
    write("up")
    told = 0
    while not stop.is_set():
        # At once, not in the end: a worker that is killed cannot tell any more.
        lost = sum(bus.metrics.snapshot().lease_lost.values())
        if lost != told:
            told = lost
            write("refused", told)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), TELL_EVERY)
    await bus.shutdown(timeout=10)
    write("refused", sum(bus.metrics.snapshot().lease_lost.values()))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])))

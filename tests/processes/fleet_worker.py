"""A worker process for the race tests: handles events slowly and writes down every start and end outside the store.

python fleet_worker.py STORE_URL LEDGER HANDLER_SECONDS LEASE CONCURRENCY
"""

import asyncio
import logging
import os
import random
import signal
import sys

from durabus import Context, Event, EventBus, RetryPolicy


async def main(url: str, ledger: str, handler_seconds: float, lease: float, concurrency: int) -> None:
    logging.getLogger("durabus").setLevel(logging.ERROR)  # lost claims and retries are what the test makes happen
    lines = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(what: str, event: Event) -> None:
        os.write(lines, f"{what} {event.id} {event.fence} {os.getpid()}\n".encode())

    bus = EventBus(url, retry=RetryPolicy(max_retries=None, base_delay=0.05), lease=lease, concurrency=concurrency)

    @bus.on("race.*")
    async def handle(event: Event, _ctx: Context) -> None:
        write("start", event)
        await asyncio.sleep(handler_seconds * random.uniform(0.5, 1.5))
        if event.id % 50 == 0 and event.attempts == 1:
            raise ConnectionError("fails the first time")
        write("end", event)

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await bus.start()
    await stop.wait()
    await bus.shutdown(timeout=10)
    lost = sum(bus.metrics.snapshot().lease_lost.values())
    os.write(lines, f"refused {lost} 0 {os.getpid()}\n".encode())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])))

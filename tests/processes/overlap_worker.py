"""A worker process for the overlap tests: writes down every start and end of a handler outside the store.

python overlap_worker.py STORE_URL LEDGER MODE LEASE BUS…
"""

import asyncio
import logging
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from durabus import Context, Event, EventBus, RetryPolicy, open_store


def die_with_parent() -> None:
    os.read(0, 1)  # not through sys.stdin, whose lock a daemon thread would hold at the end
    os._exit(1)


class Ledger:
    """A file with one line for each step, appended in one write, so its order is that of the steps."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, what: str, **fields: object) -> None:
        os.write(self._file, msgspec.json.encode({"what": what, "pid": os.getpid(), **fields}) + b"\n")

    def has(self, what: str) -> bool:
        return any(line["what"] == what for line in self.lines())

    def lines(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(line) for line in self._path.read_bytes().splitlines()]


def subscribe(bus: EventBus, ledger: Ledger) -> None:
    @contextmanager
    def noted(event: Event, parent: int | None = None) -> Iterator[None]:
        seen = {"bus": bus.name, "id": event.id, "fence": event.fence, "key": event.ordering_key, "parent": parent}
        ledger.write("start", **seen)
        failed = True
        try:
            yield
            failed = False
        finally:  # also when the claim was lost and the handler is cancelled for it
            ledger.write("end", **seen, failed=failed)

    async def job(event: Event, ctx: Context) -> None:
        with noted(event):
            await asyncio.sleep(random.uniform(0.01, 0.04))  # long enough for another process to come in beside it
            if event.payload["n"] % 5 == 0 and event.ordering_key is None:
                await ctx.emit("child", {"parent": event.id})
            if event.payload["n"] % 7 == 0 and ctx.attempt == 1:
                raise ConnectionError("fails the first time")

    async def child(event: Event) -> None:
        with noted(event, event.payload["parent"]):
            await asyncio.sleep(random.uniform(0.001, 0.01))

    bus.subscribe("job", job, id="job")
    bus.subscribe("child", child, id="child")


async def main(url: str, ledger: Ledger, mode: str, lease: float, names: list[str]) -> None:
    threading.Thread(target=die_with_parent, daemon=True).start()
    logging.getLogger("durabus").setLevel(logging.ERROR)  # lost claims and retries are what the test makes happen
    store = await open_store(url)
    retry = RetryPolicy(max_retries=None, base_delay=0.02)
    buses = [
        EventBus(store, name=name, mode=mode, lease=lease, retry=retry, poll_interval=0.1, concurrency=4)
        for name in names
    ]
    for bus in buses:
        subscribe(bus, ledger)
        await bus.start()
    ledger.write("up")
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    for bus in buses:
        await bus.shutdown(5)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Ledger(Path(sys.argv[2])), sys.argv[3], float(sys.argv[4]), sys.argv[5:]))

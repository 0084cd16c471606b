"""A node with one handler, for the tests of handlers on several nodes. It writes every call to a ledger.

python sharing_worker.py STORE_URL LEDGER HANDLER MODE LEASE
"""

import asyncio
import logging
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

from tests.processes.overlap_worker import Ledger, die_with_parent

from durabus import Event, EventBus, open_store

MEET = "meet"
"""A handler with this as ``slow`` ends when the other handler of its event has begun, too."""
MEET_WITHIN = 20.0


async def both_began(ledger: Ledger, n: int) -> None:
    """Wait for the handler in the other process, at most so long that the test fails by what it finds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(MEET_WITHIN):
            while began(ledger, n) < 2:  # noqa: ASYNC110  (another process writes it)
                await asyncio.sleep(0.02)


def began(ledger: Ledger, n: int) -> int:
    return sum(line["what"] == "start" and line["n"] == n for line in ledger.lines())


async def main(url: str, ledger: Ledger, name: str, mode: str, lease: float) -> None:
    threading.Thread(target=die_with_parent, daemon=True).start()
    logging.getLogger("durabus").setLevel(logging.ERROR)
    store = await open_store(url)
    bus = EventBus(store, handler_mode=mode, lease=lease, poll_interval=0.1)

    async def handle(event: Event) -> str:
        n, slow = event.payload["n"], event.payload["slow"]
        ledger.write("start", handler=name, n=n)
        if slow == MEET:
            await both_began(ledger, n)
        else:
            await asyncio.sleep(60.0 if slow == name and not ledger.has("killed") else 0.05)
        ledger.write("end", handler=name, n=n)
        return name

    bus.subscribe("job", handle, id=name)
    await bus.start()
    ledger.write("up", handler=name)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await bus.shutdown(5)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Ledger(Path(sys.argv[2])), sys.argv[3], sys.argv[4], float(sys.argv[5])))

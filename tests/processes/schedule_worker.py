"""A worker process whose bus has one schedule.

python schedule_worker.py STORE_URL LEDGER
"""

import asyncio
import logging
import os
import sys
import threading

from durabus import Event, EventBus


def die_with_parent() -> None:
    os.read(0, 1)  # not through sys.stdin, whose lock a daemon thread would hold at the end
    os._exit(1)


async def main(url: str, ledger: str) -> None:
    threading.Thread(target=die_with_parent, daemon=True).start()
    logging.getLogger("durabus").setLevel(logging.ERROR)
    lines = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    bus = EventBus(url)

    @bus.every(0.1, name="beat", type="beat", overlap="parallel", catch_up="all")
    async def beat(event: Event) -> None: ...

    await bus.start()
    os.write(lines, f"up {os.getpid()}\n".encode())
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

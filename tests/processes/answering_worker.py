"""A worker process that answers requests and takes batches: it says which process ran a handler.

python answering_worker.py STORE_URL LEDGER quick|stuck
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


async def main(url: str, ledger: str, kind: str) -> None:
    threading.Thread(target=die_with_parent, daemon=True).start()
    logging.getLogger("durabus").setLevel(logging.ERROR)
    lines = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(what: str, number: int = 0) -> None:
        os.write(lines, f"{what} {number} {os.getpid()}\n".encode())

    bus = EventBus(url)

    @bus.on("price.quote", id="quote")
    async def quote(event: Event) -> dict[str, int]:
        return {"price": event.payload * 2, "pid": os.getpid()}

    @bus.on("metric.cpu", id="store", batch=20, within=0.05)
    async def store_all(events: list[Event]) -> dict[str, int]:
        for event in events:
            write("start", event.id)
        if kind == "stuck":
            await asyncio.Event().wait()
        return {event.event_id: event.fence for event in events}

    async with bus:
        write("up")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""A worker process whose order charges, waits for a payment, or runs until it is cancelled.

python order_worker.py STORE_URL LEDGER LEASE
"""

import asyncio
import os
import sys
import threading
import time
from pathlib import Path

from durabus import Context, Event, EventBus


def die_with_parent() -> None:
    os.read(0, 1)  # not through sys.stdin, whose lock a daemon thread would hold at the end
    os._exit(1)


def note(ledger: Path, line: str) -> None:
    with ledger.open("ab", buffering=0) as file:
        os.write(file.fileno(), f"{line}\n".encode())


async def main(url: str, ledger: Path, lease: float) -> None:
    async with EventBus(url, name="shop", lease=lease, poll_interval=0.05) as bus:

        @bus.on("order.charged", id="charged")
        async def charged(event: Event, ctx: Context) -> str:
            """Await a charge, and hang before the first success."""
            ctx.emit("mail", {"to": "customer"})
            receipt: str = await ctx.emit("charge", {"sum": 7}).result()
            note(ledger, f"charged {receipt}")
            if event.fence == 1:
                await asyncio.Event().wait()  # until this process is killed
            return receipt

        @bus.on("charge", id="charge")
        async def charge(event: Event) -> str:
            note(ledger, "charge")
            return f"receipt of {event.event_id}"

        @bus.on("mail", id="mail")
        async def mail(event: Event) -> None:
            note(ledger, "mail")

        @bus.on("order.paid", id="paid")
        async def paid(event: Event, ctx: Context) -> None:
            """Wait for a payment, and hang once it has come the first time."""
            met = await ctx.wait_for("payment", where={"order": 7}, timeout=3600)
            note(ledger, f"paid {met.event_id if met else None}")
            if event.fence == 2:
                await asyncio.Event().wait()  # until this process is killed

        @bus.on("order.packed", id="packed")
        async def packed(event: Event, ctx: Context) -> str:
            """Run until the event is cancelled, and return a value all the same."""
            if event.parent_id is None:
                await ctx.emit("order.packed", {"part": 1}).stored()
            note(ledger, f"begun {event.event_id}")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                note(ledger, f"stopped {event.event_id} {time.clock_gettime(time.CLOCK_MONOTONIC)}")
            return "packed after all"

        await asyncio.Event().wait()


if __name__ == "__main__":
    threading.Thread(target=die_with_parent, daemon=True).start()
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])))

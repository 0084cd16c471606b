"""A durable bus: what fails is tried again, what cannot work becomes a dead letter, which can be retried later."""

import asyncio
import logging
import tempfile
from pathlib import Path

from durabus import Context, DLQInspector, Event, EventBus, RetryPolicy, TransientError, UnrecoverableError

BLOCKED_CARDS = {"4000"}


charged_three = asyncio.Event()


async def charge(event: Event, ctx: Context) -> None:
    if ctx.attempt == 1 and event.payload["order"] == 2:
        raise TransientError("payment service is busy")
    if event.payload["card"] in BLOCKED_CARDS:
        raise UnrecoverableError("card is blocked")
    print(f"order {event.payload['order']} charged on attempt {ctx.attempt}")
    if event.payload["order"] == 3:
        charged_three.set()


async def main(url: str) -> None:
    bus = EventBus(url, retry=RetryPolicy(max_retries=3, base_delay=0.05))
    bus.subscribe("order.placed", charge, id="charge")
    async with bus:
        for number, card in ((1, "1234"), (2, "5678"), (3, "4000")):
            await bus.publish("order.placed", {"order": number, "card": card})

        dlq = DLQInspector(bus.store)
        page = await dlq.list()
        for dead in page.events:
            print(f"dead letter: order {dead.payload['order']}, {dead.status}, {dead.errors[-1]}")

        BLOCKED_CARDS.clear()  # the bank called back
        for dead in page.events:
            await dlq.retry(dead.event_id)
        await charged_three.wait()
        print(f"left in the dead letters: {(await dlq.list()).total}")


if __name__ == "__main__":
    logging.disable(logging.ERROR)  # every failed attempt is logged; here they are printed
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(f"sqlite:///{Path(folder)}/shop.db"))

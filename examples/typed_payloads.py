"""The type hint of a handler's first argument decides how the payload is read."""

import asyncio
import logging
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from durabus import Context, EventBus, EventFailed


@dataclass
class OrderPlaced:
    """A dataclass; its event type is given, otherwise it would be the class name."""

    event_type: ClassVar[str] = "order.placed"
    order: int
    total: float


class Shipped(msgspec.Struct):
    """A msgspec struct; pydantic models work the same way."""

    order: int
    carrier: str = "post"


async def on_order(placed: OrderPlaced, ctx: Context) -> None:
    print(f"{ctx.event.type}: order {placed.order} over {placed.total:.2f}")


async def on_shipped(shipped: Shipped) -> None:
    print(f"order {shipped.order} goes by {shipped.carrier}")


async def main() -> None:
    bus = EventBus("memory://")
    bus.subscribe(OrderPlaced, on_order)
    bus.subscribe("Shipped", on_shipped)
    async with bus:
        await bus.publish(OrderPlaced(order=7, total=12.5))
        await bus.publish("Shipped", {"order": 7})
        handle = bus.emit("Shipped", {"order": "seven"})  # does not decode: no retry can mend it
        try:
            await handle.result()
        except EventFailed as error:
            print(f"{error.status}: {error.errors[-1].partition(':')[0]}")


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    asyncio.run(main())

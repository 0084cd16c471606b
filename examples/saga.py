"""A saga: one event whose handler awaits child events, and undoes what was done when a step fails.

The bus handles one event at a time. A child that its parent waits for runs at once, under the parent's turn. The order
is complete when all of its children are.
"""

import asyncio
import logging

from durabus import Context, Event, EventBus, EventFailed, UnrecoverableError

bus = EventBus("memory://", mode="bus-serial", retry={"max_retries": 0})


@bus.on("order.placed")
async def place(event: Event, ctx: Context) -> str:
    done: list[str] = []
    for step in ("stock.reserve", "card.charge", "parcel.ship"):
        try:
            await ctx.emit(step, event.payload).result()
            done.append(step)
        except EventFailed as error:
            print(f"order {event.payload['id']}: {step} failed: {error.errors[-1]}")
            for undo in reversed(done):
                await ctx.emit(f"{undo}.undo", event.payload)
            return "cancelled"
    return "shipped"


@bus.on("stock.*")
@bus.on("parcel.*")
@bus.on("stock.reserve.undo")
async def work(event: Event) -> None:
    print(f"order {event.payload['id']}: {event.type}")


@bus.on("card.charge")
async def charge(event: Event) -> None:
    if event.payload["total"] > 100:
        raise UnrecoverableError("card is blocked")
    print(f"order {event.payload['id']}: {event.type}")


async def main() -> None:
    async with bus:
        for order in ({"id": 1, "total": 20}, {"id": 2, "total": 200}):
            handle = bus.emit("order.placed", order)
            print(f"order {order['id']}: {await handle.result()}")
        charged = await bus.find("card.charge", id=1)
        assert charged is not None
        parent = await bus.find("order.placed", id=1)
        assert parent is not None
        print(f"{charged.type} is a child of {parent.type}: {charged.parent_id == parent.event_id}")


if __name__ == "__main__":
    logging.getLogger("durabus").setLevel(logging.CRITICAL)  # failed attempts are expected here
    asyncio.run(main())

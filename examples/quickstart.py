"""The first five minutes: a bus in memory, two handlers, one event."""

import asyncio

from durabus import Event, EventBus


async def main() -> None:
    bus = EventBus("memory://")  # without an argument the same code is durable: sqlite:///durabus.db

    @bus.on("user.created")
    async def greet(event: Event) -> None:
        print(f"welcome, {event.payload['name']}")

    @bus.on("user.*")
    async def count(event: Event) -> str:
        return f"{event.type} was seen on attempt {event.attempts}"

    async with bus:
        await bus.publish("user.created", {"name": "Ada"})  # returns when both handlers are done

        handle = bus.emit("user.renamed", {"name": "Grace"})  # returns at once
        print(await handle.result())


if __name__ == "__main__":
    asyncio.run(main())

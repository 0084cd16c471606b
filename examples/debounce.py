"""Debounce with ``find``: take a result that is fresh enough, wait for one that is on its way, or ask for a new one."""

import asyncio

from durabus import Event, EventBus

bus = EventBus("memory://")
taken: list[str] = []


@bus.on("screenshot.wanted")
async def take(event: Event) -> None:
    taken.append(event.payload["page"])
    await bus.emit("screenshot.taken", {"page": event.payload["page"], "number": len(taken)}).stored()


@bus.on("screenshot.taken")
async def note(event: Event) -> None:
    """Nothing to do: ``find`` needs no handler. It only tells the bus that the type is known, or it would warn."""


async def screenshot(page: str, not_older_than: float) -> int:
    """The number of a screenshot of ``page``; at most one is taken, however many ask at once."""
    found = await bus.find("screenshot.taken", page=page, past=not_older_than)
    if found is None:
        waiting = asyncio.create_task(bus.find("screenshot.taken", page=page, past=not_older_than, future=10))
        if await bus.find("screenshot.wanted", page=page, past=not_older_than) is None:
            # Whoever is second, on any node, publishes under the same key, and that stores nothing.
            await bus.emit("screenshot.wanted", {"page": page}, idempotency_key=f"wanted:{page}").stored()
        found = await waiting
    assert found is not None
    number: int = found.payload["number"]
    return number


async def main() -> None:
    async with bus:
        print("five at once:", await asyncio.gather(*(screenshot("/home", 60) for _ in range(5))))
        print("fresh enough:", await screenshot("/home", 60))
        print("another page:", await screenshot("/about", 60))
        print("taken in all:", len(taken))


if __name__ == "__main__":
    asyncio.run(main())

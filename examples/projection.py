"""A read-optimised view that follows the log: revenue by customer, built twice from the same history."""

import asyncio
from collections import Counter
from collections.abc import Sequence

from durabus import EventLogProjectionBuilder, EventQueue, LogEntry, open_store


class Revenue:
    """Idempotent: an event that is applied twice counts once."""

    def __init__(self) -> None:
        self.by_customer: Counter[str] = Counter()
        self._seen: set[int] = set()

    def apply(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if entry.id not in self._seen:
                self._seen.add(entry.id)
                self.by_customer[entry.payload["customer"]] += entry.payload["total"]


async def main() -> None:
    store = await open_store("memory://")
    queue = EventQueue(store)
    for customer, total in (("ada", 10), ("grace", 25), ("ada", 5)):
        await queue.publish("order.paid", {"customer": customer, "total": total})
        event = await queue.poll()
        assert event is not None
        await queue.finalize(event.id)  # projections see what is finalized

    revenue = Revenue()
    projection = EventLogProjectionBuilder(store, name="revenue", apply=revenue.apply, event_type="order.*")
    print(f"applied {await projection.run_once()}: {dict(revenue.by_customer)}")
    print(f"applied {await projection.run_once()} more, lag {(await projection.status()).lag}")

    rebuilt = Revenue()  # a new version starts from the beginning and builds beside the old one
    second = EventLogProjectionBuilder(store, name="revenue", version=2, apply=rebuilt.apply, event_type="order.*")
    await second.run_once()
    print(f"rebuilt equals incremental: {rebuilt.by_customer == revenue.by_customer}")
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())

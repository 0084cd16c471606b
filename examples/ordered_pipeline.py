"""Orders of many customers on two workers: one customer's events one at a time and in order, customers side by side."""

import asyncio
import logging
import tempfile
from collections import defaultdict
from pathlib import Path

from durabus import Event, EventBus, open_store

STEPS = ("placed", "paid", "packed", "shipped")
seen: dict[str, list[str]] = defaultdict(list)
failed: set[str] = set()


async def handle(event: Event) -> None:
    customer, step = event.ordering_key or "", event.payload["step"]
    await asyncio.sleep(0.001)
    if step == "paid" and customer == "bob" and customer not in failed:
        failed.add(customer)
        raise ConnectionError("the bank does not answer")  # holds up bob alone
    seen[customer].append(step)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = await open_store(f"sqlite:///{Path(folder) / 'orders.db'}")
        workers = [EventBus(store, retry={"base_delay": 0.01}, concurrency=4) for _ in range(2)]
        for worker in workers:
            worker.subscribe("order.*", handle)
            await worker.start()
        for step in STEPS:
            for customer in ("ada", "bob", "eve"):
                workers[0].emit("order.moved", {"step": step}, ordering_key=customer)
        await workers[0].wait_until_idle()
        for customer, steps in sorted(seen.items()):
            print(f"{customer}: {' > '.join(steps)}")
        for worker in workers:
            await worker.shutdown()
        await store.close()


if __name__ == "__main__":
    logging.getLogger("durabus").setLevel(logging.CRITICAL)  # failed attempts are expected here
    asyncio.run(main())

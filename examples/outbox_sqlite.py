"""The order and its event are one commit: both are there, or neither is."""

import asyncio
import sqlite3
import tempfile
from pathlib import Path

from durabus import EventQueue, open_store


def check_credit(number: int, total: float) -> None:
    if total > 1000:
        raise ValueError(f"order {number} is too large")


async def place_order(queue: EventQueue, connection: sqlite3.Connection, number: int, total: float) -> None:
    """Business table and event in the caller's own transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute("INSERT INTO orders (number, total) VALUES (?, ?)", (number, total))
        await queue.publish("order.placed", {"order": number}, connection=connection)
        check_credit(number, total)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


async def main(path: Path) -> None:
    store = await open_store(f"sqlite:///{path}")
    queue = EventQueue(store)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("CREATE TABLE orders (number INTEGER PRIMARY KEY, total REAL NOT NULL)")

    await place_order(queue, connection, 1, 99.0)
    try:
        await place_order(queue, connection, 2, 5000.0)
    except ValueError as error:
        print(f"rolled back: {error}")

    orders = [row[0] for row in connection.execute("SELECT number FROM orders")]
    event = await queue.poll()
    assert event is not None
    print(f"orders in the table: {orders}")
    print(f"event: {event.type} for order {event.payload['order']}")
    await queue.finalize(event.id)
    print(f"another event: {await queue.poll()}")

    connection.close()
    await store.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "shop.db"))

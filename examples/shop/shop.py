"""A small shop: two buses on one SQLite file, and their handlers. README.md says how to run it.

web.py ──> order.placed ──> reserve-stock
                       └──> charge-card ──> receipt.due ──> send-receipt
"""

import sqlite3
from contextlib import closing

from durabus import Context, Event, SyncEventBus, TransientError, UnrecoverableError

DATABASE = "shop.db"
TABLES = """
    CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, item TEXT NOT NULL, amount REAL NOT NULL);
    CREATE TABLE IF NOT EXISTS reserved (order_number INTEGER PRIMARY KEY, item TEXT NOT NULL);
"""

# With serve=False a program that imports this module, as web.py does, publishes events and handles none.
# `durabus worker` serves a bus nevertheless. The mail has a bus of its own, so that it cannot hold up the orders.
orders = SyncEventBus(f"sqlite:///{DATABASE}", name="orders", serve=False)
mail = SyncEventBus(f"sqlite:///{DATABASE}", name="mail", serve=False, concurrency=5)


def connect() -> sqlite3.Connection:
    database = sqlite3.connect(DATABASE)
    # Only durabus writes the -wal file back: docs/howto/publish-in-your-own-transaction.md says why.
    database.execute("PRAGMA wal_autocheckpoint = 0")
    database.executescript(TABLES)
    return database


def reserve_stock(event: Event) -> None:
    # If the process dies before the success is stored, this handler runs again. So it must be harmless to run it twice.
    reserved = (event.payload["number"], event.payload["item"])
    with closing(connect()) as database, database:
        database.execute("INSERT OR IGNORE INTO reserved VALUES (?, ?)", reserved)


def charge_card(event: Event, context: Context) -> None:
    order = event.payload
    if order["amount"] > 1000:
        raise UnrecoverableError("over the limit")  # the event becomes a dead letter
    if order["item"] == "radio" and context.attempt == 1:
        raise TransientError("the bank is busy", retry_after=0.2)  # the handler is called again
    print(f"order {order['number']} charged on attempt {context.attempt}", flush=True)
    # With this key a second publish does nothing. Without parent_id=None the order stays open until the mail is sent.
    mail.publish("receipt.due", order, idempotency_key=f"receipt-{order['number']}", parent_id=None)


def send_receipt(event: Event) -> None:
    print(f"receipt for order {event.payload['number']}: {event.payload['item']}", flush=True)


orders.subscribe("order.placed", reserve_stock, id="reserve-stock")
orders.subscribe("order.placed", charge_card, id="charge-card")
mail.subscribe("receipt.due", send_receipt, id="send-receipt")

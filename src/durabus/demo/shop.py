"""The shop of the demo: orders lead to payments, payments to mail. Some handlers fail, always for the same orders.

Its handlers only wait, publish and fail, so they are rows of a table. ``examples/shop`` is a shop to copy.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial

from durabus import Context, Event, EventBus, NewEvent, new_event
from durabus.model.result import TransientError, UnrecoverableError

BUS = "shop"
ORDER, PAYMENT, MAIL = "order.placed", "payment.taken", "mail.requested"
ORDERS_PER_SECOND = 200
LEASE = 3.0
"""Seconds. Short, so that the events of a killed worker are soon taken over."""

DESK, POST = (0.002, 0.012), (0.030, 0.120)
ALWAYS = 1_000

HANDLERS = (
    # handler id, type of event, seconds of work, follow-up
    ("stock.reserve", ORDER, DESK, None),
    ("payment.take", ORDER, DESK, PAYMENT),
    ("ledger.book", PAYMENT, DESK, None),
    ("mail.order", PAYMENT, DESK, MAIL),
    ("mail.send", MAIL, POST, None),
    ("mail.file", MAIL, DESK, None),
)
FAILURES = (
    # handler id, first order that fails, orders from one that fails to the next, attempts that fail, error
    ("stock.reserve", 3, 10, 1, partial(TransientError, "stock is being counted")),
    ("stock.reserve", 99, 500, ALWAYS, partial(UnrecoverableError, "no such article")),
    ("payment.take", 50, 100, ALWAYS, partial(UnrecoverableError, "card declined")),
    ("ledger.book", 7, 40, 2, partial(TransientError, "ledger is locked", retry_after=0.3)),
    ("mail.send", 60, 150, ALWAYS, partial(ConnectionError, "mailbox does not respond")),
)

bus = EventBus(name=BUS, retry={"base_delay": 0.2}, lease=LEASE, concurrency=40, poll_interval=0.25)
"""What the demo's workers serve: ``durabus worker durabus.demo.shop:bus``."""


def order(number: int) -> NewEvent:
    """The event of one order."""
    payload = {"order": number, "total": round(5 + number * 7.3 % 95, 2)}
    return new_event(ORDER, payload, bus=BUS, idempotency_key=f"order-{number}")


async def handle(name: str, work: tuple[float, float], follow_up: str | None, event: Event, context: Context) -> None:
    """Work for a moment, then fail, or emit the follow-up, which is stored together with the success."""
    await asyncio.sleep(random.uniform(*work))
    number: int = event.payload["order"]
    for failing, first, distance, attempts, error in FAILURES:
        if failing == name and number in range(first, number + 1, distance) and context.attempt <= attempts:
            raise error()
    if follow_up is not None:
        context.emit(follow_up, {"order": number})


for name, type_, work, follow_up in HANDLERS:
    bus.subscribe(type_, partial(handle, name, work, follow_up), id=name)

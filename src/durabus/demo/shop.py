"""A small shop: orders lead to payments, payments to mail. Some handlers fail on purpose, always for the same orders.

::

    order.placed ────> stock.reserve
                 └───> payment.take, which publishes
    payment.taken ───> ledger.book
                  └──> mail.order, which publishes
    mail.requested ──> mail.send
                   └─> mail.file

Handlers publish follow-ups with an idempotency key. A handler may run twice, because its worker may die between the
publish and the settlement, but the follow-up exists once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from durabus import (
    Context,
    Event,
    EventBus,
    EventQueue,
    NewEvent,
    RetryPolicy,
    TransientError,
    UnrecoverableError,
    new_event,
)

BUS = "shop"
ORDER, PAYMENT, MAIL = "order.placed", "payment.taken", "mail.requested"
FOLLOW_UPS = {ORDER: PAYMENT, PAYMENT: MAIL}
RETRY = RetryPolicy(max_retries=3, base_delay=0.2)
LEASE = 3.0
"""Seconds. Short, so that the events of a killed worker are soon taken over."""

# Which orders fail: every n-th, beginning with the given one.
STOCK_BUSY = (10, 3)
UNKNOWN_ARTICLE = (500, 99)
CARD_DECLINED = (100, 50)
LEDGER_LOCKED = (40, 7)
MAILBOX_DEAD = (150, 60)

DESK_WORK = (0.002, 0.012)
MAIL_WORK = (0.030, 0.120)


def order(number: int) -> NewEvent:
    """The event of one order."""
    payload = {"order": number, "total": round(5 + number * 7.3 % 95, 2)}
    return new_event(ORDER, payload, bus=BUS, idempotency_key=f"order-{number}")


class Shop:
    """The handlers, and the queue they publish follow-ups on."""

    def __init__(self, bus: EventBus) -> None:
        self._queue = EventQueue(bus.store, bus=bus.name)
        bus.subscribe(ORDER, self.reserve_stock, id="stock.reserve")
        bus.subscribe(ORDER, self.take_payment, id="payment.take")
        bus.subscribe(PAYMENT, self.book, id="ledger.book")
        bus.subscribe(PAYMENT, self.order_mail, id="mail.order")
        bus.subscribe(MAIL, self.send_mail, id="mail.send")
        bus.subscribe(MAIL, self.file_mail, id="mail.file")

    async def reserve_stock(self, placed: Event, context: Context) -> None:
        """Fails once for every tenth order, and permanently if the article does not exist."""
        await _work(DESK_WORK)
        if _meets(placed.payload, UNKNOWN_ARTICLE):
            raise UnrecoverableError("no such article")
        if _meets(placed.payload, STOCK_BUSY) and context.attempt == 1:
            raise TransientError("stock is being counted")

    async def take_payment(self, placed: Event) -> None:
        """Fails permanently if the card is declined."""
        await _work(DESK_WORK)
        if _meets(placed.payload, CARD_DECLINED):
            raise UnrecoverableError("card declined")
        await self._follow_up(placed)

    async def book(self, _taken: Event, context: Context) -> None:
        """Needs three attempts if the ledger is locked."""
        await _work(DESK_WORK)
        if _meets(_taken.payload, LEDGER_LOCKED) and context.attempt <= 2:  # noqa: PLR2004  (the third succeeds)
            raise TransientError("ledger is locked", retry_after=0.3)

    async def order_mail(self, taken: Event) -> None:
        """Requests the receipt."""
        await _work(DESK_WORK)
        await self._follow_up(taken)

    async def send_mail(self, requested: Event) -> None:
        """Is slow. Some mailboxes never respond and use up all attempts."""
        await _work(MAIL_WORK)
        if _meets(requested.payload, MAILBOX_DEAD):
            raise ConnectionError("mailbox does not respond")

    async def file_mail(self, _requested: Event) -> None:
        """Files a copy."""
        await _work(DESK_WORK)

    async def _follow_up(self, cause: Event) -> None:
        number = cause.payload["order"]
        follow_up = FOLLOW_UPS[cause.type]
        await self._queue.publish(
            follow_up, {"order": number}, parent_id=cause.event_id, idempotency_key=f"{follow_up}-{number}"
        )


def _meets(payload: Mapping[str, Any], trouble: tuple[int, int]) -> bool:
    every, first = trouble
    number: int = payload["order"]
    return number >= first and (number - first) % every == 0


async def _work(seconds: tuple[float, float]) -> None:
    await asyncio.sleep(random.uniform(*seconds))


bus = EventBus(name=BUS, retry=RETRY, lease=LEASE, concurrency=40, poll_interval=0.25)
"""What the demo's workers serve: ``durabus worker durabus.demo.shop:bus``."""
Shop(bus)

"""Five hours of a shop in a store, and what its owner declares for the pipeline: for the pictures in the docs."""

import math
import random
import time

from durabus import EventStore, ManualClock, new_event, open_store
from durabus.model.claim import Claim, ClaimRequest, new_token
from durabus.model.event import NewEvent
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Settlement
from durabus.model.statuses import ResultStatus
from durabus.pipeline.expectations import Expectation, OnBreak
from durabus.pipeline.projections import Projection, latest_state
from durabus.pipeline.slos import Slo
from durabus.pipeline.tables import Declaration, EventTable

MINUTES = 300
SLOW = range(190, 215)
"""The minutes in which the bank hardly answers."""
CROWD = range(90, 101)
"""The minutes in which many customers come."""
TYPES = {
    "shop": ("order.placed", "payment.taken", "stock.reserved"),
    "mail": ("mail.requested", "newsletter.sent"),
    "web": ("page.viewed",),
}
HANDLERS = {
    "order.placed": ("orders.fulfil", "orders.audit"),
    "payment.taken": ("payments.capture",),
    "stock.reserved": ("stock.book",),
    "mail.requested": ("mail.send",),
    "newsletter.sent": ("mail.bulk",),
    "page.viewed": ("views.count",),
}
ERRORS = {
    "payment.taken": "TimeoutError: no answer from the bank after {} s",
    "mail.requested": "SMTPError: 550 mailbox 'customer {}' is full",
}

DECLARED: list[Declaration] = [
    latest_state("order"),
    Projection(
        name="spent",
        types=("order.*",),
        key={"customer": "get_json_object(payload, '$.customer')"},
        sql="""
            SELECT customer, count(*) AS orders, sum(CAST(get_json_object(payload, '$.total') AS DOUBLE)) AS total
            FROM {events} WHERE status = 'COMPLETED' GROUP BY customer
        """,
    ),
    EventTable(type="order.placed"),
    Expectation(name="an ended event was claimed", table="silver.events", rule="ended_at IS NULL OR claims > 0"),
    Expectation(name="an order costs something", table="silver.order_placed", rule="total > 0"),
    Expectation(
        name="an event ends within an hour",
        table="silver.events",
        rule="coalesce(end_to_end_ms, 0) < 3600000",
        action=OnBreak.FAIL,
    ),
    Slo(name="orders in time", objective=0.99, within=2.0, type="order.*", bus="shop"),
    Slo(name="payments are taken", objective=0.98, type="payment.*"),
]


class BusyShop:
    """Events, workers and a bank, minute by minute. The same seed makes the same history."""

    def __init__(self, store: EventStore, clock: ManualClock, seed: int = 7) -> None:
        self.store, self.clock, self.random = store, clock, random.Random(seed)
        self.orders = 0

    async def minute(self, number: int) -> None:
        """Let customers come and workers work in rounds of ten seconds."""
        load = 6 + 4 * math.sin(number / 45) + (9 if number in CROWD else 0)
        for _ in range(6):
            begin = self.clock.now()
            visits = max(0, round(self.random.gauss(load, 1.5)))
            await self.store.add_events([event for _ in range(visits) for event in self._events()])
            for bus in TYPES:
                await self._work(bus, number)
            self.clock.advance(max(0.01, 10.0 - (self.clock.now() - begin)))

    async def _work(self, bus: str, minute: int) -> None:
        self.clock.advance(self.random.uniform(0.01, 0.1))
        worker = f"{bus}-{self.random.randint(1, 2)}:811"
        slow = minute in SLOW and bus == "shop"
        request = ClaimRequest(bus=bus, worker_id=worker, token=new_token(), lease=300.0, limit=6 if slow else 100)
        claims = await self.store.claim_next_events(request)
        for first in range(0, len(claims), 4):
            await self.store.settle_events([self._end(claim, minute) for claim in claims[first : first + 4]])

    def _events(self) -> list[NewEvent]:
        bus = self.random.choices(list(TYPES), [6, 3, 3])[0]
        kind = self.random.choice(TYPES[bus])
        self.orders += 1
        order = {
            "order": self.orders,
            "customer": f"c{self.random.randint(1, 99)}",
            "total": round(self.random.uniform(-0.5, 90), 2),
        }
        made = [new_event(kind, order, bus=bus)]
        if kind == "order.placed":
            for child, of_bus, likely in (("payment.taken", "shop", 0.9), ("mail.requested", "mail", 0.7)):
                if self.random.random() < likely:
                    made.append(new_event(child, order, bus=of_bus, parent_id=made[0].event_id))
        return made

    def _end(self, claim: Claim, minute: int) -> Settlement:
        kind, slow = claim.event.type, minute in SLOW
        took = self.random.lognormvariate(3.2, 0.8) * (30 if slow and kind == "payment.taken" else 1)
        self.clock.advance(took / 1000)
        often = {"payment.taken": 0.25 if slow else 0.04, "mail.requested": 0.06}.get(kind, 0.005)
        if self.random.random() < often:
            error = ERRORS.get(kind, "KeyError: 'article {}'").format(self.random.randint(10, 99))
            last = claim.event.attempts >= 3 or self.random.random() < 0.3
            return Fail(claim.ref, error, None if last else 5.0, execution_time_ms=took)
        names = HANDLERS[kind]
        results = tuple(
            HandlerResult(
                handler_id=name, status=ResultStatus.SUCCEEDED, attempts=1, execution_time_ms=took / len(names)
            )
            for name in names
        )
        return Complete(claim.ref, results, (), took)


async def open_shop(url: str, minutes: int = MINUTES) -> None:
    """Write a history that ends now."""
    clock = ManualClock(time.time() // 60 * 60 - minutes * 60.0)
    store = await open_store(url, clock=clock)
    try:
        shop = BusyShop(store, clock)
        for number in range(minutes):
            await shop.minute(number)
    finally:
        await store.close()

"""Events with every kind of fate, made through the store as workers make them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from durabus import Event, EventStore, ManualClock, new_event, open_store
from durabus.model.claim import Claim, ClaimRequest, new_token
from durabus.model.event import DEFAULT_BUS
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Release
from durabus.model.statuses import ResultStatus

BEGIN = 1_990_000_000.0
"""The first instant. It is ahead of the host's clock, because Spark's workers use that one on the same store."""


class History:
    """A store, a clock that the test moves, and the verbs of a worker.

    Even the ids come from the clock, so the same history is identical in every store.
    """

    def __init__(self, store: EventStore, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock

    async def publish(self, kind: str = "order.placed", payload: object = None, **options: object) -> Event:
        options.setdefault("event_id", f"00000000-0000-7000-8000-{int(self.clock.now()):012d}")
        new = new_event(kind, {"order": 1} if payload is None else payload, **options)  # type: ignore[arg-type]
        (event,) = await self.store.add_events([new])
        self.clock.advance(1.0)
        return event

    async def claim(
        self, worker: str = "host:1", bus: str = DEFAULT_BUS, lease: float = 30.0, limit: int = 1
    ) -> list[Claim]:
        request = ClaimRequest(bus=bus, worker_id=worker, token=new_token(), lease=lease, limit=limit)
        claims = await self.store.claim_next_events(request)
        # A run of the pipeline writes by the host's clock, which goes on from the newest write: catch up with it.
        granted = max((one.event.picked_ts or 0.0 for one in claims), default=0.0)
        self.clock.advance(max(granted - self.clock.now(), 0.0) + 1.0)
        return claims

    async def complete(self, claim: Claim, *results: HandlerResult) -> None:
        only = None if results else "ship"
        await self.store.settle_events([Complete(claim.ref, results, (), 12.5, handler_id=only)])
        self.clock.advance(1.0)

    async def fail(self, claim: Claim, error: str, delay: float | None) -> None:
        await self.store.settle_events([Fail(claim.ref, error, delay, execution_time_ms=3.5)])
        self.clock.advance(1.0)

    async def completed(self, kind: str = "order.placed", payload: object = None, **options: object) -> Event:
        event = await self.publish(kind, payload, **options)
        claims = await self.claim(bus=event.bus, limit=100)
        for claim in claims:
            await self.complete(claim)
        return event

    async def varied(self, first: int = 1) -> None:
        """Make seven events: completed, retried, dead twice, released, abandoned, and one that waits."""
        await self.completed("order.placed", {"order": first, "total": 9.5}, tags=["eu"], metadata={"source": "web"})
        await self.publish("order.placed", {"order": first + 1})
        (claim,) = await self.claim("host:2")
        await self.store.start_events([claim.ref])
        await self.fail(claim, "Timeout: no answer from 10.0.0.7 after 30 s", 0.0)
        (claim,) = await self.claim("host:2")
        done = HandlerResult(handler_id="mail", status=ResultStatus.SUCCEEDED, attempts=2, execution_time_ms=7.0)
        await self.complete(claim, done)
        for number in (2, 3):
            await self.publish("payment.taken", {"order": first + number}, tags=["eu", "b2b"])
            (claim,) = await self.claim("host:1")
            await self.fail(claim, f"KeyError: 'customer {number}'", None)
        await self.publish("order.placed", {"order": first + 4})
        (claim,) = await self.claim("host:3")
        await self.store.settle_events([Release(claim.ref, reason="waits for stock")])
        (claim,) = await self.claim("host:3")
        await self.complete(claim)
        await self.publish("mail.requested", {"order": first})
        await self.claim("host:9", lease=5.0)
        self.clock.advance(10.0)
        (claim,) = await self.claim("host:1")
        await self.complete(claim)
        await self.publish("mail.requested", {"order": first + 1})


@asynccontextmanager
async def history_in(url: str) -> AsyncIterator[History]:
    """Yield a history for a fixture that many tests share. The store is closed once the history is written."""
    clock = ManualClock(BEGIN)
    store = await open_store(url, clock=clock)
    try:
        yield History(store, clock)
    finally:
        await store.close()

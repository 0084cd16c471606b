"""Work for the dashboard to show: handlers that fail until the test mends them."""

from __future__ import annotations

from durabus import Event, EventBus, EventStore, RetryPolicy, new_event
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.settlement import Fail

QUICK = RetryPolicy(max_retries=1, base_delay=0.01, max_delay=0.01)


class Till:
    """A handler with a broken till, which fails. Once the test has mended it, it succeeds."""

    def __init__(self) -> None:
        self.mended = False

    async def take_payment(self, event: Event) -> None:
        if not self.mended:
            self._open_drawer(event.payload["order"])

    def _open_drawer(self, order: int) -> None:
        raise RuntimeError(f"drawer is stuck at order {order}")


def open_bus(store_url: str, name: str, till: Till) -> EventBus:
    """Make a bus on the same file, in this process."""
    bus = EventBus(store_url, name=name, retry=QUICK, poll_interval=0.05)
    bus.subscribe("payment.*", till.take_payment, id="till.take")
    return bus


async def publish(
    store: EventStore, bus: str, count: int, *, type_: str = "payment.due", **options: object
) -> list[int]:
    new = [new_event(type_, {"order": number}, bus=bus, **options) for number in range(1, count + 1)]  # type: ignore[arg-type]
    return [event.id for event in await store.add_events(new)]


async def make_dead_letters(
    store: EventStore, bus: str, error: str = "RuntimeError: drawer is stuck at order {order}"
) -> None:
    """Every event that waits fails for good. By hand, because a breaker would save most of them from a worker."""
    request = ClaimRequest(bus=bus, worker_id="host:1", token=new_token(), limit=1000)
    claims = await store.claim_next_events(request)
    await store.settle_events([Fail(claim.ref, error.format(**claim.event.payload), None) for claim in claims])

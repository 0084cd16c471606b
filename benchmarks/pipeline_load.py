"""The log that the pipeline is measured on: published, claimed and settled through the store itself."""

from __future__ import annotations

import random

from durabus import new_event, open_store
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.settlement import Complete, Fail

KINDS = ("order.placed", "order.paid", "order.shipped", "user.created", "mail.sent")
ROWS_PER_EVENT = 3
AT_ONCE = 2_000
CUSTOMERS = 5_000


async def fill(url: str, rows: int, seed: int) -> None:
    """Add about ``rows`` log entries. One in fifty events is a dead letter."""
    rnd = random.Random(seed)
    events = rows // ROWS_PER_EVENT
    store = await open_store(url)
    for start in range(0, events, AT_ONCE):
        new = [
            new_event(
                rnd.choice(KINDS),
                {"order": rnd.randrange(events), "customer": f"c{rnd.randrange(CUSTOMERS)}", "note": "x" * 160},
                tags=["eu"] if rnd.random() < 0.3 else [],
            )
            for _ in range(min(AT_ONCE, events - start))
        ]
        await store.add_events(new)
        request = ClaimRequest(bus="default", worker_id=f"host:{start % 7}", token=new_token(), limit=AT_ONCE)
        claims = await store.claim_next_events(request)
        await store.settle_events(
            [
                Fail(claim.ref, f"Timeout after {rnd.randrange(60)} s", None, execution_time_ms=3.0)
                if rnd.random() < 0.02
                else Complete(claim.ref, execution_time_ms=rnd.random() * 50)
                for claim in claims
            ]
        )
    await store.close()

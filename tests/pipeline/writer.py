"""A process that publishes, claims and settles with random pauses: ``python -m tests.pipeline.writer URL SEED``.

On PostgreSQL it publishes in a transaction of its own and commits it late: others that began after it commit before it.
"""

import asyncio
import random
import sys
from collections.abc import Sequence

import asyncpg

from durabus import EventStore, new_event, open_store
from durabus.model.claim import ClaimRef, ClaimRequest, new_token
from durabus.model.event import NewEvent
from durabus.model.settlement import Complete, Fail, Settlement


async def main() -> None:
    url, seed = sys.argv[1:]
    rnd = random.Random(int(seed))
    store = await open_store(url)
    connection = await asyncpg.connect(url) if url.startswith("postgresql") else None
    while True:
        kinds = [rnd.choice(["order.placed", "payment.taken", "mail.requested"]) for _ in range(rnd.randint(1, 4))]
        new = [new_event(kind, {"order": rnd.randrange(50)}) for kind in kinds]
        if connection is None:
            await store.add_events(new)
        else:
            await publish_late(store, new, connection, rnd.uniform(0.0, 2.0))
        request = ClaimRequest(bus="default", worker_id=f"writer:{seed}", token=new_token(), limit=rnd.randint(1, 4))
        claims = await store.claim_next_events(request)
        await asyncio.sleep(rnd.uniform(0.0, 3.0))
        await store.settle_events([outcome(claim.ref, rnd) for claim in claims])


async def publish_late(store: EventStore, new: Sequence[NewEvent], connection: asyncpg.Connection, late: float) -> None:
    async with connection.transaction():
        await store.add_events(new, connection=connection)
        await asyncio.sleep(late)


def outcome(ref: ClaimRef, rnd: random.Random) -> Settlement:
    return Fail(ref, "no luck", rnd.choice([0.0, None])) if rnd.random() < 0.2 else Complete(ref)


asyncio.run(main())

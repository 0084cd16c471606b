"""A process that publishes, claims and settles with random pauses: ``python -m tests.pipeline.writer URL SEED``."""

import asyncio
import random
import sys

from durabus import new_event, open_store
from durabus.model.claim import ClaimRef, ClaimRequest, new_token
from durabus.model.settlement import Complete, Fail, Settlement


async def main() -> None:
    url, seed = sys.argv[1:]
    rnd = random.Random(int(seed))
    store = await open_store(url)
    while True:
        kinds = [rnd.choice(["order.placed", "payment.taken", "mail.requested"]) for _ in range(rnd.randint(1, 4))]
        await store.add_events([new_event(kind, {"order": rnd.randrange(50)}) for kind in kinds])
        request = ClaimRequest(bus="default", worker_id=f"writer:{seed}", token=new_token(), limit=rnd.randint(1, 4))
        claims = await store.claim_next_events(request)
        await asyncio.sleep(rnd.uniform(0.0, 3.0))
        await store.settle_events([outcome(claim.ref, rnd) for claim in claims])


def outcome(ref: ClaimRef, rnd: random.Random) -> Settlement:
    return Fail(ref, "no luck", rnd.choice([0.0, None])) if rnd.random() < 0.2 else Complete(ref)


asyncio.run(main())

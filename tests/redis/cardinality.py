"""Runs thousands of events on many buses through every transition, and counts the keys that are left.

::

    python -m tests.redis.cardinality 1000000
"""

import asyncio
import sys

from tests.redis.server import keys_of, prompt

from durabus.clock import monotonic
from durabus.model.claim import Claim, ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Release, Settlement
from durabus.model.statuses import ResultStatus
from durabus.stores.redis.store import RedisStore
from durabus.testing.servers.redis import RedisServer

BATCH = 1000
BUSES_PER_BATCH = 10


def _settlement(claim: Claim) -> Settlement:
    """Return a settlement: most events complete at once, some have several handlers, some fail or are retried."""
    number, ref = claim.event.payload["n"], claim.ref
    if number % 50 == 1:
        return Fail(ref, "no", None)
    if number % 50 == 2 and claim.event.attempts == 1 and not claim.event.errors:
        return Fail(ref, "not yet", 0.0)
    if number % 50 == 3 and not claim.results:
        return Release(ref, results=(HandlerResult(handler_id="a", status=ResultStatus.SUCCEEDED),))
    return Complete(ref)


async def _work_off(store: RedisStore, bus: str) -> None:
    def request() -> ClaimRequest:
        return ClaimRequest(bus=bus, worker_id="w:1", token=new_token(), limit=BATCH, lease=60.0)

    claims = await store.claim_next_events(request())
    while claims:
        answer = await store.settle_events([_settlement(claim) for claim in claims], then_claim=request())
        claims = answer.claims


async def run_through(store: RedisStore, events: int) -> None:
    """Publish and end all events, a thousand at a time, each time on a new bus; then delete them."""
    for start in range(0, events, BATCH):
        buses = [f"bus-{start}-{number}" for number in range(BUSES_PER_BATCH)]
        await store.add_events(
            [
                new_event(
                    "t",
                    {"n": start + n},
                    bus=buses[n % BUSES_PER_BATCH],
                    tags=["eu"] if n % 7 == 0 else (),
                    idempotency_key=f"key-{n}" if n % 5 == 0 else None,
                    ordering_key=f"line-{n % 12}" if n % 3 == 0 else None,
                )
                for n in range(min(BATCH, events - start))
            ]
        )
        for bus in buses:
            await _work_off(store, bus)
            await store.register_handlers(bus, "node", [], kept_for=None)
            await store.stop_bus(bus)
            lock = await store.claim_lock(f"lock-{bus}", worker_id="w", token=new_token(), lease=60.0)
            assert lock is not None


async def forget_all(store: RedisStore) -> None:
    while await store.purge_dead_letters(created_until_ts=await store.now()):
        pass
    while await store.trim_log(until=await store.log_head()):
        pass
    while await store.archive_buses(stopped_for=0):
        pass


async def main(events: int) -> None:
    with RedisServer() as server, prompt(server.url) as admin:
        store = RedisStore.from_url(server.url)
        await store.open()
        baseline, begun = keys_of(admin, "durabus"), monotonic()
        await run_through(store, events)
        full, memory = keys_of(admin, "durabus"), admin.info("memory")["used_memory"]
        print(f"{events:,} events in {monotonic() - begun:.0f} s: {len(full)} keys, {memory / 2**20:,.0f} MiB")  # noqa: T201
        await forget_all(store)
        left = {name for name in keys_of(admin, "durabus") if "locks:" not in name}
        print(f"all forgotten after {monotonic() - begun:.0f} s: {len(left)} keys: {sorted(left)}")  # noqa: T201
        assert left == baseline
        await store.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))

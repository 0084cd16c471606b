"""The number of keys does not grow with events or buses, and goes back when they are forgotten."""

import pytest
import redis
from tests.redis.cardinality import forget_all, main, run_through
from tests.redis.server import keys_of

from durabus.clock import ManualClock
from durabus.model.claim import new_token
from durabus.stores.redis.layout import KEYS
from durabus.stores.redis.store import RedisStore


@pytest.mark.slow
async def test_four_thousand_events_on_forty_buses_leave_no_key(url: str, admin: redis.Redis) -> None:
    clock = ManualClock()
    store = RedisStore.from_url(url, clock)
    await store.open()
    prefix = url.rpartition("=")[2]
    baseline = keys_of(admin, prefix)
    await run_through(store, 4_000)
    assert len(keys_of(admin, prefix)) < len(KEYS)
    assert (await store.counts()).completed == 3_920
    await forget_all(store)
    # locks are remembered for a day after their end, and swept when others are taken
    clock.advance(2 * 86_400)
    for number in range(30):
        lock = await store.claim_lock(f"sweeper-{number % 2}", worker_id="w", token=new_token(), lease=1.0)
        assert lock is not None
        await store.release_lock(lock)
    clock.advance(2 * 86_400)
    await store.claim_lock("last", worker_id="w", token=new_token(), lease=1.0)
    assert {name for name in keys_of(admin, prefix) if "locks:" not in name} == baseline
    assert admin.hlen(f"{{{prefix}}}:locks:data") == 1
    await store.close()


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_million_events_leave_no_key() -> None:
    await main(1_000_000)

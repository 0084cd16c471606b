"""``wait_for_work``: it is level-triggered, the server ends it, and it reconnects by itself."""

import asyncio

import pytest
import redis
from tests.redis.server import prompt, run

from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.settlement import Complete
from durabus.model.statuses import EventMode
from durabus.stores.redis import hints
from durabus.stores.redis.store import RedisStore
from durabus.testing.servers.redis import RedisServer

LONG = 60.0
SOON = 20.0
"""Seconds within which a hint comes, even on a busy machine."""


async def soon(store: RedisStore, bus: str = "default") -> asyncio.Task[bool]:
    """Return a task that has begun to wait for work."""
    task = asyncio.create_task(store.wait_for_work(bus, timeout=LONG))
    listening = store._of_this_loop()[1]
    async with asyncio.timeout(SOON):
        while bus not in listening._waiting or not listening._heard:  # noqa: ASYNC110  (its task does it)
            await asyncio.sleep(0.01)
    return task


async def test_work_of_one_bus_wakes_no_worker_of_another(store: RedisStore) -> None:
    mine, theirs = await soon(store, "mine"), await soon(store, "theirs")
    await asyncio.sleep(0.05)
    await store.add_events([new_event("t", bus="mine")])
    assert await asyncio.wait_for(mine, SOON)
    assert not theirs.done()
    theirs.cancel()


async def test_a_freed_global_lock_wakes_every_bus(store: RedisStore) -> None:
    await store.add_events([new_event("t", bus=bus) for bus in ("a", "b")])

    def request(bus: str) -> ClaimRequest:
        return ClaimRequest(bus=bus, worker_id="w", token=new_token(), mode=EventMode.GLOBAL_SERIAL)

    (claim,) = await store.claim_next_events(request("a"))
    await store.claim_next_events(request("b"))
    waiting = await soon(store, "c")
    await store.settle_events([Complete(claim.ref)])
    assert await asyncio.wait_for(waiting, SOON)


async def test_a_lost_connection_wakes_waiting_workers_and_the_next_wait_listens_again(
    store: RedisStore, admin: redis.Redis
) -> None:
    waiting = await soon(store)
    admin.client_kill_filter(_type="pubsub")
    assert await asyncio.wait_for(waiting, SOON)
    again = await soon(store)
    await store.add_events([new_event("t")])
    assert await asyncio.wait_for(again, SOON)


async def test_an_event_between_the_look_and_the_wait_is_not_missed(store: RedisStore) -> None:
    """In many rounds, a publish races with the beginning of a wait."""
    for _ in range(50):
        waiting = asyncio.create_task(store.wait_for_work("default", timeout=LONG))
        await asyncio.sleep(0)
        (event,) = await store.add_events([new_event("t")])
        assert await asyncio.wait_for(waiting, SOON)
        await store.remove_event(event.id)


async def test_unused_subscriptions_are_ended(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "MOST_CHANNELS", 5)
    for number in range(30):
        assert not await store.wait_for_work(f"bus-{number}", timeout=0)
    listening = store._of_this_loop()[1]
    async with asyncio.timeout(SOON):
        while len(listening._heard) > 10:  # noqa: ASYNC110  (its task does it)
            await asyncio.sleep(0.01)
    waiting = await soon(store, "bus-0")
    await store.add_events([new_event("t", bus="bus-0")])
    assert await asyncio.wait_for(waiting, SOON)


async def test_waits_that_begin_together_share_one_connection(own_server: RedisServer) -> None:
    store = RedisStore.from_url(own_server.url)
    await store.open()
    waits = [store.wait_for_work("default", timeout=0.1) for _ in range(20)]
    assert await asyncio.gather(*waits) == [False] * 20
    with prompt(own_server.url) as admin:
        assert len(admin.client_list(_type="pubsub")) == 1
    await store.close()


async def test_a_hundred_waits_are_one_subscription(store: RedisStore, admin: redis.Redis) -> None:
    tasks = [await soon(store) for _ in range(100)]
    name = store._keys[-1] + "default"
    assert run(admin, "PUBSUB", "SHARDNUMSUB", name) == [name.encode(), 1]
    await store.add_events([new_event("t")])
    assert await asyncio.wait_for(asyncio.gather(*tasks), SOON) == [True] * 100
    assert store._of_this_loop()[1]._waiting == {}

"""Ordering keys: what they leave behind on the server, what a claim costs, and what a damaged event does to its key."""

import pytest
import redis
from tests.redis.server import keys_of

from durabus.model.claim import Claim, ClaimRequest, new_token
from durabus.model.event import Event, new_event
from durabus.model.settlement import Complete, Fail, Release
from durabus.stores.redis.store import RedisStore


def key(url: str, name: str) -> str:
    return f"{{{url.rpartition('=')[2]}}}:{name}"


def request(limit: int = 10) -> ClaimRequest:
    return ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=limit, lease=30.0)


async def publish(store: RedisStore, *keys: str | None) -> list[Event]:
    return await store.add_events([new_event("t", {"n": n}, ordering_key=key) for n, key in enumerate(keys)])


async def claim(store: RedisStore, limit: int = 10) -> list[Claim]:
    return await store.claim_next_events(request(limit))


async def test_a_line_leaves_nothing_behind(url: str, store: RedisStore, admin: redis.Redis) -> None:
    await publish(store, *(f"key-{n % 40}" for n in range(200)))
    assert admin.hlen(key(url, "events:fronts")) == 40
    assert admin.zcard(key(url, "events:blocked")) == 160
    assert (await store.counts()).pending == 200
    rounds = 0
    while claims := await claim(store, limit=1000):
        assert len({one.event.ordering_key for one in claims}) == len(claims) == 40
        await store.settle_events([Complete(one.ref) for one in claims])
        rounds += 1
    assert rounds == 5
    assert not keys_of(admin, url.rpartition("=")[2]) & {key(url, "events:fronts"), key(url, "events:blocked")}


async def test_the_cost_of_a_claim_does_not_depend_on_events_that_wait(
    url: str, store: RedisStore, admin: redis.Redis
) -> None:
    """Ten thousand events wait behind the first of a key. A claim runs as many commands as without them."""

    async def commands_of_a_claim() -> int:
        before = sum(one["calls"] for one in admin.info("commandstats").values())
        (claimed,) = await claim(store)
        after = sum(one["calls"] for one in admin.info("commandstats").values())
        await store.settle_events([Release(claimed.ref)])
        return int(after - before)

    await publish(store, "a")
    alone = await commands_of_a_claim()
    await publish(store, *["a"] * 10_000)
    assert await commands_of_a_claim() == alone


@pytest.mark.parametrize("order", [(2, 0, 1), (0, 1, 2), (1, 2, 0)])
async def test_dead_letters_that_come_back_together_line_up_by_id(store: RedisStore, order: tuple[int, ...]) -> None:
    events = await publish(store, "a", "a", "a")
    for _ in events:
        (claimed,) = await claim(store)
        await store.settle_events([Fail(claimed.ref, "no", None)])
    await store.requeue_dead_letters([events[place].id for place in order])
    seen: list[int] = []
    while claims := await claim(store):
        seen += [one.event.id for one in claims]
        await store.settle_events([Complete(one.ref) for one in claims])
    assert seen == [event.id for event in events]


async def test_a_requeued_dead_letter_goes_before_an_event_that_waits_for_a_retry(store: RedisStore) -> None:
    first, second = await publish(store, "a", "a")
    (claimed,) = await claim(store)
    await store.settle_events([Fail(claimed.ref, "no", None)])
    (claimed,) = await claim(store)
    await store.requeue_dead_letters([first.id])
    await store.settle_events([Fail(claimed.ref, "not yet", 0.0)])
    (claimed,) = await claim(store)
    assert claimed.event.id == first.id
    await store.settle_events([Complete(claimed.ref)])
    assert [one.event.id for one in await claim(store)] == [second.id]


async def test_removed_events_do_not_stop_their_key(store: RedisStore) -> None:
    events = await publish(store, "a", "a", "a", "a")
    await store.remove_event(events[0].id)
    await store.remove_event(events[2].id)
    (claimed,) = await claim(store)
    assert claimed.event.id == events[1].id
    await store.settle_events([Complete(claimed.ref)])
    assert [one.event.id for one in await claim(store)] == [events[3].id]


async def test_damaged_events_do_not_stop_their_line(url: str, store: RedisStore, admin: redis.Redis) -> None:
    events = await publish(store, *["a"] * 6)
    for damaged in events[1:4]:
        admin.hdel(key(url, "events:state"), str(damaged.id))
    (claimed,) = await claim(store)
    await store.settle_events([Complete(claimed.ref)])
    assert [one.event.id for one in await claim(store)] == [events[4].id]


async def test_a_front_that_was_damaged_is_passed_when_another_comes(
    url: str, store: RedisStore, admin: redis.Redis
) -> None:
    (front,) = await publish(store, "a")
    admin.hdel(key(url, "events:state"), str(front.id))
    (second,) = await publish(store, "a")
    assert [one.event.id for one in await claim(store)] == [second.id]

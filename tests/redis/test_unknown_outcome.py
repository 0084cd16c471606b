"""The network is cut after the request and before the reply: the store asks again, and everything takes effect once."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import redis
from tests.redis.server import publish_in_the_end
from tests.servers.proxy import Proxy

from durabus.errors import StoreUnavailableError
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.handler import HandlerInfo
from durabus.model.settlement import Complete, Fail, Settled
from durabus.model.statuses import Action
from durabus.stores.redis.store import RedisStore


@pytest.fixture
async def proxy(url: str) -> AsyncIterator[Proxy]:
    async with Proxy(url).running() as running:
        yield running


@pytest.fixture
async def behind(proxy: Proxy) -> AsyncIterator[RedisStore]:
    """A store whose connection goes through the proxy."""
    opened = RedisStore.from_url(proxy.url + "&timeout=20")
    await opened.open()
    yield opened
    proxy.still = False
    await opened.close()


def request(limit: int = 10, lease: float = 30.0) -> ClaimRequest:
    return ClaimRequest(bus="default", worker_id="w:1", token=new_token(), limit=limit, lease=lease)


async def test_every_step_of_an_event_takes_effect_once(behind: RedisStore, store: RedisStore, proxy: Proxy) -> None:
    proxy.swallow_answers = 2
    events = await behind.add_events([new_event("t", {"n": n}) for n in range(5)])
    assert proxy.swallow_answers == 0
    assert (await store.counts()).pending == 5

    proxy.swallow_answers = 1
    claims = await behind.claim_next_events(request())
    assert [claim.event.id for claim in claims] == [event.id for event in events]
    assert {claim.event.attempts for claim in claims} == {1}

    proxy.swallow_answers = 1
    await behind.start_events([claim.ref for claim in claims])

    proxy.swallow_answers = 3
    first, second, *rest = claims
    answer = await behind.settle_events(
        [Complete(first.ref), Fail(second.ref, "no", 0.0), *(Complete(claim.ref) for claim in rest)],
        then_claim=request(),
    )
    assert all(isinstance(outcome, Settled) for outcome in answer.outcomes)
    assert [claim.event.attempts for claim in answer.claims] == [2]
    actions = [entry.action for entry in (await store.read_log()).entries]
    assert [actions.count(action) for action in (Action.PUBLISHED, Action.PICKED, Action.STARTED)] == [5, 6, 5]
    assert [actions.count(action) for action in (Action.COMPLETED, Action.FAILED)] == [4, 1]


async def test_locks_and_registrations_take_effect_once(behind: RedisStore, store: RedisStore, proxy: Proxy) -> None:
    proxy.swallow_answers = 1
    lock = await behind.claim_lock("report", worker_id="w", token=new_token(), lease=30.0)
    assert lock is not None
    proxy.swallow_answers = 1
    await behind.release_lock(lock)
    proxy.swallow_answers = 1
    await behind.register_handlers("b", "n", [HandlerInfo(handler_id="h", pattern="*")], kept_for=None)
    assert await store.list_locks() == []
    assert len((await store.list_handlers("b")).handlers) == 1


async def test_many_callers_outlive_a_cut_together(behind: RedisStore, store: RedisStore, proxy: Proxy) -> None:
    async def publish(number: int) -> int:
        (event,) = await behind.add_events([new_event("t", {"n": number})])
        return event.id

    tasks = [asyncio.create_task(publish(number)) for number in range(200)]
    await asyncio.sleep(0)
    proxy.cut()
    ids = await asyncio.gather(*tasks)
    assert len(set(ids)) == 200
    assert (await store.counts()).pending == 200


async def test_a_line_that_stands_still_is_given_up_in_time(proxy: Proxy, store: RedisStore) -> None:
    behind = RedisStore.from_url(proxy.url + "&timeout=0.5")
    await behind.open()
    proxy.still = True
    loop = asyncio.get_running_loop()
    begun = loop.time()
    with pytest.raises(
        StoreUnavailableError, match=r"within 0.5 s.*may or may not have taken effect, repeating it is safe"
    ):
        await behind.add_events([new_event("t")])
    assert 0.4 < loop.time() - begun < 20
    proxy.still = False
    proxy.cut()
    await publish_in_the_end(behind)
    await behind.close()


async def test_an_idle_connection_that_the_server_closed_is_made_again(store: RedisStore, admin: redis.Redis) -> None:
    await store.counts()
    admin.client_kill_filter(_type="normal", skipme=True)
    assert (await store.counts()).pending == 0

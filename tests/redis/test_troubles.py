"""A server that is away, full, a replica, or does not know us: clear errors in bounded time, then work goes on."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis
from tests.redis.server import prompt, publish_in_the_end, run
from tests.servers.presence import installed

from durabus.errors import SchemaError, StoreError, StoreUnavailableError
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.settlement import Complete
from durabus.stores.redis.store import RedisStore
from durabus.testing.servers.redis import RedisServer

pytestmark = pytest.mark.processes


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[RedisStore]:
    store = RedisStore.from_url(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def refuses_to_open(url: str) -> StoreError:
    store = RedisStore.from_url(url)
    begun = asyncio.get_running_loop().time()
    with pytest.raises(StoreError) as caught:
        await store.open()
    assert asyncio.get_running_loop().time() - begun < 8  # a call has ten
    await store.close()
    return caught.value


async def test_a_missing_server_is_reported_at_once(own_server: RedisServer) -> None:
    url = own_server.url
    own_server.kill()
    error = await refuses_to_open(url)
    assert isinstance(error, StoreUnavailableError)
    assert "Is the server running? Nothing was sent" in str(error)


async def test_a_wrong_password_is_reported_at_once(redis_url: str) -> None:
    password = redis_url.rpartition("@")[0].rpartition(":")[2]
    error = await refuses_to_open(redis_url.replace(password, "guess"))
    assert "does not accept the user or password of the URL" in str(error)
    error = await refuses_to_open(redis_url.replace(f":{password}@", ""))
    assert "does not accept the user or password of the URL" in str(error)


async def test_a_user_without_rights_gets_an_error(own_server: RedisServer) -> None:
    with prompt(own_server.url) as admin:
        run(admin, "ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@read")
    address = own_server.url.partition("@")[2]
    error = await refuses_to_open(f"redis://reader:pw@{address}")
    assert "lacks a right (it needs FCALL, FUNCTION LOAD, its keys and channels)" in str(error)


async def test_calls_ride_through_a_restart(own_server: RedisServer) -> None:
    with prompt(own_server.url) as admin:
        run(admin, "CONFIG", "SET", "appendfsync", "always")  # else a kill may take what was just acknowledged
    async with opened(own_server.url + "?timeout=40") as store:
        first = await store.add_events([new_event("t")])
        own_server.kill()
        waiting = asyncio.create_task(store.add_events([new_event("t")]))
        await asyncio.to_thread(own_server.start)
        (second,) = await waiting
        assert second.id == first[0].id + 1
        await store.verify()


async def test_without_a_server_a_call_ends_in_time(own_server: RedisServer) -> None:
    async with opened(own_server.url + "?timeout=1.5") as store:
        own_server.kill()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with pytest.raises(StoreUnavailableError):
            await store.counts()
        assert 1.4 < loop.time() - begun < 20
        await asyncio.to_thread(own_server.start)
        await publish_in_the_end(store)


async def test_a_frozen_server_is_given_up_and_found_again(own_server: RedisServer) -> None:
    async with opened(own_server.url + "?timeout=1.5") as store:
        os.kill(own_server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnavailableError, match="repeating it is safe"):
                await store.add_events([new_event("t")])
        finally:
            os.kill(own_server.pid, signal.SIGCONT)
        await publish_in_the_end(store)


async def test_a_full_server_takes_nothing_but_can_be_emptied(own_server: RedisServer) -> None:
    async with opened(own_server.url) as store:
        await store.add_events([new_event("t", {"n": n}) for n in range(20)])
        claims = await store.claim_next_events(
            ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=10, lease=30.0)
        )
        await store.settle_events([Complete(claim.ref) for claim in claims])
        with prompt(own_server.url) as admin:
            admin.config_set("maxmemory-policy", "noeviction")
            admin.config_set("maxmemory", "1mb")
            before = await store.counts()
            with pytest.raises(StoreUnavailableError, match="out of memory and wrote nothing: raise maxmemory"):
                await store.add_events([new_event("t")])
            assert await store.counts() == before
            assert len((await store.read_log()).entries) == 40
            assert await store.trim_event_history("default", older_than=0) == 10
            admin.config_set("maxmemory", "0")
        await store.add_events([new_event("t")])


@pytest.fixture
def replica(own_server: RedisServer, tmp_path: Path) -> Iterator[RedisServer]:
    with installed(RedisServer(tmp_path / "replica")) as server:
        port = own_server.url.rpartition(":")[2].partition("/")[0]
        with prompt(server.url) as admin, prompt(own_server.url) as primary:
            admin.config_set("masterauth", primary.connection_pool.connection_kwargs["password"])
            admin.replicaof("127.0.0.1", port)
        yield server


async def until_synced(server: RedisServer) -> None:
    with prompt(server.url) as admin:
        async with asyncio.timeout(20):
            while admin.info("replication")["master_link_status"] != "up":  # noqa: ASYNC110  (the server's doing)
                await asyncio.sleep(0.05)


async def test_a_replica_is_refused_and_a_failover_found(own_server: RedisServer, replica: RedisServer) -> None:
    async with opened(own_server.url) as store:
        (event,) = await store.add_events([new_event("t")])
        await until_synced(replica)
        with prompt(own_server.url) as primary:
            assert primary.wait(1, 20_000) == 1
    async with opened(replica.url + "?timeout=40") as store:
        # a replica has data and functions, and even serves reads; a write waits for a promotion
        assert await store.get_event(event.id) == event
        waiting = asyncio.create_task(store.add_events([new_event("t")]))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        with prompt(replica.url) as admin:
            run(admin, "REPLICAOF", "NO", "ONE")
        (second,) = await waiting
        assert second.id == event.id + 1


async def test_a_replica_that_stays_one_is_named(own_server: RedisServer, replica: RedisServer) -> None:
    async with opened(own_server.url) as store:
        await store.counts()
    await until_synced(replica)
    async with opened(replica.url + "?timeout=1.5") as store:
        with pytest.raises(StoreUnavailableError, match="read-only replica and wrote nothing"):
            await store.add_events([new_event("t")])


async def test_flushed_data_are_an_error_until_the_store_is_opened_again(own_server: RedisServer) -> None:
    async with opened(own_server.url) as store:
        await store.add_events([new_event("t")])
        with prompt(own_server.url) as admin:
            admin.flushall()
        with pytest.raises(SchemaError, match="accepted events are lost"):
            await store.claim_next_events(ClaimRequest(bus="default", worker_id="w", token=new_token()))
    async with opened(own_server.url) as store:
        assert (await store.counts()).pending == 0


async def until_busy(admin: redis.Redis) -> None:
    while True:
        try:
            admin.ping()
        except redis.exceptions.ResponseError as error:
            assert "BUSY" in str(error)  # noqa: PT017  (any other is one too many)
            return
        await asyncio.sleep(0.01)


async def test_a_busy_server_is_waited_for(own_server: RedisServer) -> None:
    """A slow script of another program makes the server reply BUSY."""
    async with opened(own_server.url) as store:
        with prompt(own_server.url) as admin:
            admin.config_set("busy-reply-threshold", "50")

            def run_slowly() -> None:
                with prompt(own_server.url) as other, pytest.raises(redis.exceptions.ResponseError, match="killed"):
                    other.eval("while true do end", 0)

            slow = asyncio.create_task(asyncio.to_thread(run_slowly))
            await until_busy(admin)
            waiting = asyncio.create_task(store.counts())
            await asyncio.sleep(0.3)
            assert not waiting.done()
            admin.script_kill()
            assert (await waiting).pending == 0
            await slow

"""Two nodes of a cluster: the store finds the one that has its slot, and follows when the slot moves."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.redis.server import prompt, run
from tests.servers.presence import installed

from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.settlement import Complete, Settled
from durabus.stores.redis.layout import key_names
from durabus.stores.redis.store import RedisStore
from durabus.testing.servers.process import LOWEST, is_free
from durabus.testing.servers.redis import RedisServer

pytestmark = pytest.mark.processes

HALF = 8192


def cluster_node(folder: Path, bus_port: int) -> RedisServer:
    """Return a node. Its cluster bus gets a free port: by default it would use one of the ports of clients."""
    settings = {"cluster-enabled": "yes", "cluster-require-full-coverage": "no", "cluster-port": str(bus_port)}
    return installed(RedisServer(folder, settings=settings))


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[RedisServer]]:
    # Below those that servers choose from: one of them must not take it before its bus does.
    buses = [port for port in random.sample(range(LOWEST - 5000, LOWEST), 200) if is_free(port)][:2]
    with (
        cluster_node(tmp_path / "a", buses[0]) as one,
        cluster_node(tmp_path / "b", buses[1]) as two,
        prompt(one.url) as first,
        prompt(two.url) as second,
    ):
        run(first, "CLUSTER", "ADDSLOTSRANGE", 0, HALF - 1)
        run(second, "CLUSTER", "ADDSLOTSRANGE", HALF, 2 * HALF - 1)
        run(second, "CLUSTER", "MEET", "127.0.0.1", port(one), buses[0])
        yield [one, two]


def port(server: RedisServer) -> str:
    return server.url.rpartition(":")[2].partition("/")[0]


async def agreed(nodes: list[RedisServer], slot: int, owner: RedisServer) -> None:
    """Wait until both nodes say that ``owner`` has ``slot``."""
    async with asyncio.timeout(30):
        for node in nodes:
            with prompt(node.url) as admin:
                while not says_so(admin, slot, owner):  # noqa: ASYNC110  (the servers gossip)
                    await asyncio.sleep(0.05)


def says_so(admin: redis.Redis, slot: int, owner: RedisServer) -> bool:
    if b"cluster_state:ok" not in run(admin, "CLUSTER", "INFO"):
        return False
    rows = run(admin, "CLUSTER", "SLOTS")
    return any(first <= slot <= last and str(node[1]) == port(owner) for first, last, node, *_ in rows)


def slot_of(admin: redis.Redis, prefix: str) -> int:
    (slot,) = {run(admin, "CLUSTER", "KEYSLOT", name) for name in key_names(prefix)}
    return int(slot)


@pytest.mark.timeout(90)
@pytest.mark.parametrize("prefix", ["durabus", "shop", "mail"])
async def test_the_node_that_has_the_slot_is_found(nodes: list[RedisServer], prefix: str) -> None:
    with prompt(nodes[0].url) as admin:
        slot = slot_of(admin, prefix)
    owner = nodes[slot // HALF]
    # the password differs from node to node here; a cluster has one
    same_password(nodes)
    await agreed(nodes, slot, owner)
    for node in nodes:
        store = RedisStore.from_url(f"{node.url}?prefix={prefix}")
        await store.open()
        await store.verify()
        await store.add_events([new_event("t", {"n": n}, tags=["eu"]) for n in range(20)])
        request = ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=20, lease=30.0)
        claims = await store.claim_next_events(request)
        waiting = asyncio.create_task(store.wait_for_work("default", timeout=60))
        await asyncio.sleep(0.2)
        answer = await store.settle_events([Complete(claim.ref) for claim in claims])
        assert [type(outcome) for outcome in answer.outcomes] == [Settled] * 20
        await store.add_events([new_event("t")])
        assert await asyncio.wait_for(waiting, 30)
        (claim,) = await store.claim_next_events(ClaimRequest(bus="default", worker_id="w", token=new_token()))
        await store.settle_events([Complete(claim.ref)])
        await store.close()
    with prompt(owner.url) as admin:
        assert run(admin, "CLUSTER", "COUNTKEYSINSLOT", slot) > 0


def same_password(nodes: list[RedisServer]) -> None:
    with prompt(nodes[0].url) as one, prompt(nodes[1].url) as two:
        for admin in (one, two):
            for other in (one, two):
                password = other.connection_pool.connection_kwargs["password"]
                run(admin, "ACL", "SETUSER", "default", f">{password}")


@pytest.mark.timeout(90)
async def test_a_slot_that_moves_is_followed(nodes: list[RedisServer]) -> None:
    same_password(nodes)
    with prompt(nodes[0].url) as one, prompt(nodes[1].url) as two:
        slot = slot_of(one, "durabus")
        source, target = (one, two) if slot < HALF else (two, one)
        owner, other = (nodes[0], nodes[1]) if slot < HALF else (nodes[1], nodes[0])
        await agreed(nodes, slot, owner)
        store = RedisStore.from_url(owner.url)
        await store.open()
        await store.add_events([new_event("t") for _ in range(50)])
        source_id, target_id = (run(admin, "CLUSTER", "MYID") for admin in (source, target))
        run(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        run(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        names = run(source, "CLUSTER", "GETKEYSINSLOT", slot, 100)
        calling = asyncio.create_task(store.add_events([new_event("t")]))
        password = target.connection_pool.connection_kwargs["password"]
        await asyncio.to_thread(
            run,
            source,
            *("MIGRATE", "127.0.0.1", port(other), "", 0, 5000, "AUTH", password, "KEYS", *names),
        )
        for admin in (target, source):
            run(admin, "CLUSTER", "SETSLOT", slot, "NODE", target_id)
        await asyncio.wait_for(calling, 30)
        assert (await store.counts()).pending == 51
        assert run(target, "CLUSTER", "COUNTKEYSINSLOT", slot) > 0
        await store.close()

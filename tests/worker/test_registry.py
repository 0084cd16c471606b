"""What a node knows of the handlers of other nodes, and they of its own."""

import asyncio

import pytest
from msgspec.structs import replace
from tests.seeds.support import until
from tests.worker.support import make_handler

from durabus.clock import ManualClock
from durabus.errors import StoreUnavailableError
from durabus.model.claim import Claim, ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.handler import Registered
from durabus.model.settlement import Complete
from durabus.stores.memory.store import MemoryStore
from durabus.worker.registry import RESTART, Registry

KEPT_FOR = 100.0


def node(store: MemoryStore, *handlers: tuple[str, str], kept_for: float | None = KEPT_FOR) -> Registry:
    registry = Registry(store, "default", kept_for=kept_for)
    made = [make_handler(print, id=id_, pattern=pattern) for id_, pattern in handlers]
    registry.announce(lambda: made)
    return registry


async def claim(store: MemoryStore) -> Claim:
    await store.add_events([new_event("user.created")])
    request = ClaimRequest(bus="default", worker_id="me:1", token=new_token())
    (claimed,) = await store.claim_next_events(request)
    return claimed


async def elsewhere(registry: Registry, store: MemoryStore, event_type: str = "user.created") -> set[str]:
    revision = (await claim(store)).revision
    await registry.learn(revision)
    found = registry.remote_handlers(event_type, revision)
    assert found is not None
    return set(found)


async def names(store: MemoryStore) -> list[str]:
    return [info.handler_id for info in (await store.list_handlers("default")).handlers]


async def _is(store: MemoryStore, expected: list[str]) -> bool:
    return await names(store) == expected


async def test_a_handler_of_another_node_is_known_by_its_pattern() -> None:
    store = MemoryStore()
    await node(store, ("theirs", "user.*")).announced()
    me = node(store)
    assert await elsewhere(me, store) == {"theirs"}
    assert await elsewhere(me, store, "order.placed") == set()


async def test_the_handlers_of_a_node_are_not_remote_for_it() -> None:
    store = MemoryStore()
    me = node(store, ("mine", "user.*"))
    await me.announced()
    assert await elsewhere(me, store) == set()


async def test_a_handler_that_joined_since_is_unknown_until_it_is_learned() -> None:
    store = MemoryStore()
    me = node(store, ("mine", "user.*"))
    await me.announced()
    assert await elsewhere(me, store) == set()
    await node(store, ("theirs", "user.*")).announced()
    later = (await claim(store)).revision
    assert me.remote_handlers("user.created", later) is None
    await me.learn(later)
    assert me.remote_handlers("user.created", later) == ("theirs",)


async def test_a_node_knows_the_handlers_for_claims_before_and_after_a_change() -> None:
    store = MemoryStore()
    me = node(store, ("mine", "user.*"))
    await me.announced()
    before = (await claim(store)).revision
    await node(store, ("theirs", "user.*")).announced()
    await me.learn(before)  # learned late: the list is newer than the claim
    assert me.remote_handlers("user.created", before) == ("theirs",)
    after = (await claim(store)).revision
    assert me.remote_handlers("user.created", after) == ("theirs",)


async def test_unsubscribing_on_one_node_leaves_the_other_nodes_handler() -> None:
    store = MemoryStore()
    me, other = node(store, ("h", "user.*")), node(store, ("h", "user.*"))
    await me.announced()
    await other.announced()
    me.announce(list)
    await me.announced()
    assert await elsewhere(me, store) == {"h"}


async def test_a_node_that_was_last_seen_long_ago_is_not_waited_for() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    await node(store, ("theirs", "user.*")).announced()
    clock.advance(KEPT_FOR - 1)
    assert await elsewhere(node(store), store) == {"theirs"}
    clock.advance(1)
    assert await elsewhere(node(store), store) == set()


async def test_a_node_that_was_shut_down_is_waited_for_a_short_time() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    other = node(store, ("theirs", "user.*"))
    other.start()
    await other.close()
    clock.advance(RESTART - 1)
    assert await names(store) == ["theirs"]
    clock.advance(1)
    assert await names(store) == []


async def test_handlers_kept_without_end_outlive_a_shutdown() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    other = node(store, ("theirs", "user.*"), kept_for=None)
    other.start()
    await other.close()
    clock.advance(1e9)
    assert await names(store) == ["theirs"]


async def test_a_change_is_announced_without_waiting_for_the_next_round() -> None:
    store = MemoryStore()
    me = node(store, ("first", "user.*"))
    me.start()
    await me.announced()
    me.announce(lambda: [make_handler(print, id="second", pattern="*")])
    await until(lambda: _is(store, ["second"]))
    await me.close()


async def test_a_forgotten_bus_leaves_nothing_in_memory() -> None:
    store = MemoryStore()
    await node(store, ("mine", "user.*")).announced()
    claimed = await claim(store)
    await store.settle_events([Complete(claimed.ref)])
    assert not await store.wait_for_work("default", timeout=0.001)
    await store.cleanup_excess_events("default", keep=0)
    await store.stop_bus("default")
    assert await store.archive_buses(stopped_for=0) == 1
    assert (store._bus_queues, store._waiting._by_bus, store._handlers, store._revisions) == ({}, {}, {}, {})


class OfShards(MemoryStore):
    """A store whose list has another revision than each claim, as in a store of several shards."""

    looks = 0

    async def list_handlers(self, bus: str) -> Registered:
        self.looks += 1
        registered = await super().list_handlers(bus)
        return replace(registered, revision=f"{registered.revision}|{registered.revision}")


async def test_the_revisions_of_all_shards_stay_known_until_the_list_changes() -> None:
    store = OfShards()
    me = node(store, ("mine", "user.*"))
    await me.announced()
    for _ in range(3):
        for revision in ("of shard 1", "of shard 2"):
            if me.remote_handlers("user.created", revision) is None:
                await me.learn(revision)
    assert store.looks == 2
    await node(store, ("theirs", "user.*")).announced()
    await me.learn("of shard 2, later")
    assert me.remote_handlers("user.created", "of shard 1") is None
    assert me.remote_handlers("user.created", "of shard 2, later") == ("theirs",)


class Unreachable(MemoryStore):
    """Loses one registration, after it was applied or before."""

    failures = 0

    async def register_handlers(self, *arguments: object, **options: object) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailableError("no reply")
        await super().register_handlers(*arguments, **options)  # type: ignore[arg-type]


async def test_an_announcement_that_failed_is_made_again() -> None:
    store = Unreachable()
    store.failures = 1
    me = node(store, ("mine", "user.*"))
    with pytest.raises(StoreUnavailableError):
        await me.announced()
    await me.announced()
    assert await names(store) == ["mine"]


async def test_a_publisher_waits_for_an_announcement_that_is_under_way() -> None:
    store = MemoryStore()
    me = node(store, ("mine", "user.*"))
    waiting = [asyncio.create_task(me.announced()) for _ in range(3)]
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert done
    assert await names(store) == ["mine"]
    await asyncio.gather(*waiting)

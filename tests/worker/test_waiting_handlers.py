"""Handlers that wait for the end of other events neither stand still nor hold up others."""

import asyncio

import pytest
from msgspec.structs import replace
from tests.seeds.support import ONCE, Recorder

from durabus import Event, EventBus, EventStatus, SyncEventBus, open_store
from durabus.stores.memory.store import MemoryStore

pytestmark = pytest.mark.timeout(60)

SERIAL = ["bus-serial", "global-serial"]


class PlainStore(MemoryStore):
    """A store that cannot claim an event by its ``event_id``."""

    features = replace(MemoryStore.features, claims_by_event_id=False)


def yielded(bus: EventBus) -> int:
    assert bus._worker is not None
    return bus._worker._slots.yielded


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("wait", ["publish", "await the handle"])
async def test_handlers_that_all_wait_for_others_do_not_stand_still(concurrency: int, wait: str) -> None:
    child = Recorder()
    async with EventBus("memory://", concurrency=concurrency, retry=ONCE) as bus:

        async def parent(event: Event) -> None:
            if wait == "publish":
                await bus.publish("child")
            else:
                await bus.emit("child")

        bus.subscribe("parent", parent)
        bus.subscribe("child", child)
        ended = await asyncio.gather(*(bus.emit("parent") for _ in range(10)))
        assert {event.status for event in ended} == {EventStatus.COMPLETED}
        assert yielded(bus) == 0
    assert child.calls == 10


async def test_waiting_handlers_may_be_nested_deeply() -> None:
    async with EventBus("memory://", concurrency=1, retry=ONCE) as bus:

        async def sum_up(event: Event) -> int:
            n: int = event.payload
            return n + await bus.emit("sum", n - 1).result() if n else 0

        bus.subscribe("sum", sum_up)
        assert await bus.emit("sum", 20).result() == sum(range(21))


async def test_a_handler_that_waits_for_several_events_yields_its_slot_once() -> None:
    """Otherwise more slots than ``concurrency`` would be in use."""
    most, now = 0, 0
    release = asyncio.Event()
    async with EventBus("memory://", concurrency=2, retry=ONCE) as bus:

        async def parent(event: Event) -> None:
            waiting = asyncio.gather(*(bus.publish("child") for _ in range(8)))
            await all_begun.wait()
            assert yielded(bus) == 1
            release.set()
            await waiting

        all_begun = asyncio.Event()

        async def child(event: Event) -> None:
            nonlocal most, now
            now += 1
            most = max(most, now)
            if now == 2:
                all_begun.set()
            await release.wait()
            now -= 1

        bus.subscribe("parent", parent)
        bus.subscribe("child", child)
        assert (await bus.emit("parent")).status is EventStatus.COMPLETED
        assert yielded(bus) == 0
    assert most == 2


async def test_a_wait_that_outlives_its_handler_yields_no_slot() -> None:
    release, tasks = asyncio.Event(), []
    async with EventBus("memory://", concurrency=1, retry=ONCE) as bus:

        async def parent(event: Event) -> None:
            tasks.append(asyncio.create_task(bus.publish("child", parent_id=None)))
            await begun.wait()

        begun = asyncio.Event()

        async def child(event: Event) -> None:
            begun.set()
            await release.wait()

        bus.subscribe("parent", parent)
        bus.subscribe("child", child)
        await bus.publish("parent")
        assert yielded(bus) == 0
        release.set()
        await asyncio.gather(*tasks)
        assert yielded(bus) == 0


def test_plain_handlers_that_all_wait_for_others_do_not_stand_still() -> None:
    with SyncEventBus("memory://", concurrency=2, retry=ONCE) as bus:

        def sum_up(event: Event) -> int:
            n: int = event.payload
            return n + bus.emit("sum", n - 1).result() if n else 0

        bus.subscribe("sum", sum_up)
        handles = [bus.emit("sum", 5) for _ in range(4)]
        assert [handle.result() for handle in handles] == [15] * 4


def test_plain_handlers_of_two_buses_that_wait_for_each_other_do_not_stand_still() -> None:
    with (
        SyncEventBus("memory://", concurrency=1, retry=ONCE) as one,
        SyncEventBus("memory://", concurrency=1, retry=ONCE) as other,
    ):

        def ping(event: Event) -> int:
            n: int = event.payload
            return 1 + other.emit("pong", n - 1).result() if n else 0

        def pong(event: Event) -> int:
            n: int = event.payload
            return 1 + one.emit("ping", n - 1).result() if n else 0

        one.subscribe("ping", ping)
        other.subscribe("pong", pong)
        assert one.emit("ping", 7).result() == 7


@pytest.mark.parametrize("mode", SERIAL)
@pytest.mark.parametrize("wait", ["publish", "await the handle"])
async def test_in_serial_modes_a_store_without_claims_by_name_refuses_the_wait(mode: str, wait: str) -> None:
    child = Recorder()
    async with EventBus(PlainStore(), mode=mode, retry=ONCE) as bus:

        async def parent(event: Event) -> None:
            if wait == "publish":
                await bus.publish("child")
            else:
                await bus.emit("child")

        bus.subscribe("parent", parent)
        bus.subscribe("child", child)
        ended = await bus.emit("parent")
        assert ended.status is EventStatus.FAILED
        assert "ConfigurationError" in ended.errors[0]
        assert "use emit" in ended.errors[0]
        assert await bus.wait_until_idle(5)
        assert child.calls == 1


@pytest.mark.parametrize("mode", SERIAL)
async def test_in_serial_modes_emit_is_the_way(mode: str) -> None:
    child = Recorder()
    async with EventBus("memory://", mode=mode, retry=ONCE) as bus:

        async def parent(event: Event) -> None:
            await bus.emit("child").stored()

        bus.subscribe("parent", parent)
        bus.subscribe("child", child)
        await bus.publish("parent")
        assert await bus.wait_until_idle(5)
    assert child.calls == 1


@pytest.mark.parametrize("mode", SERIAL)
async def test_events_that_do_not_need_the_same_lock_may_be_waited_for_in_serial_modes(mode: str) -> None:
    child = Recorder()
    other_store = await open_store("memory://")
    async with EventBus("memory://", mode=mode, retry=ONCE) as bus, EventBus(other_store, mode=mode) as other:

        async def parent(event: Event) -> None:
            await other.publish("child")

        bus.subscribe("parent", parent)
        other.subscribe("child", child)
        assert (await bus.emit("parent")).status is EventStatus.COMPLETED
    assert child.calls == 1


async def test_the_global_lock_is_one_for_all_buses_of_a_store() -> None:
    store = PlainStore()
    async with (
        EventBus(store, name="one", mode="global-serial", retry=ONCE) as one,
        EventBus(store, name="two", mode="global-serial") as two,
    ):

        async def parent(event: Event) -> None:
            await two.publish("child")

        one.subscribe("parent", parent)
        two.subscribe("child", Recorder())
        ended = await one.emit("parent")
        assert "event:global" in ended.errors[0]


async def test_what_a_handler_left_behind_may_wait_in_serial_modes() -> None:
    child, tasks, over = Recorder(), [], asyncio.Event()
    async with EventBus("memory://", mode="bus-serial", retry=ONCE) as bus:

        async def publish_later() -> None:
            await over.wait()
            await bus.publish("child", parent_id=None)

        async def parent(event: Event) -> None:
            tasks.append(asyncio.create_task(publish_later()))

        bus.subscribe("parent", parent)
        bus.subscribe("child", child)
        await bus.publish("parent")
        over.set()
        await asyncio.gather(*tasks)
    assert child.calls == 1


async def test_a_handler_that_waits_for_its_own_event_is_refused() -> None:
    async with EventBus("memory://", retry=ONCE) as bus:

        async def again(event: Event) -> None:
            await bus.publish("user.created", idempotency_key="one")

        bus.subscribe("user.created", again)
        ended = await bus.emit("user.created", idempotency_key="one")
        assert "waits for the end of this very event" in ended.errors[0]


async def test_a_handler_that_waits_until_its_own_bus_is_idle_is_refused() -> None:
    async with EventBus("memory://", retry=ONCE) as bus:

        async def wait(event: Event) -> None:
            await bus.wait_until_idle()

        bus.subscribe("user.created", wait)
        ended = await bus.emit("user.created")
        assert "its own event is one of those" in ended.errors[0]


async def test_outside_of_handlers_every_mode_may_wait() -> None:
    handler = Recorder()
    async with EventBus("memory://", mode="global-serial") as bus:
        bus.subscribe("user.*", handler)
        await asyncio.gather(bus.publish("user.created"), bus.publish("user.updated"))
    assert handler.calls == 2


async def test_a_publish_that_only_stores_is_not_refused_in_serial_modes() -> None:
    store = MemoryStore()
    async with EventBus(store, mode="bus-serial", retry=ONCE) as bus, EventBus(store, mode="bus-serial") as producer:

        async def parent(event: Event) -> None:
            if event.type == "parent":
                await producer.publish("child")

        bus.subscribe("*", parent)
        assert (await bus.emit("parent")).status is EventStatus.COMPLETED

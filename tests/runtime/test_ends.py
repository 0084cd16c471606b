"""A wait for an event that ends on another node is over at once, on every store: a hint comes, no pause passes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from statistics import median
from typing import Any

import pytest
from tests.runtime.conftest import MakeBus

from durabus import Event, EventBus, EventManager, EventQueue, EventStore, open_store
from durabus.clock import monotonic

ROUNDS = 3
WORK = 0.15
"""Seconds that a handler takes: the looks right after the begin of a wait are over by then."""
SOON = 0.1


class OtherNode:
    """A bus with a store object of its own, as another process has. It notes when the store had its last settlement."""

    def __init__(self, store: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bus = EventBus(store, poll_interval=0.05)
        self.bus.subscribe("work", self._work)
        self.worked = self.settled = 0.0
        settle_events = store.settle_events

        async def settle(*args: Any, **options: Any) -> Any:
            answer = await settle_events(*args, **options)
            self.settled = monotonic()
            return answer

        monkeypatch.setattr(store, "settle_events", settle)

    async def _work(self, event: Event) -> str:
        await asyncio.sleep(WORK)
        self.worked = monotonic()
        return "done"

    def seconds_since_the_end(self) -> float:
        """0 if the hint came here before the answer to the settlement came there."""
        return monotonic() - self.settled if self.settled >= self.worked else 0.0


@pytest.fixture
async def there(store: EventStore, url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OtherNode]:
    other = store if url.startswith("memory") else await open_store(url)
    node = OtherNode(other, monkeypatch)
    async with node.bus:
        yield node
    if other is not store:
        await other.close()


Wait = Callable[[EventBus, EventBus], Awaitable[object]]


async def awaited_at_once(_here: EventBus, far: EventBus) -> None:
    await far.emit("work")


async def awaited_together(_here: EventBus, far: EventBus) -> None:
    await asyncio.gather(*(far.emit("work") for _ in range(3)))


async def requested(_here: EventBus, far: EventBus) -> None:
    assert await far.request("work", timeout=30) == "done"


async def awaited_by_a_handler(here: EventBus, _far: EventBus) -> None:
    assert await here.emit("parent").result() == "done"


async def a_parent_of_a_child(here: EventBus, _far: EventBus) -> None:
    await here.emit("parent.leaves")


async def until_idle(_here: EventBus, far: EventBus) -> None:
    far.emit("work")
    assert await far.wait_until_idle(30)


async def awaited_late(_here: EventBus, far: EventBus) -> None:
    handle = far.emit("work")
    await handle.stored()
    await asyncio.sleep(WORK / 3)
    await handle


WAITS: list[Wait] = [
    awaited_at_once,
    awaited_together,
    requested,
    awaited_by_a_handler,
    a_parent_of_a_child,
    until_idle,
    awaited_late,
]


async def test_a_wait_is_over_soon_after_the_end_on_another_node(make_bus: MakeBus, there: OtherNode) -> None:
    here, far = make_bus(name="here"), make_bus(serve=False)

    @here.on("parent")
    async def parent(event: Event) -> str:
        return str(await far.emit("work").result())

    @here.on("parent.leaves")
    async def leaves(event: Event) -> None:
        far.emit("work")

    await here.start()
    await far.start()
    late: dict[str, list[float]] = {}
    for wait in WAITS:
        for _ in range(ROUNDS):
            await wait(here, far)
            late.setdefault(wait.__name__, []).append(there.seconds_since_the_end())
    assert {name: times for name, times in late.items() if median(times) > SOON} == {}


async def finalized(store: EventStore, _event: Event) -> None:
    queue = EventQueue(store)
    polled = await queue.poll()
    assert polled is not None
    await queue.finalize(polled.id)


async def managed(store: EventStore, _event: Event) -> None:
    manager = EventManager(EventQueue(store))
    manager.register("job", "job", lambda event: None)
    assert await manager.process_next() is not None


async def cancelled(store: EventStore, event: Event) -> None:
    await EventQueue(store).cancel(event.id, "not needed")


async def test_a_wait_is_over_soon_after_an_end_without_a_worker(
    make_bus: MakeBus, store: EventStore, url: str
) -> None:
    other = store if url.startswith("memory") else await open_store(url)
    here = make_bus(serve=False)
    await here.start()
    for end in (finalized, managed, cancelled):
        handle = here.emit("job")
        waiting = asyncio.create_task(handle.ended())
        event = await handle.stored()
        await asyncio.sleep(WORK)
        await end(other, event)
        ended = monotonic()
        await waiting
        assert monotonic() - ended < 10 * SOON, end
    if other is not store:
        await other.close()


async def test_no_worker_tells_a_node_that_does_not_wait(
    make_bus: MakeBus, there: OtherNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: asyncio.Queue[str] = asyncio.Queue()

    async def tell(nodes: Sequence[str]) -> None:
        for node in nodes:
            told.put_nowait(node)

    monkeypatch.setattr(there.bus.store, "tell_ends", tell)
    here = make_bus(serve=False)
    await here.start()
    here.emit("work")
    await here.publish("work", {"this": "bus does not serve, and so does not wait"})
    await there.bus.publish("work")
    assert await here.wait_until_idle(30)
    assert told.empty()
    await here.emit("work")  # a look may see this end before the worker that made it tells about it
    assert await asyncio.wait_for(told.get(), 30) == here._publisher.ends.node
    assert told.empty()


async def test_an_event_does_not_show_the_address_of_the_node_that_waits(make_bus: MakeBus) -> None:
    bus, seen = make_bus(), []
    bus.subscribe("work", lambda event: seen.append((event.metadata, event.metadata_json)))
    await bus.start()
    await bus.publish("work", metadata={"source": "web"})
    ((metadata, written),) = seen
    assert metadata == {"source": "web"}
    assert written == f'{{"source":"web","event_reply_to":"{bus._publisher.ends.node}"}}'

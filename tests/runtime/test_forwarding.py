"""Events that go on to other buses: once to each, and the first one completes after its copies."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.runtime.conftest import MakeBus
from tests.worker.support import until

from durabus import ConfigurationError, Event, EventBus, EventStatus, EventStore


class Seen:
    """The events that each bus handled."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on(self, *buses: EventBus) -> None:
        for bus in buses:
            bus.subscribe("*", self.handler(bus.name), id=f"seen-{bus.name}")

    def handler(self, name: str) -> Callable[[Event], Awaitable[None]]:
        async def note(event: Event) -> None:
            self.names.append(name)

        return note


async def test_an_event_is_handled_by_both_buses(make_bus: MakeBus) -> None:
    one, two, seen = make_bus(name="one"), make_bus(name="two"), Seen()
    seen.on(one, two)
    one.forward(two, "user.*")
    await one.start()
    ended = await one.emit("user.created", {"n": 1}, {"source": "web"}, tags=["x"], priority=3)
    await one.publish("order.placed")
    assert ended.status is EventStatus.COMPLETED
    assert sorted(seen.names) == ["one", "one", "two"]
    copy = await two.find("user.created")
    assert copy is not None
    assert (copy.payload, copy.tags, copy.priority, copy.parent_id) == ({"n": 1}, ("x",), 3, ended.event_id)
    assert copy.metadata == {
        "source": "web",
        "event_path": ["one"],
        "event_origin": ended.event_id,
        "event_depth": 1,
    }


@pytest.mark.parametrize("first", ["one", "two", "three"])
async def test_a_circle_of_forwards_ends_whichever_bus_begins(make_bus: MakeBus, first: str) -> None:
    buses, seen = [make_bus(name=name) for name in ("one", "two", "three")], Seen()
    seen.on(*buses)
    for source in buses:
        for target in buses:
            if source is not target:
                source.forward(target)
    for bus in buses:
        await bus.start()
    begins = next(bus for bus in buses if bus.name == first)
    async with asyncio.timeout(30):
        ended = await begins.emit("user.created")
    assert ended.status is EventStatus.COMPLETED
    assert sorted(seen.names) == ["one", "three", "two"]


async def test_the_event_completes_after_its_copy(make_bus: MakeBus) -> None:
    one, two, release = make_bus(name="one"), make_bus(name="two"), asyncio.Event()

    async def slow(event: Event) -> None:
        await release.wait()

    one.forward(two)
    two.subscribe("*", slow)
    await one.start()
    handle = one.emit("job")
    await until(lambda: two.in_flight == 1)
    assert not handle.done
    release.set()
    await handle
    copy = await two.find("job")
    assert copy is not None
    assert copy.status is EventStatus.COMPLETED


async def test_a_forward_that_is_tried_again_stores_one_copy(make_bus: MakeBus, store: EventStore) -> None:
    one, two, calls = make_bus(name="one", retry={"max_retries": 3, "base_delay": 0.0}), make_bus(name="two"), 0

    async def fails_once(event: Event) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ValueError("no")

    one.forward(two)
    one.subscribe("*", fails_once)
    seen = Seen()
    seen.on(two)
    await one.start()
    assert (await one.emit("job")).status is EventStatus.COMPLETED
    assert (calls, seen.names) == (2, ["two"])


async def test_buses_of_different_stores_forward_too(make_bus: MakeBus, tmp_path: Path) -> None:
    async with EventBus(f"sqlite:///{tmp_path / 'other.db'}", name="other") as other:
        seen = Seen()
        seen.on(other)
        one = make_bus(name="one")
        one.forward(other)
        await one.start()
        await one.publish("job")
        assert await other.find("job", future=5) is not None
        await until(lambda: bool(seen.names))


async def test_a_bus_of_the_same_name_is_refused(make_bus: MakeBus) -> None:
    with pytest.raises(ConfigurationError, match="different names"):
        make_bus().forward(make_bus())


async def test_a_forwarded_event_shows_as_json(make_bus: MakeBus) -> None:
    """No event holds itself: it can be dumped, logged and archived like any other."""
    one, two = make_bus(name="one"), make_bus(name="two")
    two.subscribe("*", lambda event: {"seen": event.event_id})
    one.forward(two)
    await one.start()
    ended = await one.emit("job")
    trail = await one.store.read_event_log(ended.id)
    assert trail[-1].status is EventStatus.COMPLETED
    assert [result.error for result in trail[-1].results] == [None] * len(trail[-1].results)

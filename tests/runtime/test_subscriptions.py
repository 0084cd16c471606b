"""Subscriptions of a bus, and how they end."""

import time

from tests.runtime.conftest import MakeBus

from durabus import Event, EventBus


async def test_off_by_function_by_id_and_by_pattern(make_bus: MakeBus) -> None:
    bus = make_bus()

    async def one(event: Event) -> None: ...

    async def two(event: Event) -> None: ...

    bus.subscribe("user.*", one)
    named = bus.subscribe("user.*", two, id="two")
    bus.subscribe("order.*", one)
    assert bus.off("user.*", one) == 1
    assert bus.off("user.*", one) == 0
    assert bus.off("order.*", named) == 0
    assert bus.off("user.*", named) == 1
    assert bus.off("order.*") == 1
    assert not bus._dispatcher


async def test_a_hundred_thousand_subscriptions_take_seconds() -> None:
    bus = EventBus("memory://")

    async def handler(event: Event) -> None: ...

    started = time.process_time()
    for number in range(100_000):
        bus.subscribe(f"type.{number}", handler)
    assert time.process_time() - started < 3
    assert len(bus._registry._mine) == 100_000


def test_equal_subscriptions_are_numbered_in_their_order() -> None:
    bus = EventBus("memory://")

    async def handler(event: Event) -> None: ...

    ids = [bus.subscribe("job", handler) for _ in range(3)]
    assert ids == [ids[0], f"{ids[0]}#2", f"{ids[0]}#3"]
    bus.unsubscribe(ids[1])
    assert bus.subscribe("job", handler) == f"{ids[0]}#2"

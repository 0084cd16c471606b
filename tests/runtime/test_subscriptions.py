"""What a bus is subscribed to, and not any more."""

from tests.runtime.conftest import MakeBus

from durabus import Event


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

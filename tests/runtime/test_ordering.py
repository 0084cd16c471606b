"""Ordering keys as a user of the bus sees them."""

import asyncio
from collections import defaultdict

import pytest
from tests.runtime.conftest import MakeBus

from durabus import Event, EventQueue, EventStatus, EventStore, InvalidEventError


async def test_events_of_a_key_are_handled_in_order_by_any_number_of_workers(make_bus: MakeBus) -> None:
    seen: dict[str, list[int]] = defaultdict(list)
    inside: set[str] = set()

    async def handler(event: Event) -> None:
        key = event.ordering_key
        assert key is not None
        assert key not in inside
        inside.add(key)
        await asyncio.sleep(0)
        seen[key].append(event.payload)
        inside.remove(key)

    buses = [make_bus(concurrency=5) for _ in range(3)]
    for bus in buses:
        bus.subscribe("job", handler, id="h")
        await bus.start()
    ends = await asyncio.gather(*(buses[0].emit("job", n, ordering_key=f"k{n % 4}") for n in range(40)))
    assert {event.status for event in ends} == {EventStatus.COMPLETED}
    assert dict(seen) == {f"k{k}": list(range(k, 40, 4)) for k in range(4)}


async def test_a_retry_holds_up_its_key_and_a_dead_letter_lets_it_go_on(make_bus: MakeBus) -> None:
    calls: list[str] = []
    bus = make_bus(retry={"max_retries": 2, "base_delay": 0.01, "jitter": 0.0})

    async def handler(event: Event) -> None:
        calls.append(event.payload)
        if event.payload == "a1":
            raise ValueError("never")

    bus.subscribe("job", handler)
    await bus.start()
    for payload in ("a1", "a2", "b1", "b2"):
        bus.emit("job", payload, ordering_key=payload[0])
    assert await bus.wait_until_idle(10)
    assert [call for call in calls if call[0] == "a"] == ["a1", "a1", "a1", "a2"]
    assert calls.index("b2") < len(calls) - 1


async def test_events_without_a_key_and_delayed_ones_go_on_beside(make_bus: MakeBus) -> None:
    calls: list[str] = []
    bus = make_bus(concurrency=1)

    async def handler(event: Event) -> None:
        calls.append(event.payload)

    bus.subscribe("job", handler)
    await bus.start()
    bus.emit("job", "a1", ordering_key="a", delay=0.1)
    bus.emit("job", "a2", ordering_key="a", priority=5)
    bus.emit("job", "free")
    bus.emit("job", "first", priority=9)
    assert await bus.wait_until_idle(10)
    assert calls == ["first", "free", "a1", "a2"]


async def test_a_key_is_seen_by_handlers_and_kept_with_a_dead_letter(make_bus: MakeBus, store: EventStore) -> None:
    queue = EventQueue(store)
    queued = await queue.publish("job", {"n": 1}, metadata={"source": "web"}, ordering_key="ada")
    assert (queued.ordering_key, queued.metadata) == ("ada", {"source": "web", "ordering_key": "ada"})
    polled = await queue.poll()
    assert polled is not None
    assert polled.ordering_key == "ada"
    await queue.finalize(polled.id, success=False)
    (dead,) = (await store.list_dead_letters()).events
    assert dead.ordering_key == "ada"


@pytest.mark.parametrize("key", ["", "x" * 256, "a\nb", 7])
async def test_a_key_outside_its_limits_is_refused(make_bus: MakeBus, key: object) -> None:
    bus = await make_bus().start()
    with pytest.raises(InvalidEventError, match="ordering_key"):
        bus.emit("job", ordering_key=key)  # type: ignore[arg-type]

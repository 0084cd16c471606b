"""A shutdown leaves no task behind, whichever call of the store never returns."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from tests.worker.support import ONCE, WatchedStore

from durabus import Event, EventBus, EventBusShutdownError
from durabus.stores.memory.core import FEATURES


class HangingStore(WatchedStore):
    """From some moment on, one verb of it never returns."""

    features = replace(FEATURES, shared_between_processes=True)

    def hang(self, verb: str) -> None:
        async def hangs(*_args: Any, **_options: Any) -> Any:
            self.calls["hung"] += 1
            await asyncio.Event().wait()

        setattr(self, verb, hangs)


async def left_of(before: set[asyncio.Task[Any]]) -> set[str]:
    """The tasks that were not there before, after those that were cancelled had a turn of the loop to end."""
    for _ in range(3):
        await asyncio.sleep(0)
    return {str(task) for task in asyncio.all_tasks() - before}


@pytest.mark.parametrize(
    "verb",
    [
        "add_events",
        "cleanup_excess_events",
        "get_events",
        "keep_results",
        "list_handlers",
        "read_log",
        "register_handlers",
        "renew_event_claims",
        "settle_events",
        "stop_bus",
        "wait_for_ends",
        "wait_for_work",
    ],
)
async def test_a_shutdown_leaves_no_task_behind(verb: str) -> None:
    store, before = HangingStore(), asyncio.all_tasks()
    bus = EventBus(store, retry=ONCE, lease=0.6, max_history_size=1, poll_interval=0.01)

    @bus.on("job")
    async def job(event: Event) -> None:
        if event.payload == "child":
            bus.emit("far.child")
        await asyncio.sleep(0.03)

    @bus.on("job", id="again")
    async def again(event: Event) -> None:
        await asyncio.sleep(0.03)

    await bus.start()
    await bus.publish("job", "child", parent_id=None)
    store.hang(verb)
    far = bus.emit("far.away", delay=60)
    waits = [
        asyncio.create_task(bus.emit("job").completed()),
        asyncio.create_task(far.completed()),
        asyncio.create_task(bus.find("never", past=False, future=True)),
    ]
    await asyncio.wait(waits, timeout=0.15)
    await bus.shutdown(0.2)
    for wait in waits:
        await asyncio.wait({wait}, timeout=5)
        assert wait.done()
        if not wait.cancelled():
            wait.exception()
    assert await left_of(before) == set()


async def test_a_shutdown_refuses_what_the_store_has_not_confirmed() -> None:
    store = HangingStore()
    bus = EventBus(store, serve=False)
    await bus.start()
    (stored,) = [bus.emit("job")]
    await stored.stored()
    store.hang("add_events")
    sent = bus.emit("job")
    await bus.shutdown(0.05)
    with pytest.raises(EventBusShutdownError, match="before the store confirmed event"):
        await sent.stored()
    with pytest.raises(EventBusShutdownError, match="was shut down before this event ended"):
        await stored

"""A store that raises what no store should: everything that keeps a bus going tries again."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest
from tests.seeds.support import ONCE
from tests.worker.support import make_handler, until

from durabus import Event, EventBus, EventStatus
from durabus.bus import ends, finder
from durabus.model.claim import LockClaim
from durabus.model.handler import HandlerInfo
from durabus.model.log_entry import LogPage
from durabus.store import outage
from durabus.store.events import EventRef
from durabus.store.log import START
from durabus.stores.memory.store import MemoryStore
from durabus.worker import registry

pytestmark = pytest.mark.timeout(20)


class OddStore(MemoryStore):
    """Fails with an error that no store should raise, as often as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.odd: Counter[str] = Counter()

    def _fail(self, verb: str) -> None:
        if self.odd[verb]:
            self.odd[verb] -= 1
            raise ZeroDivisionError(verb)

    async def register_handlers(
        self, bus: str, node: str, handlers: Sequence[HandlerInfo], *, kept_for: float | None
    ) -> None:
        self._fail("register")
        await super().register_handlers(bus, node, handlers, kept_for=kept_for)

    async def get_events(self, refs: Sequence[EventRef]) -> list[Event | None]:
        self._fail("get")
        return await super().get_events(refs)

    async def read_log(self, *, after: str = START, until: str | None = None, limit: int = 1000) -> LogPage:
        self._fail("read")
        return await super().read_log(after=after, until=until, limit=limit)

    async def list_locks(self, *, after: str = "", limit: int = 100) -> list[LockClaim]:
        self._fail("locks")
        return await super().list_locks(after=after, limit=limit)


async def test_handlers_are_announced_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "FIRST_PAUSE", 0.01)
    store = OddStore()
    store.odd["register"] = 2
    node = registry.Registry(store, "default", kept_for=60.0)
    node.announce(lambda: [make_handler(print, id="mine")])
    node.start()
    await until(lambda: bool(store._handlers.get("default")))
    assert await node.close()


async def test_the_end_of_an_event_elsewhere_is_learned_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "LOOK_EVERY", 0.01)
    store = OddStore()
    async with EventBus(store) as there, EventBus(store) as here:
        handle = here.emit("job")
        await handle.stored()
        store.odd["get"] = 2
        there.subscribe("job", lambda event: None)
        assert (await handle).status is EventStatus.COMPLETED
    assert not store.odd["get"]


async def test_the_future_is_found_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finder, "LOOK_EVERY", 0.01)
    store = OddStore()
    async with EventBus(store) as there, EventBus(store) as here:
        store.odd["read"] = 2
        searching = asyncio.create_task(here.find("job", past=False, future=True))
        await until(lambda: not store.odd["read"])
        await there.publish("job")
        assert await searching is not None


async def test_a_worker_whose_event_waits_for_another_node_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    store = OddStore()
    async with (
        EventBus(store, mode="bus-serial", retry=ONCE, poll_interval=0.05) as here,
        EventBus(store, mode="bus-serial", retry=ONCE, poll_interval=0.05) as there,
    ):

        async def parent(_event: Event) -> None:
            store.odd["locks"] = 4
            await here.emit("child")

        here.subscribe("parent", parent)
        there.subscribe("child", lambda event: None)
        assert (await here.emit("parent")).status is EventStatus.COMPLETED
        assert (await here.emit("parent")).status is EventStatus.COMPLETED

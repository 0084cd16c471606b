"""A call that is cancelled or shut down before the store has replied leaves no task and no claim behind."""

import asyncio

import pytest
from tests.seeds.support import ONCE, Recorder, until

from durabus import Event, EventBus, EventBusShutdownError, EventStatus, ManualClock
from durabus.bus import finder
from durabus.clock import Clock
from durabus.errors import StoreClosedError
from durabus.model.claim import Claim, ClaimRequest, LockClaim
from durabus.model.event import new_event
from durabus.model.log_entry import LogPage
from durabus.store.log import START
from durabus.stores.memory.store import MemoryStore
from durabus.worker.registry import RESTART

pytestmark = pytest.mark.timeout(20)


class LateStore(MemoryStore):
    """Runs every call at once, but returns from one verb only when the test sets ``answer``."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.late = ""
        self.asked = asyncio.Event()
        self.answer = asyncio.Event()

    async def _wait(self, verb: str) -> None:
        if verb == self.late:
            self.asked.set()
            await self.answer.wait()

    async def register_handlers(self, *arguments: object, **options: object) -> None:
        await super().register_handlers(*arguments, **options)  # type: ignore[arg-type]
        await self._wait("register")

    async def log_head(self) -> str:
        head = await super().log_head()
        await self._wait("head")
        return head

    async def read_log(self, *, after: str = START, until: str | None = None, limit: int = 1000) -> LogPage:
        page = await super().read_log(after=after, until=until, limit=limit)
        await self._wait("read")
        return page

    async def claim_next_events(self, request: ClaimRequest) -> list[Claim]:
        claims = await super().claim_next_events(request)
        if request.event_id is not None and claims:
            await self._wait("claim by name")
        return claims


async def test_a_search_that_begins_while_the_bus_shuts_down_ends() -> None:
    store = LateStore()
    bus = await EventBus(store).start()
    store.late = "head"
    searching = asyncio.create_task(bus.find("job", past=False, future=True))
    await store.asked.wait()
    await bus.shutdown()
    store.answer.set()
    assert await searching is None


async def test_a_search_that_begins_while_the_last_one_ends_still_finds_later_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = LateStore()
    async with EventBus(store) as there, EventBus(store) as here:
        monkeypatch.setattr(finder, "LOOK_EVERY", 60.0)
        first = asyncio.create_task(here.find("job", past=False, future=True))
        await asyncio.sleep(0.01)
        store.late = "read"
        second = asyncio.create_task(here.find("job", past=False, future=True))
        await store.asked.wait()
        first.cancel()
        await asyncio.wait({first})
        monkeypatch.setattr(finder, "LOOK_EVERY", 0.01)
        store.answer.set()
        await asyncio.sleep(0.01)
        await there.publish("job")
        assert await second is not None


async def test_a_shutdown_during_the_start_takes_back_what_was_announced() -> None:
    clock = ManualClock()
    store = LateStore(clock)
    store.late = "register"
    bus = EventBus(store)
    bus.subscribe("job", lambda event: None)
    starting = asyncio.create_task(bus.start())
    await store.asked.wait()
    stopping = asyncio.create_task(bus.shutdown())
    await asyncio.sleep(0)
    store.answer.set()
    with pytest.raises(EventBusShutdownError):
        await starting
    await stopping
    (known,) = await store.list_buses()
    assert known.stopped_ts is not None
    clock.advance(RESTART)
    assert (await store.list_handlers("default")).handlers == []


async def test_a_bus_that_was_never_started_says_nothing_when_it_is_shut_down() -> None:
    store = MemoryStore()
    bus = EventBus(store)
    bus.subscribe("job", lambda event: None)
    await bus.shutdown()
    assert await store.list_buses() == []


async def test_a_store_is_closed_whatever_the_shutdown_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = await EventBus("memory://").start()

    async def broken() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(bus._history, "close", broken)
    with pytest.raises(ZeroDivisionError):
        await bus.shutdown()
    with pytest.raises(StoreClosedError):
        await bus.store.counts()


async def test_a_child_that_was_claimed_for_a_handler_whose_time_is_over_goes_back() -> None:
    """Otherwise the child would rest until its lease is over, and lose an attempt."""
    store, child = LateStore(), Recorder()
    store.late = "claim by name"
    async with EventBus(store, mode="bus-serial", retry=ONCE) as bus:

        async def parent(_event: Event) -> None:
            await bus.emit("child", parent_id=None)

        bus.subscribe("parent", parent, timeout=0.05)
        bus.subscribe("child", child)
        assert (await bus.emit("parent")).status is EventStatus.FAILED
        assert store.asked.is_set()
        assert not child.calls
        store.late = ""
        store.answer.set()
        await child.called()
    assert [event.attempts for event in child.events] == [1]


class Withdrawing(MemoryStore):
    """Lets the parent on another node give up at the moment in which its child is claimed."""

    word: LockClaim | None = None

    async def claim_next_events(self, request: ClaimRequest) -> list[Claim]:
        if request.event_id is not None and self.word is not None:
            await self.release_lock(self.word)
            self.word = None
        return await super().claim_next_events(request)


async def test_a_child_whose_parent_gave_up_meanwhile_does_not_begin_under_its_lock() -> None:
    store, child = Withdrawing(), Recorder()
    lock = await store.claim_lock("event:bus:default", worker_id="parent:1", token="p", lease=60)
    assert lock is not None
    (event,) = await store.add_events([new_event("child")])
    key = f"event:awaited:default:{event.event_id}"
    store.word = await store.claim_lock(key, worker_id="parent:1", token="w", lease=60)

    async def is_back() -> bool:
        found = await store.get_event(event.id)
        return found is not None and (found.status, found.fence) == (EventStatus.PENDING, 1)

    async with EventBus(store, mode="bus-serial", retry=ONCE) as bus:
        bus.subscribe("child", child)
        await until(is_back)
        assert not child.calls
        await store.release_lock(lock)
        await child.called()
    assert [one.attempts for one in child.events] == [1]

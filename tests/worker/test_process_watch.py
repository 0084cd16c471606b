"""The process watch: when it shows that this process lives, and which claims belong to the process."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace
from tests.worker.support import until

from durabus import (
    ConfigurationError,
    EventBus,
    EventManager,
    EventQueue,
    LockManager,
    ManualClock,
    StoreUnavailableError,
    new_event,
)
from durabus.model.claim import Claim, ClaimRequest, incarnation_of, new_incarnation, new_token
from durabus.model.settlement import Complete
from durabus.model.statuses import Takeover
from durabus.store.processes import PRESENT_FOR, EndedProcesses
from durabus.stores.memory.store import MemoryStore
from durabus.worker.process_watch import ProcessWatch

OFTEN = 0.02


class SeeingStore(MemoryStore):
    """A memory store that claims to see the end of processes, and notes the calls of the watch."""

    def __init__(self, *, renewed_every: float | None = OFTEN, sees: bool = True) -> None:
        super().__init__()
        self.features = replace(MemoryStore.features, sees_ended_processes=True, presence_renewed_every=renewed_every)
        self.sees = sees
        self.calls: list[tuple[str, str]] = []
        self.ended: list[str] = []
        self.failures = 0

    def names(self, verb: str) -> list[str]:
        return [name for called, name in self.calls if called == verb]

    async def show_presence(self, incarnation: str) -> bool:
        self.calls.append(("show", incarnation))
        return await super().show_presence(incarnation) and self.sees

    async def withdraw_presence(self, incarnation: str) -> None:
        self.calls.append(("withdraw", incarnation))
        await super().withdraw_presence(incarnation)

    async def claim_next_events(self, request: ClaimRequest) -> list[Claim]:
        self.calls.append(("claim", incarnation_of(request.token)))
        return await super().claim_next_events(request)

    async def ended_processes(self) -> EndedProcesses:
        self.calls.append(("look", ""))
        if self.failures:
            self.failures -= 1
            raise StoreUnavailableError("away")
        await super().ended_processes()  # raises if the store is closed
        ended, self.ended = self.ended, []
        return EndedProcesses(ended, OFTEN)

    async def end_process(self, incarnation: str, **options: Any) -> int:
        self.calls.append(("end", incarnation))
        return await super().end_process(incarnation, **options)


@pytest.fixture
async def store() -> AsyncIterator[SeeingStore]:
    made = SeeingStore()
    yield made
    await made.close()


def stuck_bus(store: SeeingStore, begun: asyncio.Event, go_on: asyncio.Event, **options: Any) -> EventBus:
    bus = EventBus(store, **options)

    @bus.on("*")
    async def handle(_event: object) -> None:
        begun.set()
        await go_on.wait()

    return bus


async def test_a_process_shows_its_presence_before_its_first_claim(store: SeeingStore) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    async with stuck_bus(store, begun, go_on) as bus:
        bus.emit("work")
        await begun.wait()
        go_on.set()
    verbs = [verb for verb, _ in store.calls]
    assert verbs.index("show") < verbs.index("claim")
    (name,) = set(store.names("show"))
    assert name
    assert set(store.names("claim")) == {name}


async def test_no_token_names_a_process_whose_end_the_store_would_not_see(store: SeeingStore) -> None:
    store.sees = False
    begun, go_on = asyncio.Event(), asyncio.Event()
    async with stuck_bus(store, begun, go_on) as bus:
        bus.emit("work")
        await begun.wait()
        go_on.set()
    assert set(store.names("claim")) == {""}


async def test_the_presence_is_renewed_only_while_claims_are_held(store: SeeingStore) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    async with stuck_bus(store, begun, go_on) as bus:
        await until(lambda: len(store.names("look")) > 5)
        assert len(store.names("show")) == 1
        bus.emit("work")
        await begun.wait()
        before = len(store.names("show"))
        await until(lambda: len(store.names("show")) > before + 3)
        go_on.set()
        await bus.wait_until_idle(5.0)
        await until(lambda: bus.in_flight == 0)
        await asyncio.sleep(2 * OFTEN)  # a look may have begun before the event ended
        settled = len(store.names("show"))
        looks = len(store.names("look"))
        await until(lambda: len(store.names("look")) > looks + 5)
        assert len(store.names("show")) == settled


async def test_what_an_ended_process_held_is_taken_back(store: SeeingStore) -> None:
    store.ended = ["~00000000001"]
    async with stuck_bus(store, asyncio.Event(), asyncio.Event()):
        await until(lambda: store.names("end") == ["~00000000001"])


async def test_two_buses_of_one_store_share_the_watch(store: SeeingStore) -> None:
    nothing = asyncio.Event()
    async with stuck_bus(store, nothing, nothing, name="one"), stuck_bus(store, nothing, nothing, name="two"):
        await until(lambda: len(store.names("look")) > 3)
        assert len(store.names("show")) == 1
        assert store.names("withdraw") == []
    assert store.names("withdraw") == store.names("show")


async def test_a_bus_that_starts_again_is_another_process(store: SeeingStore) -> None:
    for _ in range(2):
        async with stuck_bus(store, asyncio.Event(), asyncio.Event()):
            await until(lambda: "look" in [verb for verb, _ in store.calls])
    first, second = store.names("withdraw")
    assert first != second


async def test_a_lock_belongs_to_a_process_that_serves_a_bus(store: SeeingStore) -> None:
    locks = LockManager(store)
    async with locks.hold("report") as lock:
        assert incarnation_of(lock.token) == ""
    async with stuck_bus(store, asyncio.Event(), asyncio.Event()):
        await until(lambda: bool(store.names("look")))
        async with locks.hold("report") as lock:
            assert [incarnation_of(lock.token)] == store.names("show")[:1]
            before = len(store.names("show"))
            await until(lambda: len(store.names("show")) > before + 2)


async def test_takeover_lease_neither_shows_a_presence_nor_looks(store: SeeingStore) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    async with stuck_bus(store, begun, go_on, takeover="lease") as bus:
        bus.emit("work")
        await begun.wait()
        await asyncio.sleep(5 * OFTEN)
        go_on.set()
    assert {verb for verb, _ in store.calls} == {"claim"}
    assert set(store.names("claim")) == {""}


async def test_a_failed_look_does_not_end_the_watch(store: SeeingStore) -> None:
    store.failures = 2
    async with stuck_bus(store, asyncio.Event(), asyncio.Event()):
        await until(lambda: len(store.names("look")) > 4)


async def test_the_watch_ends_with_its_store(store: SeeingStore) -> None:
    watch = ProcessWatch.of(store)

    def holds() -> bool:
        return False

    watch.join(holds)
    await until(lambda: bool(store.names("look")))
    await store.close()
    await until(lambda: watch._watching is not None and watch._watching.done())
    await watch.leave(holds)


async def test_a_worker_learns_from_a_silent_goodbye_that_its_store_is_away(
    store: SeeingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(incarnation: str) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr("durabus.worker.process_watch.STOP_TIMEOUT", 0.1)
    monkeypatch.setattr(store, "withdraw_presence", silent)
    bus = EventBus(store)
    bus.on("order.*", id="serve")(lambda event: None)
    await bus.start(serve=True)
    await bus.shutdown()
    assert bus.store_is_away, "nothing in the rest of the shutdown waits for the store again"


async def test_an_unknown_takeover_is_refused(store: SeeingStore) -> None:
    with pytest.raises(ConfigurationError, match=r"takeover='never': must be one of \['presence', 'lease'\]"):
        EventBus(store, takeover="never")
    with pytest.raises(ConfigurationError, match="takeover='never'"):
        EventManager(EventQueue(store), takeover="never")
    EventManager(EventQueue(store), takeover=Takeover.LEASE)


async def test_processes_that_are_gone_are_forgotten() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    for _ in range(100):
        await store.add_events([new_event("a")])
        request = ClaimRequest(bus="default", worker_id="w", token=new_token(new_incarnation()))
        (claim,) = await store.claim_next_events(request)
        await store.settle_events([Complete(claim.ref)])
        clock.advance(PRESENT_FOR)
        assert (await store.ended_processes()).incarnations == [], "it holds nothing, so no call need take it back"
    assert len(store._processes) == 1
    await store.close()

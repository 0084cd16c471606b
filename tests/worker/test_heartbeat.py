"""The thread that keeps claims alive."""

import asyncio
import threading
from collections.abc import Sequence

import pytest
from tests.worker.support import WatchedStore, filled

from durabus.backends.memory.store import MemoryStore
from durabus.clock import monotonic
from durabus.errors import LeaseLost, StoreUnavailableError
from durabus.model.claim import ClaimRef, ClaimRequest
from durabus.worker import heartbeat
from durabus.worker.heartbeat import Heartbeat, Held

LEASE = 30.0


class Time:
    now = 1000.0


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(heartbeat, "monotonic", lambda: time.now)
    return time


class Bench:
    """A heartbeat whose beats the test makes by hand."""

    def __init__(self, store: WatchedStore, time: Time) -> None:
        self.store = store
        self.time = time
        self.held: list[Held] = []
        self.lost: list[tuple[int, str]] = []
        self.heartbeat = Heartbeat(store, lease=LEASE, held=lambda: self.held, lost=self._lost)

    def _lost(self, held: Held, reason: str) -> None:
        self.lost.append((held.ref.id, reason))

    async def claim(self, count: int = 1) -> None:
        await filled(self.store, count)
        request = ClaimRequest(bus="default", worker_id="w:1", token=f"t{self.time.now}", limit=count, lease=LEASE)
        claims = await self.store.claim_next_events(request)
        self.held += [Held(claim.ref, self.time.now + LEASE * heartbeat.SAFETY) for claim in claims]

    async def beat(self) -> None:
        await self.heartbeat._beat()


@pytest.fixture
def bench(time: Time) -> Bench:
    return Bench(WatchedStore(), time)


async def test_a_fresh_claim_is_not_renewed_yet(bench: Bench) -> None:
    await bench.claim()
    bench.time.now += LEASE / 3 - 0.1
    await bench.beat()
    assert bench.store.calls["renew"] == 0


async def test_claims_are_renewed_after_a_third_of_the_lease_in_one_call(bench: Bench) -> None:
    await bench.claim(50)
    bench.time.now += LEASE / 3 + 0.1
    await bench.beat()
    assert bench.store.calls["renew"] == 1
    assert {held.deadline for held in bench.held} == {bench.time.now + LEASE * heartbeat.SAFETY}
    await bench.beat()
    assert bench.store.calls["renew"] == 1


async def test_a_claim_that_was_lost_is_reported_and_the_others_are_renewed(bench: Bench) -> None:
    await bench.claim(3)
    await bench.store.reset_event(bench.held[1].ref.id, reason="taken away")
    bench.time.now += LEASE / 2
    await bench.beat()
    assert [id_ for id_, _ in bench.lost] == [bench.held[1].ref.id]
    assert bench.held[0].deadline == bench.held[2].deadline == bench.time.now + LEASE * heartbeat.SAFETY


async def test_a_store_that_fails_is_asked_again_and_nothing_is_lost_before_the_deadline(bench: Bench) -> None:
    await bench.claim()
    bench.store.failing["renew"] = 3
    bench.time.now += LEASE / 2
    for _ in range(3):
        await bench.beat()
        bench.time.now += 1
    assert bench.lost == []
    await bench.beat()
    assert bench.held[0].deadline == bench.time.now + LEASE * heartbeat.SAFETY


async def test_a_claim_that_could_not_be_renewed_before_its_deadline_is_reported(bench: Bench) -> None:
    await bench.claim()
    bench.store.failing["renew"] = 1
    bench.time.now += LEASE * heartbeat.SAFETY
    await bench.beat()
    assert bench.lost == [(bench.held[0].ref.id, "could not be renewed in time")]


async def test_the_deadline_is_counted_from_before_the_request_was_sent(time: Time) -> None:
    class SlowStore(WatchedStore):
        async def renew_event_claims(self, refs: Sequence[ClaimRef], *, lease: float) -> list[float | LeaseLost]:
            answers = await super().renew_event_claims(refs, lease=lease)
            time.now += 5
            return answers

    bench = Bench(SlowStore(), time)
    await bench.claim()
    time.now += LEASE / 2
    sent = time.now
    await bench.beat()
    assert bench.held[0].deadline == sent + LEASE * heartbeat.SAFETY


async def test_nothing_held_asks_nothing(bench: Bench) -> None:
    await bench.beat()
    assert bench.store.calls["renew"] == 0


class AngryStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.asked = threading.Semaphore(0)

    async def renew_event_claims(self, refs: Sequence[ClaimRef], *, lease: float) -> list[float | LeaseLost]:
        self.calls += 1
        self.asked.release()
        if self.calls == 1:
            raise StoreUnavailableError("disk full")
        if self.calls == 2:
            raise RuntimeError("a bug of the driver")
        return [lease for _ in refs]


async def test_the_thread_survives_whatever_the_store_raises_and_ends_when_it_is_stopped() -> None:
    store = AngryStore()
    held = [Held(ClaimRef(1, "t", 1), monotonic())]
    beating = Heartbeat(store, lease=0.1, held=lambda: held, lost=lambda *_: None)
    before = threading.active_count()
    beating.start()
    for _ in range(3):
        assert await asyncio.to_thread(store.asked.acquire, timeout=5)
    await beating.stop()
    assert not any(thread.name == "durabus-heartbeat" for thread in threading.enumerate())
    assert threading.active_count() <= before + 5


async def test_stop_before_start_is_harmless() -> None:
    await Heartbeat(MemoryStore(), lease=30, held=list, lost=lambda *_: None).stop()

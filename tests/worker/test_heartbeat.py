"""The thread that keeps claims alive."""

import asyncio
import math
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import sleep
from typing import Any, Self

import pytest
from tests.worker.support import WatchedStore, filled, make_claim, make_handler

from durabus import Event, EventBus, EventQueue
from durabus.clock import monotonic
from durabus.errors import LeaseLost, StoreUnavailableError
from durabus.model.claim import ClaimRef, ClaimRequest
from durabus.model.event import new_event
from durabus.stores.memory.store import MemoryStore
from durabus.worker import heartbeat
from durabus.worker.claimed_event import ClaimedEvent
from durabus.worker.dispatcher import Dispatcher
from durabus.worker.handler import Handler
from durabus.worker.heartbeat import Heartbeat, HeldClaim, heartbeat_loop
from durabus.worker.worker import Worker

LEASE = 30.0
TICK = LEASE * heartbeat.TICK
UNBOUND: Any = {"allowance": lambda _held: math.inf, "lost": lambda _held, _reason: None}


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
        self.held: list[HeldClaim] = []
        self.seconds: dict[HeldClaim, float] = {}
        self.lost: list[tuple[int, str]] = []
        self.heartbeat = Heartbeat(
            store,
            lease=LEASE,
            held=lambda: self.held,
            allowance=lambda held: self.seconds.get(held, math.inf),
            lost=self._lost,
        )

    def _lost(self, held: HeldClaim, reason: str) -> None:
        self.lost.append((held.ref.id, reason))

    async def claim(self, count: int = 1) -> None:
        await filled(self.store, count)
        request = ClaimRequest(bus="default", worker_id="w:1", token=f"t{self.time.now}", limit=count, lease=LEASE)
        claims = await self.store.claim_next_events(request)
        self.held += [HeldClaim(claim.ref, self.time.now + LEASE * heartbeat.SAFETY) for claim in claims]

    async def beat(self) -> None:
        await self.heartbeat._beat()


@pytest.fixture
def bench(time: Time) -> Bench:
    return Bench(WatchedStore(), time)


async def test_a_fresh_claim_is_not_renewed_yet(bench: Bench) -> None:
    await bench.claim()
    bench.time.now += LEASE / 3 - TICK - 0.1
    await bench.beat()
    assert bench.store.calls["renew"] == 0


async def test_every_claim_is_renewed_before_a_third_of_its_lease_has_passed(bench: Bench) -> None:
    """Whenever between two beats it was made: so a handler learns of a cancelled event by then."""
    claimed: dict[HeldClaim, float] = {}
    ages: list[float] = []
    for step in range(1, 51):
        bench.time.now += TICK / 10
        if step <= 10:
            await bench.claim()
            claimed[bench.held[-1]] = bench.time.now
        if step % 10 == 0:
            await bench.beat()
            renewed = [held for held in claimed if held.deadline == bench.time.now + LEASE * heartbeat.SAFETY]
            ages += [bench.time.now - claimed.pop(held) for held in renewed if bench.time.now > claimed[held]]
    assert len(ages) == 10
    assert min(ages) >= LEASE / 3 - TICK
    assert LEASE / 3 - TICK / 5 <= max(ages) <= LEASE / 3


async def test_the_next_beat_comes_a_tick_after_the_begin_of_the_last(bench: Bench) -> None:
    """The time that a store took for its answer does not delay the renewal of other claims."""
    began = bench.time.now
    bench.time.now += TICK / 4
    assert bench.heartbeat._pause(began) == pytest.approx(TICK * 3 / 4)


async def test_claims_are_renewed_in_one_call(bench: Bench) -> None:
    await bench.claim(50)
    bench.time.now += LEASE / 3
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


async def test_a_beat_that_waited_is_followed_at_once_by_one_for_the_next_deadline(time: Time) -> None:
    class NoAnswer(WatchedStore):
        async def renew_event_claims(self, refs: Sequence[ClaimRef], *, lease: float) -> list[float | LeaseLost]:
            time.now = first.deadline
            raise StoreUnavailableError("no answer")

    bench = Bench(NoAnswer(), time)
    for _ in range(2):
        await bench.claim()
        time.now += 2.0
    first, second = bench.held
    began = time.now = second.deadline - LEASE * heartbeat.SAFETY + LEASE / 3 - TICK - 0.1
    await bench.beat()
    assert [id_ for id_, _ in bench.lost] == [first.ref.id]
    assert time.now < second.deadline < time.now + TICK
    assert bench.heartbeat._pause(began) == 0.0
    await bench.beat()
    assert [id_ for id_, _ in bench.lost] == [first.ref.id, second.ref.id]


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


async def test_a_claim_that_is_long_over_its_time_is_reported_once_and_not_renewed(bench: Bench) -> None:
    await bench.claim(2)
    overdue, fine = bench.held
    bench.seconds[overdue] = 5
    await bench.beat()
    bench.time.now += 5 + LEASE
    await bench.beat()
    assert bench.lost == []
    bench.time.now += LEASE / 2
    for _ in range(2):
        await bench.beat()
        bench.time.now += 1
    assert [id_ for id_, _ in bench.lost] == [overdue.ref.id]
    assert "timeouts" in bench.lost[0][1]
    assert fine.deadline > bench.time.now


class Waiting(HeldClaim):
    """A claimed event that has not begun."""

    @property
    def has_begun(self) -> bool:
        return False


async def test_what_has_not_begun_is_renewed_as_long_as_the_event_loop_lives(bench: Bench) -> None:
    await bench.claim()
    waiting = Waiting(bench.held[0].ref, bench.held[0].deadline)
    bench.held, bench.seconds = [waiting], {waiting: 5}
    for _ in range(10):
        bench.heartbeat._see_loop()
        bench.time.now += LEASE / 2
        await bench.beat()
    assert bench.lost == []
    for _ in range(3):
        bench.time.now += LEASE / 2
        await bench.beat()
    assert [id_ for id_, _ in bench.lost] == [waiting.ref.id]


class InThread(HeldClaim):
    """A claimed event of which a function runs in a thread."""

    runs = True

    @property
    def has_no_limit(self) -> bool:
        return self.runs


async def test_the_time_of_a_claim_begins_anew_when_its_function_has_ended_in_its_thread(bench: Bench) -> None:
    """The event loop needs a moment to notice the end of a function that overstayed."""
    await bench.claim()
    overstayed = InThread(bench.held[0].ref, bench.held[0].deadline)
    bench.held, bench.seconds = [overstayed], {overstayed: 5}
    for _ in range(10):
        await bench.beat()
        bench.time.now += LEASE / 4
    overstayed.runs = False
    await bench.beat()
    assert bench.lost == []
    for _ in range(6):
        bench.time.now += LEASE / 4
        await bench.beat()
    assert [id_ for id_, _ in bench.lost] == [overstayed.ref.id]


async def test_a_store_that_hangs_does_not_keep_a_claim_past_its_deadline(time: Time) -> None:
    class HangingStore(WatchedStore):
        async def renew_event_claims(self, refs: Sequence[ClaimRef], *, lease: float) -> list[float | LeaseLost]:
            time.now += 1
            await asyncio.Event().wait()
            raise AssertionError

    bench = Bench(HangingStore(), time)
    await bench.claim(2)
    bench.held[0].deadline = time.now + 0.01
    bench.held[1].deadline = time.now + 10
    async with asyncio.timeout(20):
        await bench.beat()
    assert bench.lost == [(bench.held[0].ref.id, "could not be renewed in time")]


async def test_a_claim_past_its_deadline_gets_one_more_try(bench: Bench) -> None:
    """The machine slept, and no other worker took the event in the meantime."""
    await bench.claim()
    bench.time.now += LEASE * 10
    await bench.beat()
    assert bench.lost == []
    assert bench.held[0].deadline == bench.time.now + LEASE * heartbeat.SAFETY


async def test_whatever_the_store_raises_the_deadline_is_kept(time: Time) -> None:
    class BrokenStore(WatchedStore):
        async def renew_event_claims(self, refs: Sequence[ClaimRef], *, lease: float) -> list[float | LeaseLost]:
            raise RuntimeError("a bug of the driver")

    bench = Bench(BrokenStore(), time)
    await bench.claim()
    time.now += LEASE
    await bench.beat()
    assert bench.lost == [(bench.held[0].ref.id, "could not be renewed in time")]


async def test_claims_are_given_up_when_the_store_is_closed(bench: Bench) -> None:
    await bench.claim(2)
    await bench.store.close()
    bench.time.now += LEASE / 2
    await bench.beat()
    assert [id_ for id_, _ in bench.lost] == [held.ref.id for held in bench.held]


async def test_a_heartbeat_without_claims_calls_nothing(bench: Bench) -> None:
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


async def test_the_heartbeat_survives_any_error_of_the_store_and_ends_when_it_is_stopped() -> None:
    store = AngryStore()
    beating = Heartbeat(store, lease=0.1, held=lambda: [HeldClaim(ClaimRef(1, "t", 1), monotonic() + 0.05)], **UNBOUND)
    beating.start()
    for _ in range(3):
        assert await asyncio.to_thread(store.asked.acquire, timeout=30)
    await beating.stop()
    assert await heartbeats() == 0


async def test_stop_before_start_is_harmless() -> None:
    await Heartbeat(MemoryStore(), lease=30, held=list, **UNBOUND).stop()


async def heartbeats() -> int:
    """Return the number of heartbeats in this process."""

    async def count() -> int:
        return sum(task.get_name() == "durabus-heartbeat" for task in asyncio.all_tasks())

    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(count(), heartbeat_loop()))


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_many_buses_share_one_thread_and_need_no_files() -> None:
    store = MemoryStore()
    buses = [EventBus(store, name=f"bus-{number}") for number in range(50)]
    for bus in buses:
        bus.subscribe("user.*", nothing)
    await buses[0].start()
    files, threads = open_files(), threading.active_count()
    await asyncio.gather(*(bus.start() for bus in buses))
    assert await heartbeats() == len(buses)
    assert open_files() <= files  # what earlier tests left may end meanwhile
    assert threading.active_count() <= threads
    await asyncio.gather(*(bus.shutdown() for bus in buses))
    assert await heartbeats() == 0


def test_a_forked_process_has_heartbeats_of_its_own() -> None:
    heartbeat_loop()
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), heartbeat_loop()).result(10)
        os.write(theirs, b"alive")
        os._exit(0)
    os.close(theirs)
    os.waitpid(child, 0)
    with os.fdopen(ours, "rb") as answer:
        assert answer.read() == b"alive"


async def test_stop_does_not_wait_for_a_reply_of_the_store() -> None:
    class HangingStore(AngryStore):
        async def renew_event_claims(self, refs: Sequence[ClaimRef], *, lease: float) -> list[float | LeaseLost]:
            self.asked.release()
            await asyncio.Event().wait()
            raise AssertionError

    store = HangingStore()
    held = HeldClaim(ClaimRef(1, "t", 1), monotonic() + 1000)  # the reply has time until then
    beating = Heartbeat(store, lease=2000, held=lambda: [held], **UNBOUND)
    beating._tick = 0.01
    beating.start()
    assert await asyncio.to_thread(store.asked.acquire, timeout=30)
    await beating.stop()
    assert await heartbeats() == 0


def test_the_heartbeat_ends_with_the_event_loop_of_its_worker() -> None:
    async def forget_to_stop() -> None:
        Heartbeat(MemoryStore(), lease=0.1, held=list, **UNBOUND).start()
        assert await heartbeats() == 1

    asyncio.run(forget_to_stop())
    assert until(lambda: asyncio.run(heartbeats()) == 0)


def until(condition: Callable[[], bool]) -> bool:
    """Block this thread until the condition holds, and with it an event loop that runs there."""
    for _ in range(1000):
        if condition():
            return True
        sleep(0.01)
    return False


class Rival:
    """A thread with its own event loop in place of another process. It claims all it can."""

    def __init__(self, store: MemoryStore) -> None:
        self.begin = threading.Event()
        self.stolen: list[int] = []
        self._end = threading.Event()
        self._queue = EventQueue(store, worker_id="rival:1")
        self._thread = threading.Thread(target=asyncio.run, args=(self._steal(),))

    async def _steal(self) -> None:
        self.begin.wait(10)
        while not self._end.wait(0.01):
            event = await self._queue.poll()
            if event is not None:
                self.stolen.append(event.id)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end.set()
        self._thread.join()


async def test_an_event_whose_handler_stops_the_event_loop_is_taken_over() -> None:
    store = MemoryStore()
    taken: list[bool] = []
    with Rival(store) as rival:

        async def stop_the_loop(event: Event) -> None:
            rival.begin.set()
            taken.append(until(lambda: event.id in rival.stolen))

        async with EventBus(store, lease=1.0) as bus:
            bus.subscribe("user.*", stop_the_loop, timeout=0.1)
            event = await bus.emit("user.created").stored()
            await asyncio.to_thread(until, lambda: bool(taken))
        assert taken == [True]
        assert rival.stolen == [event.id]


async def test_what_waits_behind_a_handler_that_stops_the_event_loop_is_taken_over() -> None:
    store = MemoryStore()
    taken: list[bool] = []
    with Rival(store) as rival:

        async def stop_the_loop(event: Event) -> None:
            rival.begin.set()
            taken.append(until(lambda: waiting.id in rival.stolen))

        async def never(event: Event) -> None:
            raise AssertionError("it was taken over before it began")

        first, waiting = await store.add_events([new_event("first"), new_event("second")])
        async with EventBus(store, lease=1.0) as bus:
            bus.subscribe("first", stop_the_loop, timeout=None)
            bus.subscribe("second", never, timeout=0.1)
            await asyncio.to_thread(until, lambda: bool(taken))
        assert taken == [True]
        assert first.id not in rival.stolen, "a handler without a timeout has all the time it wants"


async def nothing(event: Event) -> None: ...


def plain(event: Event) -> None: ...


def allowance(*handlers: Handler, begun: bool = False) -> float:
    dispatcher = Dispatcher()
    for handler in handlers:
        dispatcher.add(handler)
    claimed = ClaimedEvent(make_claim("user.created"), 0.0)
    if begun:
        claimed.task = asyncio.current_task()
    return Worker(MemoryStore(), "default", dispatcher)._claims.allowance(claimed)


async def test_a_claim_has_the_timeouts_of_its_handlers_and_a_plain_function_as_much_to_wait_for_a_thread() -> None:
    ours, plain_one = make_handler(nothing, timeout=10.0), make_handler(plain, id="plain", timeout=20.0)
    others = make_handler(nothing, id="others", pattern="order.*", timeout=99.0)
    assert allowance(ours, plain_one, others) == 10 + 2 * 20


async def test_a_handler_without_a_timeout_has_no_bound() -> None:
    assert allowance(make_handler(nothing), make_handler(plain, id="plain", timeout=1.0)) == math.inf


async def test_a_handler_that_was_unsubscribed_while_it_runs_is_not_cut_off() -> None:
    assert allowance(begun=True) == math.inf
    assert allowance() == 0

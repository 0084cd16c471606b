"""The store's clock never goes back and never stands still, whatever is done to the host's."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from durabus.clock import ManualClock, SystemClock
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.stores.sqlite.file_locks import StoreTime, WriteLock
from durabus.stores.sqlite.store import SQLiteStore

HOUR = 3600.0


def set_clock(monkeypatch: pytest.MonkeyPatch, offset: float) -> None:
    """Set the host's clock, as far as durabus can see."""
    monkeypatch.setattr(SystemClock, "now", lambda _: time.time() + offset)


async def opened(file: Path) -> SQLiteStore:
    store = SQLiteStore.from_url(f"sqlite:///{file}")
    await store.open()
    return store


class TestInOneProcess:
    def make(self) -> tuple[StoreTime, ManualClock, ManualClock]:
        clock, elapsed = ManualClock(1000.0), ManualClock(5.0)
        return StoreTime(clock, elapsed=elapsed.now), clock, elapsed

    def test_the_time_of_a_store_is_the_hosts(self) -> None:
        store_time, clock, elapsed = self.make()
        assert store_time.now() == 1000.0
        clock.advance(7.0)
        elapsed.advance(7.0)
        assert store_time.now() == 1007.0

    def test_a_clock_that_was_set_back_does_not_stop_the_time_of_a_store(self) -> None:
        store_time, clock, elapsed = self.make()
        store_time.now()
        clock.advance(-HOUR)
        assert store_time.now() == 1000.0
        elapsed.advance(10.0)
        assert store_time.now() == 1010.0
        elapsed.advance(10.0)
        assert store_time.now() == 1020.0

    def test_the_time_of_a_store_follows_the_host_again_once_that_has_caught_up(self) -> None:
        store_time, clock, elapsed = self.make()
        store_time.now()
        clock.advance(-HOUR)
        elapsed.advance(10.0)
        assert store_time.now() == 1010.0
        clock.advance(2 * HOUR)
        assert store_time.now() == 1000.0 + HOUR

    def test_the_sleep_of_the_host_counts_as_its_clock_says(self) -> None:
        store_time, clock, elapsed = self.make()
        store_time.now()
        clock.advance(HOUR)  # the monotonic clock of Linux does not count a suspended host
        elapsed.advance(1.0)
        assert store_time.now() == 1000.0 + HOUR

    def test_a_clock_that_was_handed_in_stands_still_until_it_is_moved(self) -> None:
        clock = ManualClock(1000.0)
        store_time = StoreTime(clock)
        assert store_time.now() == store_time.now() == 1000.0
        clock.advance(-1.0)
        assert store_time.now() == 1000.0


async def test_leases_end_and_retries_become_due_while_the_clock_is_behind(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(file)
    await store.add_events([new_event("order.placed"), new_event("order.paid", delay=1.0)])
    short = ClaimRequest(bus="default", worker_id="w", token=new_token(), lease=0.2, limit=10)
    assert len(await store.claim_next_events(short)) == 1
    set_clock(monkeypatch, -HOUR)
    claimed: set[str] = set()
    while len(claimed) < 2:  # woken when the one becomes due and the other's lease ends
        await store.wait_for_work("default", timeout=10.0)
        request = ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=10)
        claimed |= {claim.event.type for claim in await store.claim_next_events(request)}
    await store.close()


async def test_a_store_that_is_opened_after_the_clock_was_set_back_goes_on_from_there(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await opened(file)
    (event,) = await first.add_events([new_event("order.placed")])
    set_clock(monkeypatch, -HOUR)
    second = await opened(file)
    (later,) = await second.add_events([new_event("order.placed")])
    assert event.created_ts <= later.created_ts < event.created_ts + 60.0
    await first.close()
    await second.close()
    third = await opened(file)
    assert later.created_ts <= await third.now() < event.created_ts + 60.0
    await third.close()


async def test_a_short_jump_forward_of_one_store_is_followed_by_the_others(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = await opened(file), await opened(file)
    await one.add_events([new_event("order.placed")])
    set_clock(monkeypatch, HOUR)
    (claim,) = await one.claim_next_events(ClaimRequest(bus="default", worker_id="w", token=new_token(), lease=0.1))
    monkeypatch.undo()
    assert claim.event.expires_ts is not None
    assert claim.event.expires_ts > time.time() + HOUR / 2
    # by the host's clock the lease would last an hour
    while not await other.claim_next_events(ClaimRequest(bus="default", worker_id="v", token=new_token())):
        await other.wait_for_work("default", timeout=5.0)
    await one.close()
    await other.close()


async def test_the_log_is_never_stamped_backwards(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = await opened(file), await opened(file)
    for offset in (0.0, HOUR, -HOUR, 0.0, 2 * HOUR, -2 * HOUR):
        set_clock(monkeypatch, offset)
        await one.add_events([new_event("order.placed")])
        set_clock(monkeypatch, -offset)
        await other.add_events([new_event("order.placed")])
    instants = [entry.at_ts for entry in (await one.read_log()).entries]
    assert instants == sorted(instants)
    assert len(instants) == 12
    await one.close()
    await other.close()


AHEAD = """
import asyncio, sys, time
from durabus.clock import SystemClock
from durabus.model.event import new_event
from durabus.store.connect import open_store

SystemClock.now = lambda self: time.time() + 3600

async def main():
    store = await open_store(sys.argv[1])
    await store.add_events([new_event("order.placed")])
    await store.close()

asyncio.run(main())
"""


@pytest.mark.processes
async def test_a_process_goes_on_where_another_one_ended(file: Path) -> None:
    subprocess.run([sys.executable, "-c", AHEAD, f"sqlite:///{file}"], check=True, timeout=30)  # noqa: ASYNC221
    store = await opened(file)
    (claim,) = await store.claim_next_events(ClaimRequest(bus="default", worker_id="w", token=new_token()))
    assert claim.event.picked_ts is not None
    assert claim.event.picked_ts >= claim.event.created_ts > time.time() + HOUR / 2
    await store.close()


@pytest.mark.parametrize("left", [b"", b"\0" * 64, b"nan", b"inf", b"yesterday"])
async def test_a_lock_file_without_an_instant_means_the_hosts_clock(file: Path, left: bytes) -> None:
    lock = WriteLock(file)
    lock.path.write_bytes(left)
    store = await opened(file)
    before = time.time()
    assert before <= await store.now() <= time.time()
    await store.add_events([new_event("order.placed")])
    lock.open()
    assert before <= lock.latest() <= time.time()
    lock.close()
    await store.close()

"""A worker that sleeps wakes when another process or thread makes work for it."""

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.settlement import Release
from durabus.stores.sqlite import wakeup
from durabus.stores.sqlite.store import SQLiteStore

PUBLISH = """
import asyncio, sys
from durabus.model.event import new_event
from durabus.store.connect import open_store

async def main():
    store = await open_store(sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        await store.add_events([new_event("order.placed", bus=line.strip())])
        print("done", flush=True)
    await store.close()

asyncio.run(main())
"""


def request(bus: str = "default") -> ClaimRequest:
    return ClaimRequest(bus=bus, worker_id="w", token=new_token(), limit=10)


class Publisher:
    """Another process, which publishes."""

    def __init__(self, file: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PUBLISH, f"sqlite:///{file}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._heard("ready")

    def _heard(self, word: str) -> None:
        assert self._process.stdout
        assert self._process.stdout.readline() == f"{word}\n"

    async def publish(self, bus: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{bus}\n")
        self._process.stdin.flush()
        await asyncio.to_thread(self._heard, "done")

    def end(self) -> None:
        self._process.communicate(timeout=30)


@pytest.mark.processes
@pytest.mark.parametrize("noticed", [True, False], ids=["told by the kernel", "looking"])
async def test_a_publish_in_another_process_wakes_the_bus_it_is_for(
    file: Path, monkeypatch: pytest.MonkeyPatch, noticed: bool
) -> None:
    from durabus.stores.sqlite import writer

    if not noticed:
        monkeypatch.setattr(writer, "inotify", lambda *_: None)
    store = SQLiteStore.from_url(f"sqlite:///{file}")
    await store.open()
    publisher = Publisher(file)
    try:
        other = asyncio.create_task(store.wait_for_work("mail", timeout=60.0))
        for _ in range(5):
            waiting = asyncio.create_task(store.wait_for_work("default", timeout=60.0))
            await asyncio.sleep(0)
            await publisher.publish("default")
            began = time.monotonic()
            assert await waiting
            assert time.monotonic() - began < 20.0
            assert len(await store.claim_next_events(request())) == 1
        assert not other.done()
        await publisher.publish("mail")
        assert await other
    finally:
        publisher.end()
        await store.close()


@pytest.mark.processes
async def test_work_that_came_between_claim_and_sleep_is_not_slept_through(store: SQLiteStore, file: Path) -> None:
    publisher = Publisher(file)
    assert await store.claim_next_events(request()) == []
    await publisher.publish("default")
    assert await store.wait_for_work("default", timeout=60.0)
    publisher.end()


async def test_work_of_this_process_between_claim_and_sleep_is_not_slept_through(store: SQLiteStore) -> None:
    assert await store.claim_next_events(request()) == []
    await store.add_events([new_event("order.placed")])
    assert await store.wait_for_work("default", timeout=60.0)


async def test_an_event_that_a_worker_could_not_claim_does_not_wake_it_again(store: SQLiteStore) -> None:
    await store.add_events([new_event("order.placed", tags=["eu"])])
    blind = ClaimRequest(bus="default", worker_id="w", token=new_token(), tags=("us",))
    assert await store.claim_next_events(blind) == []
    assert not await store.wait_for_work("default", timeout=0.05)


async def test_a_released_event_and_a_freed_lock_wake_the_bus(store: SQLiteStore) -> None:
    await store.add_events([new_event("order.placed")])
    (claim,) = await store.claim_next_events(request())
    waiting = asyncio.create_task(store.wait_for_work("default", timeout=60.0))
    await store.settle_events([Release(claim.ref)])
    assert await waiting


async def test_a_sleeper_wakes_when_an_event_becomes_due(store: SQLiteStore) -> None:
    await store.add_events([new_event("order.placed", delay=0.1)])
    assert await store.claim_next_events(request()) == []
    began = time.monotonic()
    assert await store.wait_for_work("default", timeout=60.0)
    assert time.monotonic() - began < 20.0
    while not await store.claim_next_events(request()):
        await store.wait_for_work("default", timeout=1.0)


async def test_a_sleeper_wakes_when_a_lease_ends(store: SQLiteStore) -> None:
    await store.add_events([new_event("order.placed")])
    short = ClaimRequest(bus="default", worker_id="w", token=new_token(), lease=0.1)
    assert len(await store.claim_next_events(short)) == 1
    assert await store.wait_for_work("default", timeout=60.0)


async def test_the_store_does_not_look_for_work_while_no_worker_sleeps(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, nobody_left = 0, threading.Event()
    look = wakeup.SQLiteWakeup.look

    def count(self: wakeup.SQLiteWakeup, now: float) -> None:
        nonlocal looks
        looks += 1
        look(self, now)
        if not self.anybody:
            nobody_left.set()

    monkeypatch.setattr(wakeup.SQLiteWakeup, "look", count)
    assert not await store.wait_for_work("default", timeout=0.01)
    assert await asyncio.to_thread(nobody_left.wait, 30)  # the last look finds that the sleeper gave up
    before = looks
    await asyncio.sleep(0.2)
    assert looks == before


async def test_closing_the_store_ends_every_sleep(file: Path) -> None:
    store = SQLiteStore.from_url(f"sqlite:///{file}")
    await store.open()
    waiting = [asyncio.create_task(store.wait_for_work(bus, timeout=60.0)) for bus in ("default", "mail")]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*waiting)


async def test_what_a_claim_left_behind_ends_the_next_sleep_at_once(store: SQLiteStore) -> None:
    await store.add_events([new_event("order.placed") for _ in range(2)])
    one = ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=1)
    assert len(await store.claim_next_events(one)) == 1
    assert await store.wait_for_work("default", timeout=60.0)

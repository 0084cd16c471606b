"""Another process is stopped while it holds the write lock: every call ends in time and says what helps."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from durabus.errors import StoreClosedError, StoreUnavailableError
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.stores.sqlite import database_file, writer
from durabus.stores.sqlite.file_locks import WriteLock
from durabus.stores.sqlite.store import SQLiteStore

pytestmark = pytest.mark.processes

HOLD = """
import asyncio, signal, sys, threading
from durabus.store.connect import open_store

async def main():
    store = await open_store(sys.argv[1])

    def stop(tx):
        print("held", flush=True)
        # to this thread, so that it does not finish before the others have stopped
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    await store._write(stop)
    await store.close()

asyncio.run(main())
"""


class Holder:
    """A process that stopped in the middle of a write."""

    def __init__(self, process: asyncio.subprocess.Process, limits: pytest.MonkeyPatch) -> None:
        self.process = process
        self._limits = limits

    @property
    def name(self) -> str:
        return rf"bus\.db-durabus\.lock: process {self.process.pid} \(which is stopped\).*kill -CONT"

    async def go_on(self) -> None:
        self._limits.undo()  # other processes learn of the free lock a moment later
        os.kill(self.process.pid, signal.SIGCONT)
        assert await self.process.wait() == 0


@pytest.fixture
async def holder(file: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Holder]:
    monkeypatch.setattr(database_file, "BUSY_TIMEOUT", 0.2)
    monkeypatch.setattr(writer, "BUSY_TIMEOUT", 0.2)
    monkeypatch.setattr(writer, "_LOOK_EVERY", 0.01)
    command = [sys.executable, "-c", HOLD, f"sqlite:///{file}"]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout
    assert await process.stdout.readline() == b"held\n"
    yield Holder(process, monkeypatch)
    if process.returncode is None:
        process.kill()
        await process.wait()


async def in_time(call: Any) -> Any:
    """Await a call, for far longer than the limit above. The event loop must go on in the meantime."""
    async with asyncio.timeout(30):
        return await call


def new_store(file: Path) -> SQLiteStore:
    return SQLiteStore.from_url(f"sqlite:///{file}")


async def test_open_gives_up_and_works_later(file: Path, holder: Holder) -> None:
    store = new_store(file)
    with pytest.raises(StoreUnavailableError, match=holder.name):
        await in_time(store.open())
    await holder.go_on()
    await in_time(store.open())
    await store.add_events([new_event("order.placed")])
    await store.close()


async def test_an_open_that_waits_can_be_cancelled_or_closed(
    file: Path, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_file, "BUSY_TIMEOUT", 3600.0)
    store = new_store(file)
    opening = asyncio.create_task(store.open())
    await asyncio.sleep(0)
    assert store._opening is not None
    thread = store._opening._thread
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await in_time(asyncio.to_thread(thread.join))
    opening = asyncio.create_task(store.open())
    await asyncio.sleep(0)
    thread = store._opening._thread
    await in_time(store.close())
    with pytest.raises(StoreClosedError, match="closed while it was being opened"):
        await in_time(opening)
    await in_time(asyncio.to_thread(thread.join))


CALLS: list[Callable[[SQLiteStore], Any]] = [
    lambda store: store.add_events([new_event("order.placed")]),
    lambda store: store.claim_next_events(ClaimRequest(bus="default", worker_id="w", token=new_token())),
    lambda store: store.expire_events(),
    lambda store: store.claim_lock("k", worker_id="w", token="t", lease=1.0),
    lambda store: store.remove_event(1),
    lambda store: store.purge_dead_letters(created_until_ts=0.0),
]


@pytest.fixture
async def beside(file: Path) -> AsyncIterator[SQLiteStore]:
    """A store that was open before the other process stopped."""
    store = new_store(file)
    await store.open()
    yield store
    await store.close()


async def test_every_write_gives_up_and_reads_go_on(beside: SQLiteStore, holder: Holder) -> None:
    for call in CALLS:
        with pytest.raises(StoreUnavailableError, match=holder.name):
            await in_time(call(beside))
    assert (await in_time(beside.counts())).pending == 0
    assert not await in_time(beside.wait_for_work("default", timeout=0.01))
    await holder.go_on()
    assert len(await in_time(beside.add_events([new_event("order.placed")]))) == 1


async def test_a_close_that_cannot_finish_says_so_and_lets_go_later(beside: SQLiteStore, holder: Holder) -> None:
    publishing = asyncio.create_task(beside.add_events([new_event("order.placed")]))
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailableError, match=holder.name):
        await in_time(beside.close())
    with pytest.raises(StoreUnavailableError, match=holder.name):
        await in_time(publishing)
    await holder.go_on()
    await in_time(beside.close())
    assert [thread for thread in threading.enumerate() if "bus.db" in thread.name] == []


async def test_an_idle_store_closes_although_the_lock_is_held(beside: SQLiteStore, holder: Holder) -> None:
    await in_time(beside.close())
    assert [thread for thread in threading.enumerate() if "bus.db" in thread.name] == []


async def test_a_group_that_is_written_one_by_one_gives_up_together(
    store: SQLiteStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BUSY_TIMEOUT", 0.3)
    monkeypatch.setattr(writer, "_LOOK_EVERY", 0.01)
    begun, go_on, lock = threading.Event(), threading.Event(), WriteLock(file)
    lock.open()
    frozen = threading.Thread(target=lock.acquire)

    def hold(_: object) -> None:
        begun.set()
        assert go_on.wait(30)

    def spoil(_: object) -> None:
        if not frozen.ident:
            frozen.start()  # gets the lock when the group has failed
        raise ValueError("guilty")

    holding = asyncio.create_task(store._write(hold))
    assert await asyncio.to_thread(begun.wait, 30)
    spoiling = asyncio.create_task(store._write(spoil))
    calls = [asyncio.create_task(store.add_events([new_event("order.placed")])) for _ in range(300)]
    await asyncio.sleep(0)
    go_on.set()
    answers = await in_time(asyncio.gather(*calls, return_exceptions=True))  # one after the other: 90 seconds
    await holding
    with pytest.raises((ValueError, StoreUnavailableError)):  # guilty, or too late itself
        await spoiling
    refused = [answer for answer in answers if isinstance(answer, StoreUnavailableError)]
    assert len(refused) > 100
    assert (await store.counts()).pending == len(answers) - len(refused)
    monkeypatch.undo()  # the usual limit again: the writer learns of the free lock a moment later
    frozen.join()
    lock.close()
    await in_time(store.add_events([new_event("order.placed")]))

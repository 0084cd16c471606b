"""Opening and closing at odd moments: nothing stays behind, and no caller gets half a store."""

import asyncio
import gc
import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from durabus.errors import SchemaError, StoreClosedError, StoreUnavailableError
from durabus.model.event import new_event
from durabus.store.connect import open_store
from durabus.stores.sqlite import schema
from durabus.stores.sqlite.store import SQLiteStore
from durabus.stores.sqlite.wakeup import SQLiteWakeup


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("durabus")]


def descriptors() -> Counter[str]:
    """Return the open descriptors by kind, without the one of the listed folder."""
    return Counter(
        re.sub(r"\[\d+\]", "", str(path.readlink())) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()
    )


@pytest.fixture
async def nothing_left() -> Any:
    """Fail if the test leaves a thread of a store, or more descriptors than before.

    Descriptors that earlier tests of this process left may end in the meantime.
    """
    gc.collect()
    before, others = descriptors(), threads()
    yield
    for thread in set(threads()).difference(others):  # those that were left to end by themselves do so now
        await asyncio.to_thread(thread.join, 30)
    assert set(threads()) <= set(others)
    assert [path for path in descriptors() if "bus.db" in path] == []
    more = descriptors() - before
    assert not {kind for kind in more if not kind.startswith("socket:")}, more


pytestmark = pytest.mark.usefixtures("nothing_left")


class Gate:
    """Holds an attempt to open in its middle, with the lock taken and one connection made."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.attempts = 0

    def migrate(self, *arguments: Any) -> None:
        self.attempts += 1
        self.reached.set()
        assert self.go_on.wait(30)
        MIGRATE(*arguments)

    async def is_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 30)


MIGRATE = schema.migrate


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(schema, "migrate", gate.migrate)
    yield gate
    gate.go_on.set()


def new_store(file: Path) -> SQLiteStore:
    return SQLiteStore.from_url(f"sqlite:///{file}")


async def works(store: SQLiteStore) -> None:
    await store.add_events([new_event("order.placed")])
    assert (await store.counts()).pending == 1


async def test_many_callers_that_open_at_once_share_one_attempt(file: Path, gate: Gate) -> None:
    store = new_store(file)
    opening = [asyncio.create_task(store.open()) for _ in range(5)]
    await gate.is_reached()
    gate.go_on.set()
    await asyncio.gather(*opening)
    await store.open()
    assert gate.attempts == 1
    await works(store)
    await store.close()


async def test_two_event_loops_open_at_once(file: Path, gate: Gate) -> None:
    store = new_store(file)
    elsewhere = asyncio.create_task(asyncio.to_thread(asyncio.run, store.open()))
    await gate.is_reached()
    here = asyncio.create_task(store.open())
    await asyncio.sleep(0)
    gate.go_on.set()
    await asyncio.gather(here, elsewhere)
    assert gate.attempts == 1
    await works(store)
    await store.close()


async def test_a_cancelled_open_leaves_nothing_and_can_be_repeated(file: Path, gate: Gate) -> None:
    store = new_store(file)
    opening = asyncio.create_task(store.open())
    await gate.is_reached()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    with pytest.raises(StoreClosedError, match="not open yet"):
        await store.counts()
    gate.go_on.set()
    await store.open()
    assert gate.attempts == 2
    await works(store)
    await store.close()


async def test_a_cancelled_open_store_leaves_nothing(file: Path, gate: Gate) -> None:
    opening = asyncio.create_task(open_store(f"sqlite:///{file}"))
    await gate.is_reached()
    opening.cancel()
    gate.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await opening


async def test_an_open_that_is_cancelled_at_its_end_leaves_nothing(file: Path) -> None:
    store = new_store(file)
    opening = asyncio.create_task(store.open())
    await asyncio.sleep(0)
    assert store._opening is not None
    store._opening._thread.join()  # done, but the task does not know yet
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await store.open()
    await works(store)
    await store.close()


async def test_a_cancelled_open_does_not_cancel_other_callers(file: Path, gate: Gate) -> None:
    store = new_store(file)
    first, second = asyncio.create_task(store.open()), asyncio.create_task(store.open())
    await gate.is_reached()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    gate.go_on.set()
    await second
    assert gate.attempts == 1
    await works(store)
    await store.close()


async def test_a_loop_that_ends_in_the_middle_leaves_nothing(file: Path, gate: Gate) -> None:
    async def begin() -> None:
        asyncio.create_task(store.open())  # noqa: RUF006  (abandoned on purpose)
        await gate.is_reached()

    store = new_store(file)
    await asyncio.to_thread(asyncio.run, begin())
    gate.go_on.set()


async def test_close_during_open_ends_both(file: Path, gate: Gate) -> None:
    store = new_store(file)
    opening = asyncio.create_task(store.open())
    await gate.is_reached()
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    gate.go_on.set()
    with pytest.raises(StoreClosedError, match="closed while it was being opened"):
        await opening
    await closing
    with pytest.raises(StoreClosedError, match="closed: open a new one"):
        await store.counts()


async def test_open_after_close_is_refused(file: Path) -> None:
    store = new_store(file)
    await store.open()
    await store.close()
    with pytest.raises(StoreClosedError, match="closed: open a new one"):
        await store.open()
    unopened = new_store(file)
    await unopened.close()
    with pytest.raises(StoreClosedError):
        await unopened.open()


async def test_every_caller_of_close_waits_until_the_store_is_closed(file: Path) -> None:
    store = new_store(file)
    await store.open()
    begun, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        begun.set()
        assert go_on.wait(30)

    holding = asyncio.create_task(store._write(hold))
    await asyncio.to_thread(begun.wait, 30)
    first = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(store.close())
    done, _ = await asyncio.wait([second], timeout=0.05)
    assert not done
    go_on.set()
    await second
    await holding
    assert [thread for thread in threads() if "bus.db" in thread.name] == []


@pytest.mark.parametrize(
    "step", ["connect_writer", "connect_reader", "schema.verify", "Identity", "SQLiteReader.start"]
)
async def test_an_open_that_fails_leaves_nothing_and_can_be_repeated(
    file: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    store = new_store(file)
    with monkeypatch.context() as patch:
        patch.setattr(f"durabus.stores.sqlite.database_file.{step}", fail)
        both = await asyncio.gather(store.open(), store.open(), return_exceptions=True)
    assert [type(answer) for answer in both] == [StoreUnavailableError] * 2
    await store.open()
    await works(store)
    await store.close()


async def test_a_writer_that_breaks_down_refuses_and_can_be_closed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = threading.Event()

    def break_down(*_: object) -> None:
        broken.set()
        raise RuntimeError("a bug")

    store = new_store(file)
    await store.open()
    monkeypatch.setattr(SQLiteWakeup, "watch", break_down)
    assert not await store.wait_for_work("default", timeout=0.01)
    assert await asyncio.to_thread(broken.wait, 30)
    with pytest.raises(StoreUnavailableError, match=r"broke down \(RuntimeError\('a bug'\)\)") as caught:
        await store.add_events([new_event("order.placed")])
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert (await store.counts()).pending == 0
    await store.close()


async def test_a_schema_error_is_raised_to_every_caller_of_open(file: Path) -> None:
    sqlite3.connect(file).execute("CREATE TABLE events (id INTEGER)").connection.close()
    store = new_store(file)
    both = await asyncio.gather(store.open(), store.open(), return_exceptions=True)
    assert [type(answer) for answer in both] == [SchemaError] * 2

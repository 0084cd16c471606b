"""The application reads the database file in the process that has the store open, which drops all its POSIX locks."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from durabus.errors import StoreUnavailableError
from durabus.model.event import new_event
from durabus.stores.sqlite import file_locks
from durabus.stores.sqlite.store import SQLiteStore

PUBLISHER = """
import asyncio, os, signal, sys
from pathlib import Path
from durabus.model.event import new_event
from durabus.store.connect import open_store

async def main(file, *read):
    store = await open_store(f"sqlite:///{file}")
    for _ in range(10):
        await store.add_events([new_event("order.placed")])
    for name in read:
        Path(name).read_bytes()
    print("read", flush=True)
    sys.stdin.readline()
    for _ in range(20):
        await store.add_events([new_event("order.paid")])
        print("acknowledged", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(*sys.argv[1:]))
"""
CLOSER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
print(connection.execute("SELECT count(*) FROM event_log").fetchone()[0])
connection.close()
"""
ON_LINUX = pytest.mark.skipif(not file_locks.supported(), reason="no locks that belong to an open file")


@contextmanager
def publisher(file: Path, *read: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has the store open, has published ten events and has read those files."""
    command = [sys.executable, "-c", PUBLISHER, str(file), *map(str, read)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    with process:
        assert process.stdout.readline() == "read\n"
        yield process


async def count(file: Path) -> int:
    store = SQLiteStore.from_url(f"sqlite:///{file}")
    await store.open()
    pending = (await store.counts()).pending
    await store.close()
    return pending


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def open_and_close(file: Path) -> None:
    """Open and close the file with SQLite in a process without durabus."""
    subprocess.run([sys.executable, "-c", CLOSER, str(file)], check=True, capture_output=True, timeout=30)


async def test_a_store_opens_and_closes_where_the_system_does_not_list_descriptors(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_locks, "_DESCRIPTORS", "/no proc here")  # as in a chroot
    for _ in range(2):
        assert await count(file) == 0
    assert names(file.parent) == ["bus.db", "bus.db-durabus.lock"]


@ON_LINUX
@pytest.mark.processes
@pytest.mark.parametrize("closer", ["store", "sqlite3"])
@pytest.mark.parametrize("read", [[""], ["", "-wal", "-shm"]], ids=["the file", "all three files"])
async def test_what_is_acknowledged_after_the_application_read_the_file_is_kept(
    file: Path, read: list[str], closer: str
) -> None:
    with publisher(file, *(Path(f"{file}{suffix}") for suffix in read)) as process:
        if closer == "store":
            assert await count(file) == 10
        else:
            open_and_close(file)
        output, _ = await asyncio.to_thread(process.communicate, "\n", 30)
    assert output.count("acknowledged") == 20
    assert await count(file) == 30
    connection = sqlite3.connect(file)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


@ON_LINUX
async def test_a_store_that_closes_does_not_drop_the_locks_of_the_applications_own_connection(file: Path) -> None:
    of_other_tests = set(file_locks._locks)
    mine = sqlite3.connect(file, isolation_level=None)
    await count(file)
    mine.execute("CREATE TABLE orders (id INTEGER)")
    await count(file)
    open_and_close(file)
    assert "bus.db-wal" in names(file.parent)
    before = names(Path("/proc/self/fd"))
    for _ in range(3):
        await count(file)
    assert names(Path("/proc/self/fd")) == before
    mine.close()
    await count(file)
    assert not [key for key, lock in file_locks._locks.items() if key not in of_other_tests and not lock.users]


async def test_the_last_store_of_a_process_tidies_up(file: Path) -> None:
    one, other = (SQLiteStore.from_url(f"sqlite:///{file}") for _ in range(2))
    await one.open()
    await other.open()
    await one.add_events([new_event("order.placed")])
    await one.close()
    open_and_close(file)
    await other.add_events([new_event("order.placed")])
    assert (await other.counts()).pending == 2
    await other.close()
    assert names(file.parent) == ["bus.db", "bus.db-durabus.lock"]


async def test_nothing_is_accepted_into_a_log_that_was_removed(store: SQLiteStore, file: Path) -> None:
    await store.add_events([new_event("order.placed")])
    log = file.with_name("bus.db-wal")
    kept = log.rename(file.with_name("kept"))
    for call in (store.add_events([new_event("order.placed")]), store.counts()):
        with pytest.raises(StoreUnavailableError, match=r"bus\.db-wal was removed.*db backup.*Nothing was written"):
            await call
    mine = sqlite3.connect(file)
    with pytest.raises(StoreUnavailableError, match=r"bus\.db-wal was removed"):
        await store.add_events([new_event("order.placed")], connection=mine)
    mine.close()
    kept.rename(log)
    await store.add_events([new_event("order.placed")])
    assert (await store.counts()).pending == 2


async def test_a_commit_into_a_log_that_was_removed_meanwhile_is_not_confirmed(store: SQLiteStore, file: Path) -> None:
    log, kept = file.with_name("bus.db-wal"), file.with_name("kept")
    calls = [store._write(lambda _: log.rename(kept) if log.exists() else None) for _ in range(3)]
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(answer, StoreUnavailableError)
        assert "its outcome is not known" in str(answer)
    kept.rename(log)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no Connection.setconfig")
async def test_without_such_locks_the_log_outlives_the_last_store(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_locks, "_SET_LOCK", None)
    assert await count(file) == 0
    assert "bus.db-wal" in names(file.parent)


async def test_without_such_locks_a_store_confirms_nothing_after_another_process_deleted_its_log(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_locks, "_SET_LOCK", None)
    store = SQLiteStore.from_url(f"sqlite:///{file}")
    await store.open()
    await store.add_events([new_event("order.placed")])
    file.read_bytes()  # noqa: ASYNC240  (a test may wait for its disk)
    open_and_close(file)
    with pytest.raises(StoreUnavailableError, match=r"bus\.db-wal was removed"):
        await store.add_events([new_event("order.placed")])
    await store.close()
    assert await count(file) == 1

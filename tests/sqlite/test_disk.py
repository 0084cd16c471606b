"""Disks that are full, read-only or slow to be freed, and the errors that callers get."""

import asyncio
import fcntl
import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from durabus.errors import SchemaError, StoreUnavailableError
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.settlement import Complete
from durabus.stores.sqlite import file_identity, writer
from durabus.stores.sqlite.store import SQLiteStore


async def test_a_full_disk_fails_the_call_and_nothing_else(store: SQLiteStore) -> None:
    await store.add_events([new_event("order.placed", "x" * 1000)])
    limit = store._file.connections[0].execute("PRAGMA page_count").fetchone()[0] + 4
    await store._write(lambda tx: tx.run(f"PRAGMA max_page_count = {limit}"))
    answers = await asyncio.gather(
        *(store.add_events([new_event("order.placed", "x" * 100_000)]) for _ in range(3)), return_exceptions=True
    )
    assert all(isinstance(answer, StoreUnavailableError) for answer in answers)
    assert "the disk is full: free some space" in str(answers[0])
    assert str(store._path) in str(answers[0])
    assert (await store.counts()).pending == 1
    await store._write(lambda tx: tx.run("PRAGMA max_page_count = 1000000"))
    added = await store.add_events([new_event("order.placed", "x" * 100_000)])
    assert added[0].id == 2
    await store.verify()


FULL = """
import asyncio, os, resource, signal, sys
from durabus.errors import StoreUnavailableError
from durabus.model.event import new_event
from durabus.store.connect import open_store

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

async def main():
    store = await open_store(sys.argv[1])
    await store.add_events([new_event("order.placed")])
    used = os.stat(sys.argv[1].removeprefix("sqlite:///") + "-wal").st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (used + 50_000, resource.RLIM_INFINITY))
    try:
        await store.add_events([new_event("order.placed", "x" * 500_000)])
    except StoreUnavailableError as error:
        print(error)
    else:
        sys.exit("the write went through")
    assert (await store.counts()).pending == 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await store.add_events([new_event("order.placed", "x" * 500_000)])
    assert (await store.counts()).pending == 2
    await store.close()

asyncio.run(main())
"""


@pytest.mark.processes
def test_a_write_that_the_system_refuses_is_taken_back_and_works_later(file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, f"sqlite:///{file}"], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert str(file) in done.stdout
    db = sqlite3.connect(file)
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


READ_ONLY = """
import asyncio, os, sys
import durabus.stores.sqlite.store
from durabus.errors import StoreUnavailableError
from durabus.store.connect import open_store

if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)

async def main():
    try:
        await open_store(sys.argv[1])
    except StoreUnavailableError as error:
        print(error)
    else:
        sys.exit("it opened")

asyncio.run(main())
"""


@pytest.mark.processes
@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_read_only_place_is_refused_at_open(what: str) -> None:
    with tempfile.TemporaryDirectory() as place:  # pytest's own folders are closed to other users
        folder = Path(place) / "data"
        folder.mkdir()
        file = folder / "bus.db"
        sqlite3.connect(file).execute("PRAGMA journal_mode = WAL").connection.close()
        (folder / "bus.db-durabus.lock").touch(mode=0o666)
        (folder / "bus.db-durabus.lock").chmod(0o666)
        Path(place).chmod(0o755)
        folder.chmod(0o555 if what == "folder" else 0o777)
        file.chmod(0o444)
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, f"sqlite:///{file}"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert str(file) in done.stdout
        assert "writable for this user" in done.stdout or "may this user write there" in done.stdout
        folder.chmod(0o755)


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match=r"no/such/bus\.db-durabus\.lock.*must exist and be writable"):
        await SQLiteStore.from_url(f"sqlite:///{tmp_path}/no/such/bus.db").open()


async def test_a_failed_open_leaves_no_thread_and_can_be_repeated(tmp_path: Path) -> None:
    store = SQLiteStore.from_url(f"sqlite:///{tmp_path}/later/bus.db")
    with pytest.raises(StoreUnavailableError):
        await store.open()
    (tmp_path / "later").mkdir()
    await store.open()
    await store.add_events([new_event("order.placed")])
    await store.close()


async def churn(store: SQLiteStore, events: int) -> None:
    for _ in range(events // 100):
        await store.add_events([new_event("order.placed", "x" * 2000) for _ in range(100)])
        request = ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=100)
        claims = await store.claim_next_events(request)
        await store.settle_events([Complete(claim.ref) for claim in claims])


async def test_the_write_ahead_log_stays_small(store: SQLiteStore, file: Path) -> None:
    await churn(store, 8_000)
    assert file.with_name("bus.db-wal").stat().st_size < 32 * 1024 * 1024


async def test_the_log_shrinks_once_a_long_reader_lets_go(
    store: SQLiteStore, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(file_identity, "LIMIT", 4 * 1024 * 1024)
    monkeypatch.setattr(file_identity, "SHRINK_EVERY", 0.01)
    log = file.with_name("bus.db-wal")
    reader = sqlite3.connect(file, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM events").fetchone()
    await churn(store, 3_000)
    assert log.stat().st_size > 4 * 1024 * 1024
    (told,) = [record.getMessage() for record in caplog.records if record.name == "durabus.sqlite"]
    assert "bus.db-wal has" in told
    assert "a connection reads an old state: end its transaction" in told
    reader.execute("COMMIT")
    async with asyncio.timeout(30):  # nothing is written meanwhile: the store does it by itself
        while log.stat().st_size > 4 * 1024 * 1024:  # noqa: ASYNC110  (a file size has no event to wait for)
            await asyncio.sleep(0.01)
    reader.close()


async def test_callers_do_not_wait_for_ever_for_a_frozen_lock_holder(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BUSY_TIMEOUT", 0.05)
    monkeypatch.setattr(writer, "_LOOK_EVERY", 0.01)
    frozen = os.open(store._file.lock.path, os.O_RDWR)
    fcntl.flock(frozen, fcntl.LOCK_EX)
    calls = [asyncio.create_task(store.add_events([new_event("order.placed")])) for _ in range(3)]
    for call in calls:
        with pytest.raises(StoreUnavailableError, match=r"bus\.db-durabus\.lock: process \d+ \(this one"):
            await call
    with pytest.raises(StoreUnavailableError):
        await store.add_events([new_event("order.placed")])
    fcntl.flock(frozen, fcntl.LOCK_UN)
    os.close(frozen)
    monkeypatch.setattr(writer, "BUSY_TIMEOUT", 30.0)
    added = await store.add_events([new_event("order.placed")])
    assert added[0].id == 1  # what was refused did not happen later


async def test_damage_is_reported_as_damage(file: Path) -> None:
    store = SQLiteStore.from_url(f"sqlite:///{file}")
    await store.open()
    await store.add_events([new_event("order.placed", "x" * 3000) for _ in range(50)])
    await store.close()
    damage(file)
    with pytest.raises(SchemaError, match=r"bus\.db is damaged: restore a backup"):
        await store_and_claim(file)


def damage(file: Path) -> None:
    """Damage everything but the first page, which says that the file is a database."""
    size = file.stat().st_size
    with file.open("r+b") as raw:
        raw.seek(4096)
        raw.write(b"\xff" * (size - 4096))


async def store_and_claim(file: Path) -> None:
    store = SQLiteStore.from_url(f"sqlite:///{file}")
    await store.open()
    try:
        await store.claim_next_events(ClaimRequest(bus="default", worker_id="w", token=new_token()))
    finally:
        await store.close()


async def test_calls_that_queue_behind_a_callers_transaction_give_up_together(
    store: SQLiteStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "GROUP", 2)
    await store._write(lambda tx: tx.run("PRAGMA busy_timeout = 300"))
    busy = sqlite3.connect(file, isolation_level=None)
    busy.execute("BEGIN IMMEDIATE")
    calls = [asyncio.create_task(store.add_events([new_event("order.placed")])) for _ in range(100)]
    async with asyncio.timeout(10):  # two by two: 15 seconds
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(answer) for answer in answers} == {StoreUnavailableError}
    assert "another connection holds a transaction open" in str(answers[-1])
    busy.execute("ROLLBACK")
    busy.close()
    assert len(await store.add_events([new_event("order.placed")])) == 1
    assert (await store.counts()).pending == 1

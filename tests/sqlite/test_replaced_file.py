"""The file, or the lock beside it, is removed or replaced while the store is open; or it has two names."""

import asyncio
import os
import shutil
import sqlite3
import stat
from pathlib import Path

import pytest

from durabus.errors import StoreUnavailableError
from durabus.model.event import new_event
from durabus.stores.sqlite import file_identity
from durabus.stores.sqlite.file_locks import WriteLock
from durabus.stores.sqlite.store import SQLiteStore


async def opened(file: Path) -> SQLiteStore:
    store = SQLiteStore.from_url(f"sqlite:///{file}")
    await store.open()
    return store


async def test_nothing_is_accepted_into_a_file_that_was_removed(file: Path) -> None:
    store = await opened(file)
    await store.add_events([new_event("order.placed")])
    file.rename(file.with_name("moved.db"))  # noqa: ASYNC240  (a test may wait for its folder)
    with pytest.raises(StoreUnavailableError, match=r"bus\.db was removed while it was open.*Nothing was written"):
        await store.add_events([new_event("order.placed")])
    with pytest.raises(StoreUnavailableError, match="was removed"):
        await store.counts()
    file.with_name("moved.db").rename(file)
    await store.add_events([new_event("order.placed")])
    assert (await store.counts()).pending == 2
    await store.close()


async def test_nothing_is_accepted_into_a_file_that_was_replaced(file: Path) -> None:
    other = await opened(file.with_name("other.db"))
    await other.close()
    store = await opened(file)
    shutil.copy(file.with_name("other.db"), file.with_name("copy.db"))
    file.with_name("copy.db").replace(file)
    answers = await asyncio.gather(
        *(store.add_events([new_event("order.placed")]) for _ in range(5)), return_exceptions=True
    )
    for answer in answers:
        assert isinstance(answer, StoreUnavailableError)
        assert "was replaced by another file" in str(answer)
    await store.close()


async def test_a_lock_file_that_was_removed_is_made_anew_for_all(file: Path) -> None:
    store = await opened(file)
    store._file.lock.path.unlink()
    other = await opened(file)
    await asyncio.gather(*(one.add_events([new_event("order.placed")]) for one in (store, other) for _ in range(10)))
    both = {store._file.lock._identity, other._file.lock._identity}
    assert len(both) == 1
    assert (await store.counts()).pending == 20
    await store.close()
    await other.close()


async def test_every_user_with_write_access_to_the_file_may_take_its_lock(file: Path) -> None:
    await (await opened(file)).close()
    lock = WriteLock(file).path
    file.chmod(0o660)  # noqa: ASYNC240  (as above)
    lock.chmod(0o600)
    await (await opened(file)).close()
    assert stat.S_IMODE(lock.stat().st_mode) == 0o660
    file.chmod(0o600)  # noqa: ASYNC240
    await (await opened(file)).close()
    assert stat.S_IMODE(lock.stat().st_mode) == 0o660  # rights are given, never taken


async def test_a_lock_that_links_to_another_file_is_refused(file: Path) -> None:
    await (await opened(file)).close()
    precious, lock = file.with_name("precious"), WriteLock(file).path
    precious.write_text("as it was")
    lock.unlink()
    lock.symlink_to(precious)
    with pytest.raises(StoreUnavailableError, match=r"bus\.db-durabus\.lock: cannot be opened"):
        await opened(file)
    assert precious.read_text() == "as it was"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
async def test_a_lock_that_root_makes_belongs_to_the_owner_of_the_file(file: Path) -> None:
    await (await opened(file)).close()
    os.chown(file, 5001, 5002)
    lock = WriteLock(file).path
    lock.unlink()
    await (await opened(file)).close()
    assert (lock.stat().st_uid, lock.stat().st_gid) == (5001, 5002)


def test_a_process_that_waited_for_a_removed_lock_file_gets_the_new_one(file: Path) -> None:
    first, second, third = WriteLock(file), WriteLock(file), WriteLock(file)
    first.open()
    second.open()
    first.acquire()
    first.path.unlink()
    assert second.try_acquire() is False  # still the old one
    first.release()
    third.open()
    assert third.try_acquire()
    assert not second.try_acquire()  # it has found the new one
    third.release()
    assert second.try_acquire()
    for lock in (first, second, third):
        lock.close()


async def test_a_removed_folder_is_reported_and_the_store_can_be_closed(tmp_path: Path) -> None:
    file = tmp_path / "data" / "bus.db"
    file.parent.mkdir()
    store = await opened(file)
    shutil.rmtree(file.parent)
    with pytest.raises(StoreUnavailableError, match="the folder of the database must exist"):
        await store.add_events([new_event("order.placed")])
    await store.close()


async def test_a_file_with_two_names_is_refused_and_left_alone(file: Path) -> None:
    sqlite3.connect(file).execute("CREATE TABLE mine (id INTEGER)").connection.close()
    file.with_name("second.db").hardlink_to(file)
    with pytest.raises(StoreUnavailableError, match=r"bus\.db has 2 names \(hard links\).*keep one name"):
        await opened(file)
    db = sqlite3.connect(file)
    assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]
    db.close()
    file.with_name("second.db").unlink()
    await (await opened(file)).close()


async def test_a_file_that_is_mounted_alone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``docker run -v /data/bus.db:/app/bus.db`` does this: the log in the container is not that of the host."""
    file = tmp_path / "my app" / "bus.db"
    file.parent.mkdir()
    await (await opened(file)).close()
    table = tmp_path / "mountinfo"
    monkeypatch.setattr(file_identity, "MOUNTS", table)
    escaped = str(file).replace(" ", r"\040")
    table.write_text(
        f"22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n30 22 8:1 /data/bus.db {escaped} rw - ext4 /dev/sda1 rw\n"
    )
    with pytest.raises(StoreUnavailableError, match=r"bus\.db is mounted as a single file.*mount its folder instead"):
        await opened(file)
    table.write_text("22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n")
    await (await opened(file)).close()


async def test_two_stores_on_one_file_in_one_process(file: Path) -> None:
    one, other = await opened(file), await opened(file)
    await asyncio.gather(*(store.add_events([new_event("order.placed")]) for store in (one, other) for _ in range(50)))
    await one.close()
    assert (await other.add_events([new_event("order.placed")]))[0].id == 101
    assert (await other.counts()).pending == 101
    await other.close()

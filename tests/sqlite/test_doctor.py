"""What the doctor says about a SQLite file."""

import re
import shutil
import sqlite3
from pathlib import Path

import pytest

from durabus import open_store
from durabus.errors import StoreUnavailableError
from durabus.model.event import new_event
from durabus.store.checks import Level, examine
from durabus.stores.sqlite import file_identity, file_locks
from durabus.stores.sqlite.backup import back_up
from durabus.stores.sqlite.store import SQLiteStore


async def findings(url: str) -> dict[str, tuple[Level, str]]:
    found = {finding.setting: (finding.level, finding.value) for finding in await examine(url)}
    found.pop("sqlite_version", None)
    found.pop("free_bytes", None)
    return found


@pytest.fixture(autouse=True)
def on_a_local_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The mount table of the system, with a local disk. Tests change it."""
    table = tmp_path / "mountinfo"
    table.write_text("22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n")
    monkeypatch.setattr(file_identity, "MOUNTS", table)
    return table


async def test_the_doctor_finds_no_problem_in_a_store_that_durabus_made(store: SQLiteStore, file: Path) -> None:
    assert await findings(f"sqlite:///{file}") == {}
    assert await findings(f"sqlite:///{file}?synchronous=normal") == {"synchronous": ("warning", "normal")}


async def test_a_file_on_a_network_is_an_error(store: SQLiteStore, file: Path, on_a_local_disk: Path) -> None:
    with on_a_local_disk.open("a") as table:
        table.write(f"30 22 0:50 / {file.parent} rw,relatime - nfs4 server:/export rw\n")
    assert await findings(f"sqlite:///{file}") == {"file_system": ("error", "nfs4")}


async def test_an_old_sqlite_is_noted(store: SQLiteStore, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 40, 0))
    assert "sqlite_version" in {finding.setting for finding in await examine(f"sqlite:///{file}")}


async def test_another_journal_and_a_missing_table_are_found(file: Path) -> None:
    await (await open_store(f"sqlite:///{file}")).close()
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA journal_mode = DELETE")
    assert await findings(f"sqlite:///{file}") == {"journal_mode": ("warning", "delete")}
    connection.execute("DROP TABLE locks")
    connection.close()
    (finding,) = [one for one in await examine(f"sqlite:///{file}") if one.level == "error"]
    assert finding.setting == "schema"
    assert "locks" in finding.advice


async def test_the_doctor_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="does not exist"):
        await examine(f"sqlite:///{tmp_path}/none.db")
    assert not (tmp_path / "none.db").exists()


async def test_a_file_that_was_copied_without_its_log_is_noticed_once(
    store: SQLiteStore, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A young store is all in its log, so its copy is empty; an older one's copy lacks the newest events."""
    copy = file.with_name("copy.db")
    for number in range(2):
        await store.add_events([new_event("order.placed")])
        shutil.copy(file, copy)
        assert "copy" in await findings(f"sqlite:///{copy}")
        caplog.clear()
        for _ in range(2):
            opened = await open_store(f"sqlite:///{copy}")
            assert (await opened.counts()).pending == number
            await opened.close()
        (record,) = caplog.records
        assert re.search(r"copy\.db: this file was copied without its -wal.*durabus db backup", record.getMessage())
        assert "copy" not in await findings(f"sqlite:///{copy}")
        for left in file.parent.glob("copy.db*"):
            left.unlink()
        sqlite3.connect(file).execute("PRAGMA wal_checkpoint").connection.close()


async def test_a_backup_and_a_database_of_the_applications_own_are_not_taken_for_such_copies(
    store: SQLiteStore, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backup, mine = file.with_name("backup.db"), file.with_name("mine.db")
    back_up(file, backup, overwrite=False, moved=lambda *_: None)
    connection = sqlite3.connect(mine)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE orders (id INTEGER)")
    connection.close()
    for one in (backup, mine):
        await (await open_store(f"sqlite:///{one}")).close()
    assert caplog.records == []


async def test_a_system_without_locks_of_open_files_is_noted(
    store: SQLiteStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_locks, "supported", lambda: False)
    assert await findings(f"sqlite:///{file}") == {"file_locks": ("note", "of the process")}

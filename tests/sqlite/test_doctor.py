"""What the doctor says about a SQLite file."""

import sqlite3
from pathlib import Path

import pytest

from durabus import open_store
from durabus.backends.sqlite import doctor
from durabus.backends.sqlite.store import SQLiteStore
from durabus.errors import StoreUnavailableError
from durabus.store.doctor import Level, examine


async def findings(url: str) -> dict[str, tuple[Level, str]]:
    found = {finding.setting: (finding.level, finding.value) for finding in await examine(url)}
    found.pop("sqlite_version", None)
    found.pop("free_bytes", None)
    return found


@pytest.fixture(autouse=True)
def on_a_local_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the system says of its mounts, for tests to change."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text("22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n")
    monkeypatch.setattr(doctor, "MOUNTS", mounts)
    return mounts


async def test_a_store_as_durabus_makes_it_is_well(store: SQLiteStore, file: Path) -> None:
    assert await findings(f"sqlite:///{file}") == {}
    assert await findings(f"sqlite:///{file}?synchronous=normal") == {"synchronous": ("warning", "normal")}


async def test_a_file_on_a_network_is_an_error(store: SQLiteStore, file: Path, on_a_local_disk: Path) -> None:
    with on_a_local_disk.open("a") as mounts:
        mounts.write(f"30 22 0:50 / {file.parent} rw,relatime - nfs4 server:/export rw\n")
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


async def test_it_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="does not exist"):
        await examine(f"sqlite:///{tmp_path}/none.db")
    assert not (tmp_path / "none.db").exists()

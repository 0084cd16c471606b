"""`durabus db backup` and `durabus db restore`."""

import shutil
import sqlite3
from pathlib import Path

import pytest
from tests.cli.conftest import Durabus

from durabus import EventQueue, EventStore, open_store
from durabus.stores.sqlite.backup import back_up


async def pending(file: Path) -> int:
    store = await open_store(f"sqlite:///{file}")
    counts = await store.counts()
    await store.close()
    return counts.pending


def as_it_is(file: Path) -> tuple[list[tuple[object, ...]], str]:
    connection = sqlite3.connect(file)
    events = connection.execute("SELECT * FROM events ORDER BY id").fetchall()
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    connection.close()
    return events, mode


def beside(file: Path) -> list[str]:
    return sorted(path.name for path in file.parent.glob(f"{file.name}?*"))


async def test_a_backup_holds_what_is_still_in_the_log(durabus: Durabus, queue: EventQueue, tmp_path: Path) -> None:
    done = durabus("db", "backup", "copy.db", "--json")
    assert done.code == 0, done.err
    assert done.json == {"file": "copy.db", "bytes": (tmp_path / "copy.db").stat().st_size}
    events, mode = as_it_is(tmp_path / "copy.db")
    assert events == as_it_is(tmp_path / "bus.db")[0]
    assert mode == "delete"  # nothing of it lies beside it
    assert beside(tmp_path / "copy.db") == []
    assert await pending(tmp_path / "copy.db") == 1


async def test_a_backup_replaces_a_file_only_if_asked(durabus: Durabus, queue: EventQueue, tmp_path: Path) -> None:
    (tmp_path / "copy.db").write_text("mine")
    refused = durabus("db", "backup", "copy.db")
    assert refused.code == 2
    assert "copy.db exists: choose another name, or say --overwrite" in refused.err
    assert (tmp_path / "copy.db").read_text() == "mine"
    assert durabus("db", "backup", "copy.db", "--overwrite").code == 0
    assert await pending(tmp_path / "copy.db") == 1


async def test_two_backups_into_one_file_at_a_time_do_not_spoil_each_other(queue: EventQueue, tmp_path: Path) -> None:
    """Yesterday's backup may still run when today's begins."""
    copy = tmp_path / "copy.db"
    begun = False

    def begin_another(*_: int) -> None:
        nonlocal begun
        if not begun:
            begun = True
            back_up(tmp_path / "bus.db", copy, overwrite=True, moved=lambda *_: None)

    back_up(tmp_path / "bus.db", copy, overwrite=True, moved=begin_another)
    assert await pending(copy) == 1
    assert [name for name in beside(copy) if "partial" in name] == []


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
async def test_a_backup_spares_the_store_and_every_open_database(
    durabus: Durabus, queue: EventQueue, tmp_path: Path, overwrite: list[str]
) -> None:
    itself = durabus("db", "backup", "bus.db", *overwrite)
    assert itself.code == 2
    assert "is the store itself" in itself.err
    other = await open_store(f"sqlite:///{tmp_path}/other.db")
    assert durabus("db", "backup", "other.db", *overwrite).code == 2
    await other.close()
    assert await pending(tmp_path / "other.db") == 0


async def test_a_restore_brings_the_store_back_as_it_was(
    durabus: Durabus, store: EventStore, queue: EventQueue, tmp_path: Path
) -> None:
    assert durabus("db", "backup", "copy.db").code == 0
    await queue.publish("order.placed", {"order": 4})
    in_use = durabus("db", "restore", "copy.db", "--overwrite")
    assert in_use.code == 3
    assert "bus.db is in use: stop every worker" in in_use.err
    assert (await store.counts()).pending == 2
    await store.close()
    not_asked = durabus("db", "restore", "copy.db")
    assert not_asked.code == 2
    assert "say --overwrite" in not_asked.err
    done = durabus("db", "restore", "copy.db", "--overwrite")
    assert done.code == 0, done.err
    assert "restored" in done.out
    assert await pending(tmp_path / "bus.db") == 1
    assert durabus("db", "verify").code == 0


async def test_a_restore_refuses_a_file_that_a_plain_connection_has_open(
    durabus: Durabus, store: EventStore, queue: EventQueue, tmp_path: Path
) -> None:
    assert durabus("db", "backup", "copy.db").code == 0
    await store.close()
    mine = sqlite3.connect(tmp_path / "bus.db")
    mine.execute("SELECT count(*) FROM events").fetchone()
    assert durabus("db", "restore", "copy.db", "--overwrite").code == 3
    mine.close()
    assert durabus("db", "restore", "copy.db", "--overwrite").code == 0


def test_a_restore_refuses_what_is_no_store(durabus: Durabus, tmp_path: Path) -> None:
    absent = durabus("db", "restore", "none.db")
    assert absent.code == 2
    assert "none.db does not exist" in absent.err
    (tmp_path / "text.db").write_text("no database\n" * 1000)
    assert "text.db is not an SQLite database" in durabus("db", "restore", "text.db").err
    sqlite3.connect(tmp_path / "mine.db").execute("CREATE TABLE orders (id INTEGER)").connection.close()
    stranger = durabus("db", "restore", "mine.db")
    assert stranger.code == 3
    assert "mine.db is no durabus store" in stranger.err
    assert not (tmp_path / "bus.db").exists()


async def test_a_restore_refuses_a_damaged_backup(durabus: Durabus, queue: EventQueue, tmp_path: Path) -> None:
    assert durabus("db", "backup", "copy.db").code == 0
    with (tmp_path / "copy.db").open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * 8192)
    refused = durabus("db", "restore", "copy.db", "--store", "sqlite:///new.db")
    assert refused.code == 3
    assert "damaged" in refused.err
    assert not (tmp_path / "new.db").exists()


def test_the_status_of_what_is_no_database_is_one_clear_error(durabus: Durabus, tmp_path: Path) -> None:
    (tmp_path / "bus.db").write_text("no database\n" * 1000)
    done = durabus("db", "status")
    assert done.code == 3
    assert "is not an SQLite database" in done.err


def test_only_files_are_copied(durabus: Durabus) -> None:
    for way in ("backup", "restore"):
        done = durabus("db", way, "copy.db", store="redis://localhost")
        assert done.code == 2
        assert "copies SQLite files only" in done.err


async def test_the_status_of_a_file_that_was_copied_without_its_log_says_so(
    durabus: Durabus, queue: EventQueue, tmp_path: Path
) -> None:
    assert durabus("db", "status", "--json").json["warning"] is None
    shutil.copy(tmp_path / "bus.db", tmp_path / "copy.db")
    shown = durabus("db", "status", store="sqlite:///copy.db")
    assert shown.code == 1  # the tables are in the log of the original
    assert "copied without its -wal" in shown.err
    assert "durabus db backup" in durabus("db", "status", "--json", store="sqlite:///copy.db").json["warning"]

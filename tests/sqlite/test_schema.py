"""Tables are what the migrations make, or the store says what is wrong and what to do."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from durabus.errors import SchemaError
from durabus.stores.sqlite import schema
from durabus.stores.sqlite.store import SQLiteStore


def open_file(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(file, isolation_level=None)


async def opened(file: Path) -> SQLiteStore:
    store = SQLiteStore.from_url(f"sqlite:///{file}")
    await store.open()
    return store


def test_up_verify_down_and_verify_must_fail(file: Path) -> None:
    db = open_file(file)
    schema.migrate(db, file, now=0.0)
    schema.verify(db, file)
    schema.revert(db, file)
    with pytest.raises(SchemaError, match="lacks 0001_tables"):
        schema.verify(db, file)
    left = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")}
    assert left == {"durabus_migrations"}
    schema.migrate(db, file, now=0.0)
    schema.verify(db, file)
    db.close()


def test_migrating_twice_changes_nothing(file: Path) -> None:
    db = open_file(file)
    schema.migrate(db, file, now=0.0)
    before = db.total_changes
    schema.migrate(db, file, now=1.0)
    assert db.total_changes == before
    db.close()


def test_every_step_has_a_way_back_and_a_number_of_its_own() -> None:
    numbers = [step.number for step in schema.migrations()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert all(step.down.strip() for step in schema.migrations())


async def test_a_file_of_a_newer_durabus_is_refused(file: Path) -> None:
    await (await opened(file)).close()
    db = open_file(file)
    db.execute("INSERT INTO durabus_migrations VALUES (9999, '9999_future', 'x', 0.0)")
    db.close()
    with pytest.raises(SchemaError, match=r"newer durabus.*9999_future.*upgrade durabus"):
        await opened(file)


async def test_a_step_applied_in_another_form_is_refused(file: Path) -> None:
    await (await opened(file)).close()
    db = open_file(file)
    db.execute("UPDATE durabus_migrations SET checksum = 'x'")
    db.close()
    with pytest.raises(SchemaError, match="0001_tables was applied in another form"):
        await opened(file)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("DROP INDEX events_ready", "index events_ready is missing"),
        ("DROP TABLE event_tags", "table event_tags is missing"),
        ("ALTER TABLE dead_letters ADD COLUMN note TEXT", "table dead_letters is not the one durabus made.*note TEXT"),
        ("DROP VIEW subscriptions", "view subscriptions is missing"),
    ],
)
async def test_a_damaged_schema_is_named(file: Path, damage: str, named: str) -> None:
    store = await opened(file)
    await store.verify()
    db = open_file(file)
    db.execute(damage)
    db.close()
    with pytest.raises(SchemaError, match=named):
        await store.verify()
    await store.close()
    with pytest.raises(SchemaError, match=named):
        await opened(file)


async def test_tables_of_others_in_the_same_file_are_not_looked_at(file: Path) -> None:
    db = open_file(file)
    db.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY)")
    db.close()
    store = await opened(file)
    await store.verify()
    await store.close()


async def test_a_table_of_ours_that_another_program_made_is_refused(file: Path) -> None:
    db = open_file(file)
    db.execute("CREATE TABLE events (id INTEGER PRIMARY KEY)")
    db.close()
    with pytest.raises(SchemaError, match="table events already exists, but durabus did not make it"):
        await opened(file)
    db = open_file(file)
    assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("events",)]
    db.close()


def write_diary(file: Path) -> bytes:
    text = b"Dear diary, today I wrote a text file of some length." * 20
    file.write_bytes(text)
    return text


async def test_a_file_that_is_no_database_is_refused_and_left_alone(file: Path) -> None:
    diary = write_diary(file)
    with pytest.raises(SchemaError, match="is not an SQLite database"):
        await opened(file)
    assert diary == file.read_bytes()  # noqa: ASYNC240  (a test may wait for a small file)


async def test_an_old_sqlite_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    with pytest.raises(SchemaError, match=r"needs 3\.37\.0 or newer"):
        await opened(file)
    assert not file.exists()  # noqa: ASYNC240  (as above)


OPEN = """
import asyncio, sys
from durabus.store.connect import open_store

async def main():
    sys.stdin.readline()
    store = await open_store(sys.argv[1])
    await store.verify()
    await store.close()

asyncio.run(main())
"""


@pytest.mark.processes
def test_ten_processes_open_a_new_file_at_once(file: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN, f"sqlite:///{file}"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(10)
    ]
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors
    db = open_file(file)
    assert db.execute("SELECT count(*) FROM durabus_migrations").fetchone() == (len(schema.migrations()),)
    db.close()

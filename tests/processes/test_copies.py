"""Processes that publish, work, and read the files of their own SQLite store are killed; nothing acknowledged is lost.

Five seconds in `make test`; `DURABUS_COPY_SECONDS=60 make races ARGS='-k copies -s'` is the same for a minute.
"""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Self

import pytest

from durabus import EventStatus, open_store
from durabus.clock import monotonic
from durabus.stores.sqlite.backup import back_up

SECONDS = float(os.environ.get("DURABUS_COPY_SECONDS", "5"))
WORKER = Path(__file__).with_name("copying_worker.py")
KILL_EVERY = 0.5
OPEN_EVERY = 0.1
BACK_UP_EVERY = 1.0


class Crew:
    """Four workers, one of which is killed and replaced now and then."""

    def __init__(self, *arguments: str) -> None:
        self._command = [sys.executable, str(WORKER), *arguments]
        self._workers: list[subprocess.Popen[str]] = []
        self.kills = 0

    def __enter__(self) -> Self:
        for _ in range(4):
            self._start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for worker in self._workers:
            worker.kill()
            worker.communicate()

    def replace_one(self) -> None:
        """Kill and replace the oldest worker. A worker that ended by itself had an error."""
        assert [worker.poll() for worker in self._workers] == [None] * 4
        worker = self._workers.pop(0)
        worker.kill()
        worker.communicate()
        self.kills += 1
        self._start()

    def _start(self) -> None:
        # Its stdin closes with this process, whatever ends it, and that ends the worker.
        worker = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._workers.append(worker)
        assert worker.stdout
        assert worker.stdout.readline() == "ready\n"


def acknowledged(ledger: Path, what: str) -> list[str]:
    return [line.split()[1] for line in ledger.read_text().splitlines() if line.startswith(what)]


def known(file: Path) -> set[str]:
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return {row[0] for row in connection.execute("SELECT event_id FROM event_log WHERE action = 'PUBLISHED'")}


def chunks(ids: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), 1000):
        yield ids[start : start + 1000]


async def keep_killing(crew: Crew, end: float) -> None:
    while monotonic() < end:
        await asyncio.to_thread(crew.replace_one)
        await asyncio.sleep(KILL_EVERY)


async def keep_opening(file: Path, end: float) -> None:
    """Open and close the file with durabus and with SQLite: a process whose locks are not seen would lose its log."""
    while monotonic() < end:
        await (await open_store(f"sqlite:///{file}")).close()
        sqlite3.connect(file).execute("SELECT count(*) FROM durabus_migrations").connection.close()
        await asyncio.sleep(OPEN_EVERY)


async def keep_backing_up(file: Path, ledger: Path, end: float) -> int:
    backup, made = file.with_name("backup.db"), 0
    while monotonic() < end:
        before = set(acknowledged(ledger, "published"))
        await asyncio.to_thread(back_up, file, backup, overwrite=True, moved=lambda *_: None)
        assert before <= known(backup)
        made += 1
        await asyncio.sleep(BACK_UP_EVERY)
    return made


@pytest.mark.processes
@pytest.mark.timeout(SECONDS * 3 + 60)
@pytest.mark.skipif(sys.platform != "linux", reason="needs locks that belong to an open file")
async def test_copies_of_an_open_file_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    file, ledger = tmp_path / "bus.db", tmp_path / "ledger"
    with Crew(str(file), str(ledger), "", "-wal") as crew:
        end = monotonic() + SECONDS
        _, _, backups = await asyncio.gather(
            keep_killing(crew, end), keep_opening(file, end), keep_backing_up(file, ledger, end)
        )
    published, completed = acknowledged(ledger, "published"), acknowledged(ledger, "completed")
    assert set(published) - known(file) == set()
    store = await open_store(f"sqlite:///{file}")
    for part in chunks(completed):
        assert {event and event.status for event in await store.get_events(part)} == {EventStatus.COMPLETED}
    await store.close()
    counts = f"{len(published)} published, {len(completed)} completed, {crew.kills} kills, {backups} backups"
    sys.stdout.write(f"\n{counts}, 0 lost\n")
    assert min(len(published), len(completed)) > 10 * SECONDS
    assert crew.kills >= SECONDS / 5

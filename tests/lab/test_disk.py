"""A disk that no longer syncs: a writer gets an error, and its repeat in another process takes effect once.

A full disk does not keep the lab from recording what happened.
"""

import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from tests.lab.disk import break_sync, fill, free
from tests.lab.life import line_writer, lines_of

from durabus import NewEvent, StoreUnavailableError, new_event, open_store
from durabus.testing.history.history import Disturbed

NEW_PROCESS = multiprocessing.get_context("spawn")


def publish_on_a_failing_disk(url: str, first: NewEvent, second: NewEvent, told: Connection) -> None:
    import asyncio

    async def publish() -> None:
        store = await open_store(url)
        await store.add_events([first])
        break_sync()
        try:
            await store.add_events([second])
        except StoreUnavailableError as error:
            told.send(str(error))
        else:
            told.send("acknowledged")
        await store.close()

    asyncio.run(publish())


@pytest.mark.processes
@pytest.mark.parametrize("alone", [True, False], ids=["the only process", "one of two"])
async def test_a_commit_that_cannot_be_synced_is_an_error_and_may_be_repeated(tmp_path: Path, alone: bool) -> None:
    url = f"sqlite:///{tmp_path}/bus.db"
    other = None if alone else await open_store(url)
    first, second = new_event("order.placed"), new_event("order.placed")
    telling, told = NEW_PROCESS.Pipe(duplex=False)
    process = NEW_PROCESS.Process(target=publish_on_a_failing_disk, args=(url, first, second, told))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert "the disk refused to read or write" in telling.recv()
    telling.close()
    told.close()
    store = other or await open_store(url)
    assert (await store.counts()).pending in ({1, 2} if alone else {1})
    await store.add_events([second])
    await store.add_events([first])
    assert (await store.counts()).pending == 2
    await store.close()


def write_on_a_full_disk(ledger: Path) -> None:
    import threading

    write = line_writer(ledger)
    fill([os.getpid()], 1_000)
    threading.Timer(0.2, free, [[os.getpid()]]).start()
    for n in range(100):
        write(Disturbed(n, "host", "freeze"))


@pytest.mark.processes
def test_what_the_lab_writes_down_waits_for_a_full_disk_and_may_end_in_the_middle_of_a_line(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    process = NEW_PROCESS.Process(target=write_on_a_full_disk, args=(ledger,))
    process.start()
    process.join()
    assert process.exitcode == 0
    whole = [Disturbed(n, "host", "freeze") for n in range(100)]
    assert lines_of(ledger) == whole
    with ledger.open("ab") as file:
        file.write(b'{"type":"inv')
    assert lines_of(ledger) == whole

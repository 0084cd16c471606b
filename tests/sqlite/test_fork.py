"""A forked child gets a clear error and does the parent no harm."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from durabus.backends.sqlite.store import SQLiteStore
from durabus.model.event import new_event

FORK = """
import asyncio, os, sys, warnings
from durabus.errors import StoreClosedError
from durabus.model.event import new_event
from durabus.store.connect import open_store

warnings.simplefilter("ignore", DeprecationWarning)

async def errors(store):
    answers = []
    for call in (store.counts(), store.add_events([new_event("order.paid")]), store.close()):
        try:
            await call
            answers.append("no error")
        except StoreClosedError as error:
            answers.append(str(error))
    print(answers, file=sys.stderr)
    return answers

# No event loop is alive at the fork: a child that closes an inherited one deafens the parent's.
store = asyncio.run(open_store(sys.argv[1]))
asyncio.run(store.add_events([new_event("order.placed")]))
child = os.fork()
if child == 0:
    parent = f"opened in process {os.getppid()}"
    good = all(parent in a and "open a store in each process" in a for a in asyncio.run(errors(store)))
    del store
    if sys.argv[2] == "os._exit":
        os._exit(0 if good else 1)
    sys.exit(0 if good else 1)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0
asyncio.run(store.add_events([new_event("order.shipped")]))
assert asyncio.run(store.counts()).pending == 2
asyncio.run(store.close())
"""


@pytest.mark.processes
@pytest.mark.parametrize("way_out", ["os._exit", "sys.exit"])
def test_a_child_that_uses_the_parents_store_gets_a_clear_error(file: Path, way_out: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, f"sqlite:///{file}", way_out],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr


HOLD = """
import asyncio, os, signal, sys, warnings
from durabus.store.connect import open_store

warnings.simplefilter("ignore", DeprecationWarning)

async def main():
    store = await open_store(sys.argv[1])

    def fork_and_die(tx):
        # inside a transaction, with the write lock held
        child = os.fork()
        if child == 0:
            print(os.getpid(), flush=True)
            os.close(1)
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)

    await store._write(fork_and_die)

asyncio.run(main())
"""


@pytest.mark.processes
async def test_a_child_does_not_keep_the_lock_of_its_killed_parent(file: Path) -> None:
    command = [sys.executable, "-c", HOLD, f"sqlite:///{file}"]
    killed = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    answer, _ = await killed.communicate()
    child = int(answer)
    try:
        store = SQLiteStore.from_url(f"sqlite:///{file}")
        await store.open()
        await store.add_events([new_event("order.placed")])
        await store.close()
        names = [path.name for path in file.parent.iterdir()]
        assert "bus.db-wal" not in names  # nor the presence of its parent: this store was the last one
    finally:
        os.kill(child, signal.SIGKILL)

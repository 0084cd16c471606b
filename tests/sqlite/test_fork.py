"""A forked child gets a clear error and does the parent no harm."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from durabus.model.event import new_event
from durabus.stores.sqlite import file_locks
from durabus.stores.sqlite.store import SQLiteStore

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


OWN_STORE = """
import asyncio, os, signal, sys, threading, time, warnings
from durabus.model.event import new_event
from durabus.store.connect import open_store

warnings.simplefilter("ignore", DeprecationWarning)
inside = threading.Event()

async def publish():
    store = await open_store(sys.argv[1])
    await store.add_events([new_event("order.paid")])
    await store.close()

def take_long(tx):
    tx.run("DELETE FROM events")
    inside.set()
    time.sleep(0.2)

store = asyncio.run(open_store(sys.argv[1]))
thread = threading.Thread(target=lambda: asyncio.run(store._write(take_long)))
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(10)
    asyncio.run(publish())
    os._exit(0)
_, status = os.waitpid(child, 0)
thread.join()
asyncio.run(store.add_events([new_event("order.placed")]))
assert asyncio.run(store.counts()).pending == 2
asyncio.run(store.close())
sys.exit(abs(os.waitstatus_to_exitcode(status)))
"""


@pytest.mark.processes
def test_a_child_that_was_forked_within_a_transaction_can_open_a_store_of_its_own(file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OWN_STORE, f"sqlite:///{file}"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr


OUTLIVED = """
import asyncio, os, sys, warnings
from durabus.errors import StoreUnavailableError
from durabus.store.connect import open_store

warnings.simplefilter("ignore", DeprecationWarning)
store = asyncio.run(open_store(sys.argv[1]))
closed, tell = os.pipe()
child = os.fork()
if child == 0:
    os.read(closed, 1)
    try:
        asyncio.run(open_store(sys.argv[1]))
    except StoreUnavailableError as error:
        os._exit(0 if "-shm was deleted" in str(error) and "spawn" in str(error) else 2)
    os._exit(1)
asyncio.run(store.close())
if sys.argv[2] == "opened again":
    import subprocess
    hold = "import asyncio, sys, durabus; s = asyncio.run(durabus.open_store(sys.argv[1])); input(print())"
    other = subprocess.Popen(
        [sys.executable, "-c", hold, sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=True
    )
    other.stdout.readline()
os.write(tell, b"x")
_, status = os.waitpid(child, 0)
if sys.argv[2] == "opened again":
    other.communicate(b"x")
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.processes
@pytest.mark.skipif(not file_locks.supported(), reason="no locks that belong to an open file")
@pytest.mark.parametrize("since", ["closed", "opened again"])
def test_a_child_is_refused_before_it_does_damage_if_its_parent_has_closed_the_file(file: Path, since: str) -> None:
    """SQLite would go on with the deleted ``-shm`` that the child inherited, beside others that use a new one."""
    done = subprocess.run(
        [sys.executable, "-c", OUTLIVED, f"sqlite:///{file}", since],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr

"""A SyncEventBus of a module: no thread before its first use, none that keeps the program alive, none after a fork."""

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from durabus import ConfigurationError, Event, EventQuery, EventStatus, SyncEventBus, open_store

pytestmark = pytest.mark.processes

MODULE = """
import asyncio, os, threading
from durabus import Event, SyncEventBus

bus = SyncEventBus({url!r}, shutdown_timeout={patience}, name="shop")
begun = threading.Event()

@bus.on("order.*", id="place")
async def place(event: Event) -> None:
    {doing}

assert threading.active_count() == 1, threading.enumerate()
"""

BEGIN = "begun.set()"
ENDS_INSIDE_A_HANDLER = """
from app import begun, bus
bus.emit("order.placed")
begun.wait(10)
"""


def run(folder: Path, script: str, *, doing: str = "pass", patience: float = 0.2) -> subprocess.CompletedProcess[str]:
    """Run a program that imports the module ``app``."""
    (folder / "app.py").write_text(MODULE.format(url=f"sqlite:///{folder}/bus.db", doing=doing, patience=patience))
    (folder / "program.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "program.py"],
        cwd=folder, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done


def events(folder: Path) -> list[Event]:
    async def read() -> list[Event]:
        store = await open_store(f"sqlite:///{folder}/bus.db")
        try:
            return sorted((await store.find(EventQuery(limit=1000))).events, key=lambda event: event.id)
        finally:
            await store.close()

    return asyncio.run(read())


def test_a_program_that_only_imports_the_bus_starts_no_thread_and_ends(tmp_path: Path) -> None:
    run(tmp_path, "import app")
    assert not (tmp_path / "bus.db").exists()


def test_what_was_emitted_is_stored_when_the_program_ends(tmp_path: Path) -> None:
    run(tmp_path, "from app import bus\nbus.start()\nfor n in range(500): bus.emit('order.noted', n)")
    assert len(events(tmp_path)) == 500


def test_a_handler_that_runs_when_the_program_ends_may_finish(tmp_path: Path) -> None:
    run(tmp_path, ENDS_INSIDE_A_HANDLER, doing=f"{BEGIN}; await asyncio.sleep(0.3)", patience=30)
    assert [event.status for event in events(tmp_path)] == [EventStatus.COMPLETED]


def test_what_does_not_finish_goes_back_to_the_queue_with_its_attempt(tmp_path: Path) -> None:
    run(tmp_path, ENDS_INSIDE_A_HANDLER, doing=f"{BEGIN}; await asyncio.sleep(60)")
    assert [(event.status, event.attempts) for event in events(tmp_path)] == [(EventStatus.PENDING, 0)]


def test_an_async_handler_that_blocks_its_loop_does_not_keep_the_program_alive(tmp_path: Path) -> None:
    hurry = "import durabus.bus.sync_bus as thread\nthread.PATIENCE = 0.2\nimport sys\nsys.stderr = sys.stdout\n"
    done = run(tmp_path, hurry + ENDS_INSIDE_A_HANDLER, doing=f"{BEGIN}; import time; time.sleep(60)")
    assert "an async handler blocks the event loop of its SyncEventBus" in done.stdout
    assert [event.status for event in events(tmp_path)] == [EventStatus.PROCESSING]


def test_threads_that_outlive_the_main_one_may_publish_to_their_end(tmp_path: Path) -> None:
    script = """
import threading, time
from concurrent.futures import ThreadPoolExecutor
from app import bus
bus.start()
def work(name):
    time.sleep(0.3)
    bus.publish("order." + name)
threading.Thread(target=work, args=["thread"]).start()
ThreadPoolExecutor(1).submit(work, "executor")
"""
    run(tmp_path, script)
    assert sorted(event.type for event in events(tmp_path)) == ["order.executor", "order.thread"]


def test_a_bus_that_was_only_imported_works_on_both_sides_of_a_fork(tmp_path: Path) -> None:
    script = """
import os, sys
from app import bus
children = []
for n in range(2):
    children.append(os.fork())
    if not children[-1]:
        bus.publish("order.placed", n)
        print(bus.bus._registry._node, flush=True)
        sys.exit(0)
bus.publish("order.placed", "parent")
print(bus.bus._registry._node, flush=True)
assert all(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 for child in children)
"""
    done = run(tmp_path, script)
    assert len(set(done.stdout.split())) == 3, "each process is a node of its own"
    assert [event.status for event in events(tmp_path)] == [EventStatus.COMPLETED] * 3
    assert len({event.event_id for event in events(tmp_path)}) == 3


@pytest.mark.parametrize("way_out", ["sys.exit(0)", "os._exit(0)"])
def test_a_child_that_uses_its_parents_bus_gets_a_clear_error(tmp_path: Path, way_out: str) -> None:
    script = f"""
import os, sys
from durabus import StoreClosedError
from app import bus
with bus:
    bus.publish("order.placed", 1)
    handle = bus.emit("order.placed", 2)
    child = os.fork()
    if not child:
        publish, subscribe = lambda: bus.publish("order.placed", 3), lambda: bus.subscribe("a", print)
        for call in (publish, subscribe, handle.completed, bus.start):
            try:
                call()
            except StoreClosedError as error:
                assert f"used in process {{os.getppid()}}, and now in its child {{os.getpid()}}" in str(error), error
                assert "make a new SyncEventBus in the child" in str(error)
            else:
                print("no error", flush=True)
        bus.shutdown()
        {way_out}
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    bus.publish("order.placed", 4)
"""
    assert run(tmp_path, script).stdout == ""
    assert [(event.payload, event.status) for event in events(tmp_path)] == [
        (number, EventStatus.COMPLETED) for number in (1, 2, 4)
    ]


def test_django_migrates_with_the_bus_in_one_of_its_apps(tmp_path: Path) -> None:
    pytest.importorskip("django")
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "__init__.py").write_text("")
    (shop / "models.py").write_text("import app")
    script = """
import django
from django.conf import settings
from django.core.management import call_command
databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "django.db"}}
settings.configure(DATABASES=databases, INSTALLED_APPS=["django.contrib.contenttypes", "shop"])
django.setup()
call_command("migrate", verbosity=0)
print("migrated")
"""
    assert run(tmp_path, script).stdout == "migrated\n"


def test_the_first_use_by_many_threads_at_once_starts_one_background_thread() -> None:
    with ThreadPoolExecutor(16) as threads:
        bus, together = SyncEventBus("memory://", name="crowd"), threading.Barrier(16)

        def publish(n: int) -> str:
            together.wait(10)
            return bus.publish("order.placed", n)

        assert len(set(threads.map(publish, range(16)))) == 16
        assert [thread.name for thread in threading.enumerate()].count("durabus-sync-crowd") == 1
        bus.shutdown()
    assert "durabus-sync-crowd" not in [thread.name for thread in threading.enumerate()]


def test_an_async_handler_that_calls_its_own_sync_bus_gets_an_error_with_the_remedy() -> None:
    with SyncEventBus("memory://", retry={"max_retries": 0}) as bus:
        errors: list[str] = []

        async def place(event: Event) -> None:
            try:
                bus.publish("order.noted")
            except ConfigurationError as error:
                errors.append(str(error))

        bus.subscribe("order.placed", place)
        bus.publish("order.placed")
    assert len(errors) == 1
    assert "use ctx.emit there, or make the handler a plain function" in errors[0]

"""A bus for scripts: what its handles say after the end, and scripts that forget to end it."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from durabus import ConfigurationError, EventBusShutdownError, EventFailed, EventStatus, SyncEventBus

SCRIPT = """
import threading
from durabus import SyncEventBus

bus = SyncEventBus({url!r}, shutdown_timeout=0.2).start()
begun = threading.Event()

def parent(event):
    begun.set()
    {doing}

bus.subscribe("parent", parent, id="parent")
bus.subscribe("child", lambda event: None, id="child")
bus.emit("parent").stored()
begun.wait()
print("end of the script")
"""


def test_a_handle_still_returns_after_the_shutdown_what_was_known_before() -> None:
    bus = SyncEventBus("memory://")
    bus.subscribe("add", lambda event: event.payload + 1, id="adder")
    bus.subscribe("fail", lambda event: 1 / 0, retry={"max_retries": 0})
    bus.start()
    added, failed = bus.emit("add", 1), bus.emit("fail")
    assert bus.wait_until_idle(10)
    bus.shutdown()
    assert added.stored().event_id == added.event_id
    assert (added.completed().status, added.result()) == (EventStatus.COMPLETED, 2)
    assert [result.handler_id for result in added.results()] == ["adder"]
    with pytest.raises(EventFailed, match="ZeroDivisionError"):
        failed.result()


def test_a_handle_of_an_event_that_had_not_ended_says_that_the_bus_is_shut_down() -> None:
    bus, entered, release = SyncEventBus("memory://"), threading.Event(), threading.Event()

    def wait(event: object) -> None:
        entered.set()
        release.wait(10)

    bus.subscribe("user.*", wait)
    bus.start()
    handle = bus.emit("user.created")
    entered.wait(10)
    bus.shutdown(0)
    release.set()
    assert handle.stored().event_id == handle.event_id
    for ask in (handle.completed, handle.results, handle.result):
        with pytest.raises(EventBusShutdownError, match="shut down"):
            ask()


def test_a_caller_that_waits_in_another_thread_gets_the_shutdown_error() -> None:
    bus, entered, release = SyncEventBus("memory://"), threading.Event(), threading.Event()

    def wait(event: object) -> None:
        entered.set()
        release.wait(10)

    bus.subscribe("user.*", wait)
    bus.start()
    handle = bus.emit("user.created")
    with ThreadPoolExecutor(1) as another:
        waiting = another.submit(handle.completed)
        entered.wait(10)
        bus.shutdown(0)
        with pytest.raises(EventBusShutdownError, match="shut down"):
            waiting.result(10)
    release.set()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("doing", "logged"),
    [
        pytest.param("return", "", id="idle"),
        pytest.param("threading.Event().wait()", "", id="a handler that never ends"),
        pytest.param(
            "[bus.publish('child') for _ in iter(int, 1)]",
            "EventBusShutdownError: this SyncEventBus is shut down; make a new one\n",
            id="a handler that publishes for ever",
        ),
    ],
)
@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
def test_a_script_that_forgets_the_shutdown_ends(tmp_path: Path, scheme: str, doing: str, logged: str) -> None:
    url = "memory://" if scheme == "memory" else f"sqlite:///{tmp_path}/bus.db"
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(url=url, doing=doing)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "end of the script\n")
    assert ended.stderr.endswith(logged) if logged else not ended.stderr


@pytest.mark.parametrize("ask", ["completed", "results", "result"])
def test_a_handle_waits_no_longer_than_its_timeout(tmp_path: Path, ask: str) -> None:
    with SyncEventBus(f"sqlite:///{tmp_path}/bus.db", serve=False) as bus:
        handle = bus.emit("order.placed")
        handle.stored()
        with pytest.raises(TimeoutError, match=rf"event {handle.event_id} has not ended within 0\.01 s"):
            getattr(handle, ask)(timeout=0.01)
        with pytest.raises(ConfigurationError, match="timeout=-1"):
            getattr(handle, ask)(timeout=-1)


def test_a_handle_with_a_timeout_returns_what_ended_in_time_and_what_is_known_after_the_shutdown() -> None:
    with SyncEventBus("memory://") as bus:
        bus.subscribe("add", lambda event: 2)
        handle = bus.emit("add")
        assert handle.result(timeout=30) == 2
    assert handle.completed(timeout=30).status is EventStatus.COMPLETED

"""The life of a worker process of the lab: what it does, what it records, and where it kills itself."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
from tests.lab.disk import break_sync
from tests.lab.failpoints import Failpoint, failing_store
from tests.lab.journal import Journal
from tests.lab.workloads import WORKLOADS

from durabus import EventBus, EventStore, RetryPolicy, StoreUnavailableError, open_store
from durabus.testing.history.history import Disturbed, Line, decode, encode
from durabus.testing.history.recorder import recorded_store

NOT_STARTED = 3
"""The exit code of a process whose store could not be reached when it started."""
STOP_WITHIN = 20.0
SYNC_BROKEN = "sync broken"


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one worker process."""

    host: str
    """Its name in the history: one for each life."""
    url: str
    folder: str
    lease: float
    concurrency: int
    handler_seconds: float
    place: int = 0
    """Its place in the crew. Half of the places have a handler that the others lack."""
    skew: float = 0.0
    """By how many seconds its wall clock is wrong."""
    failpoint: Failpoint | None = None
    sync_breaks_after: float | None = None
    """Seconds from its start until its disk no longer syncs."""
    recorded: bool = True
    """Whether every call is recorded. Over hours that is too much."""
    history: int | None = None
    """How many COMPLETED events the bus keeps."""
    workload: str = "mixed work"
    results: str = "soon"

    @property
    def ledger(self) -> Path:
        """The file in which the process records what it does."""
        return Path(self.folder, f"{self.host}.jsonl")

    @property
    def up(self) -> Path:
        """A file that exists once the process serves the bus."""
        return Path(self.folder, f"{self.host}.up")


def wall() -> float:
    """Return the host's time. A process of the lab may see a wrong one."""
    return time.clock_gettime(time.CLOCK_REALTIME)


def line_writer(ledger: Path) -> Callable[[Line], None]:
    """Return a function that writes a line to the file before it returns, so that a killed process has recorded all."""
    file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    one_at_a_time = threading.Lock()

    def write(line: Line) -> None:
        left = encode([line])
        with one_at_a_time:
            while left:
                try:
                    left = left[os.write(file, left) :]
                except OSError as error:
                    if error.errno != errno.EFBIG:
                        raise
                    time.sleep(0.001)  # the full disk is meant for the store: wait until it is over

    return write


def lines_of(ledger: Path) -> list[Line]:
    """Return the whole lines. A last line that a kill cut short does not count: its call was not sent, or not ended."""
    text = ledger.read_bytes()
    return decode(text[: text.rfind(b"\n") + 1])


def live(life: Life, leash: Connection) -> None:
    """Run a worker process to its end. It does not outlive the process at the other end of the leash."""
    threading.Thread(target=_die_with_the_lab, args=(leash,), daemon=True).start()
    logging.getLogger("durabus").setLevel(logging.CRITICAL)  # lost claims and dead servers are what the lab makes
    if life.skew:
        time.time = lambda: wall() + life.skew
    try:
        asyncio.run(_work(life))
    except StoreUnavailableError:
        sys.exit(NOT_STARTED)


def _write_nothing(_line: Line) -> None: ...


def _die_with_the_lab(leash: Connection) -> None:
    leash.poll(None)
    os._exit(1)


async def _work(life: Life) -> None:
    write = line_writer(life.ledger) if life.recorded else _write_nothing
    opened = await open_store(life.url)
    store = failing_store(opened, life.failpoint, lambda: write(Disturbed(wall(), life.host, "crash")))
    if life.recorded:
        store = recorded_store(store, life.host, write, wall)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    bus = _bus(store, life, write)
    await bus.start()
    life.up.touch()
    if life.sync_breaks_after is not None:
        asyncio.get_running_loop().call_later(life.sync_breaks_after, _break_sync, life, write)
    await stop.wait()
    await bus.shutdown(timeout=STOP_WITHIN)
    await opened.close()


def _break_sync(life: Life, write: Callable[[Line], None]) -> None:
    break_sync()
    write(Disturbed(wall(), life.host, SYNC_BROKEN))


def _bus(store: EventStore, life: Life, write: Callable[[Line], None]) -> EventBus:
    bus = EventBus(
        store,
        retry=RetryPolicy(max_retries=None, base_delay=0.05, jitter=0.0),
        lease=life.lease,
        concurrency=life.concurrency,
        poll_interval=0.2,
        max_history_size=life.history,
        results=life.results,
    )
    journal = Journal(life.host, Path(life.folder), write, wall, place=life.place)
    WORKLOADS[life.workload](bus, journal, life.handler_seconds)
    return bus

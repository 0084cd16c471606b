"""``durabus worker``: serves a bus until a signal."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from importlib import import_module
from types import ModuleType
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter

from durabus.bus.event_bus import EventBus
from durabus.bus.sync_bus import SyncEventBus
from durabus.cli.failures import CommandFailed, Exit
from durabus.cli.options import JsonOption
from durabus.cli.output import LogFormat, print_json_line, say, set_up_logging
from durabus.errors import DurabusError
from durabus.maintenance.services import Maintenance
from durabus.store.connect import STORE_VARIABLE
from durabus.views.events import count_events
from durabus.worker.execution import place_of
from durabus.worker.heartbeat import in_time

T = TypeVar("T")

LAST_WORD = 0.5
SAME_REQUEST = 0.2
"""Seconds within which further signals count as the same request: wrappers such as timeout(1) send each one twice."""

logger = logging.getLogger("durabus.cli")


async def worker(
    target: Annotated[str, Parameter(name="MODULE:BUS", help="The bus object in your code, such as shop.app:bus.")],
    /,
    *,
    shutdown_timeout: Annotated[
        float | None, Parameter(help="Seconds for running handlers to finish. Default: the bus's own setting.")
    ] = None,
    log_format: Annotated[
        LogFormat, Parameter(help="Format of the log on stderr: lines of text, or one JSON object per line.")
    ] = "text",
    json: JsonOption = False,
    store: Annotated[str | None, Parameter(show=False)] = None,
) -> None:
    """Import a bus and serve it until SIGTERM or Ctrl-C.

    Then the worker claims no new events and finishes running ones. A second signal quits at once.

    Example: durabus worker shop.app:bus
    """
    if store is not None:
        raise CommandFailed(
            "worker takes no --store",
            f"{target} has its own store",
            f"give the URL to the bus in your code, or give it none and set {STORE_VARIABLE}",
            code=Exit.USAGE,
        )
    found = load_bus(target)
    bus = found if isinstance(found, EventBus) else found.bus
    set_up_logging(logging.INFO, log_format)
    tell = say if log_format == "text" else logger.info
    stop = _listen_for_signals()
    maintenance = Maintenance(bus.store)
    await _call(found, lambda: _start(bus, maintenance))
    if json:
        print_json_line({"bus": bus.name, "pid": os.getpid()})
    tell(f"worker {os.getpid()} serves bus {bus.name!r}; Ctrl-C or SIGTERM stops it")
    try:
        await stop.wait()
        tell(f"stopping: {await _call(found, lambda: _work(bus))}; a second signal quits at once")
    finally:
        await _call(found, lambda: _stop(bus, maintenance, shutdown_timeout))
    done = bus.metrics.snapshot()
    totals = {
        "completed": sum(done.completed.values()),
        "retried": sum(done.retries.values()),
        "dead letters": sum(done.dead_letters.values()),
        "claims lost": sum(done.lease_lost.values()),
        "without a handler": sum(done.unhandled.values()),
    }
    if json:
        print_json_line({name.replace(" ", "_"): number for name, number in totals.items()})
    tell("stopped: " + ", ".join(f"{number} {name}" for name, number in totals.items()))
    if bus.store_is_away:
        _end_soon()


async def _start(bus: EventBus, maintenance: Maintenance) -> None:
    await bus.start(serve=True)
    maintenance.start()


async def _stop(bus: EventBus, maintenance: Maintenance, within: float | None) -> None:
    # Side by side: if the store is away, each of them waits for seconds, and the worker must end soon.
    await asyncio.gather(maintenance.stop(), bus.shutdown(within))


async def _work(bus: EventBus) -> str:
    """How many events the bus has, for the last message. Does not wait long for the store."""
    try:
        counts = (await in_time(count_events(bus.store, bus.name), LAST_WORD)).counts
    except (DurabusError, TimeoutError):
        return "the store does not respond"
    return f"{counts.processing} in progress on all workers, {counts.pending} waiting"


async def _call(found: EventBus | SyncEventBus, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine of the bus: for a ``SyncEventBus`` in the thread of its event loop."""
    return await work() if isinstance(found, EventBus) else await asyncio.wrap_future(found.submit(work))


def load_bus(target: str) -> EventBus | SyncEventBus:
    """The bus that ``MODULE:BUS`` names."""
    found = load_object(target)
    if not isinstance(found, EventBus | SyncEventBus):
        raise _refused(target, f"{target.partition(':')[2]} is {type(found).__name__}, not an EventBus or SyncEventBus")
    return found


def load_object(target: str) -> object:
    """The object that ``MODULE:NAME`` names. Modules in the working folder are found first."""
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise _refused(target, "it must be a module and an attribute with a colon between them")
    found: object = load_module(target)
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise _refused(target, str(error)) from error
    return found


def load_module(target: str) -> ModuleType:
    """The module of ``MODULE`` or ``MODULE:NAME``. Modules in the working folder are found first."""
    module_name = target.partition(":")[0]
    if "" not in sys.path and str(os.getcwd()) not in sys.path:  # noqa: PTH109  (sys.path holds strings)
        sys.path.insert(0, "")
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise _not_imported(target, error) from error
        raise _refused(target, f"there is no module {error.name!r} here or on the Python path") from error
    except Exception as error:
        raise _not_imported(target, error) from error


def _not_imported(target: str, error: Exception) -> CommandFailed:
    module, place = target.partition(":")[0], place_of(error)
    why = f"importing {module} failed at {place}" if place else f"importing {module} failed"
    return CommandFailed(
        f"cannot load {target!r}",
        f"{why}\n{type(error).__name__}: {error}",
        f"python -c 'import {module}' shows the whole traceback",
        code=Exit.USAGE,
    )


def _refused(target: str, why: str) -> CommandFailed:
    hint = "run it in the folder of your module, for example: durabus worker app:bus"
    return CommandFailed(f"cannot load {target!r}", why, hint, code=Exit.USAGE)


def _end_soon() -> None:
    """End the process soon, even if threads or connections still wait for a server."""
    sys.stdout.flush()
    ending = threading.Timer(LAST_WORD, os._exit, (Exit.OK,))
    ending.daemon = True
    ending.start()


def _listen_for_signals() -> asyncio.Event:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    asked_at = 0.0

    def asked(number: signal.Signals) -> None:
        nonlocal asked_at
        if not stop.is_set():
            asked_at = loop.time()
            stop.set()
        elif loop.time() - asked_at > SAME_REQUEST:
            say("quitting at once: other workers take over running events when their leases expire")
            os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked, number)
    return stop

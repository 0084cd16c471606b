"""Replaces clocks, randomness and process ids during a run, and refuses what a simulation cannot do."""

from __future__ import annotations

import gc
import logging
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import uuid_utils

import durabus.model.claim
import durabus.model.event
import durabus.worker.offers
import durabus.worker.worker
from durabus import clock
from durabus.testing.simulation.loop import SimulationError, VirtualLoop
from durabus.testing.simulation.processes import Host, LaneHeartbeat, spawn_in_lane
from durabus.worker.heartbeat import Heartbeat
from durabus.worker.process_watch import ProcessWatch

EPOCH = 1_700_000_000.0
"""The store's time when a simulation begins."""
PID = 4711
"""The pid of every process, so that each restart has the pid of the process before it."""


class WorldClock:
    """The clock of the store, or of the process that runs now."""

    def __init__(self, loop: VirtualLoop, *, of_caller: bool = False) -> None:
        self._loop = loop
        self._of_caller = of_caller

    def now(self) -> float:
        """Return the present time."""
        owner = self._loop.current.owner
        ahead = owner.wall_ahead if self._of_caller and isinstance(owner, Host) else 0.0
        return EPOCH + self._loop.now + ahead


class Alarms(logging.Handler):
    """Collects the errors that durabus logs with a traceback. A worker survives its own bug, but the run must fail."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(logging.ERROR)
        self._loop = loop
        self._thread = threading.get_ident()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message if it reports an exception of this run."""
        if record.thread != self._thread or self._loop.is_closed():
            return
        if record.exc_info and record.exc_info[1] is not None:
            self.messages.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def world(loop: VirtualLoop, seed: int) -> Iterator[Alarms]:
    """Let durabus run in ``loop`` when this thread calls it. Only one world can be open at a time.

    Other threads of the process, even those of durabus, keep the machine's clocks.
    """
    chance, state = random.Random(seed), random.getstate()
    alarms, logger = Alarms(loop), logging.getLogger("durabus")
    level, propagate = logger.level, logger.propagate
    with ExitStack() as stack:
        if gc.isenabled():  # it closes the coroutines of killed processes, at instants that no seed decides
            gc.disable()
            stack.callback(gc.enable)
        for module, name, value in _replacements(loop, seed, chance):
            stack.enter_context(patch.object(module, name, value))
        random.seed(seed)
        stack.callback(random.setstate, state)
        logger.addHandler(alarms)
        logger.setLevel(logging.ERROR)
        logger.propagate = False
        try:
            yield alarms
        finally:
            logger.removeHandler(alarms)
            logger.setLevel(level)
            logger.propagate = propagate


def _replacements(loop: VirtualLoop, seed: int, chance: random.Random) -> Iterator[tuple[Any, str, Any]]:
    for name, real in (("monotonic", clock.monotonic), ("perf_counter", clock.perf_counter)):
        for module in _modules_with(name, real):
            yield module, name, _here(loop.local_time, real)
    for name, library, own in (
        ("secrets", secrets, {"token_hex": lambda size: f"{chance.getrandbits(8 * size):0{2 * size}x}"}),
        ("random", random, _jitter(random.Random(seed))),
    ):
        for module in _modules_with(name, library):
            yield module, name, _library(library, own)
    numbers = iter(range(1, sys.maxsize))
    uuid7 = lambda: f"{next(numbers):08x}-0000-7000-8000-{chance.getrandbits(48):012x}"  # noqa: E731
    yield durabus.model.event, "uuid_utils", _library(uuid_utils, {"uuid7": uuid7})
    yield durabus.model.claim, "socket", _library(socket, {"gethostname": lambda: _name_of(loop.current.owner)})
    yield durabus.model.claim, "os", _library(os, {"getpid": lambda: PID})
    yield durabus.worker.worker, "Heartbeat", _here(LaneHeartbeat, Heartbeat)
    yield durabus.worker.offers, "Heartbeat", _here(LaneHeartbeat, Heartbeat)
    yield ProcessWatch, "_spawn", _here(spawn_in_lane, ProcessWatch._spawn)  # noqa: SLF001  (only a simulation needs it)
    for owner, name in (
        (threading.Thread, "start"),
        (time, "sleep"),
        (socket.socket, "connect"),
        (subprocess, "Popen"),
    ):
        yield owner, name, _here(_refusal(f"{owner.__name__}.{name}"), getattr(owner, name))


def _jitter(chance: random.Random) -> dict[str, Callable[..., Any]]:
    """Return functions with their own random numbers: other threads must not change the numbers of a seed."""
    return {"random": chance.random, "uniform": chance.uniform}


def _library(real: ModuleType, own: dict[str, Callable[..., Any]]) -> SimpleNamespace:
    """Return a copy of a module with some functions replaced."""
    return SimpleNamespace(
        **vars(real) | {name: _here(function, getattr(real, name)) for name, function in own.items()}
    )


def _modules_with(name: str, value: object) -> list[ModuleType]:
    known = [module for path, module in sorted(sys.modules.items()) if _is_simulated(path)]
    return [module for module in known if vars(module).get(name) is value]


def _is_simulated(path: str) -> bool:
    """Return whether a module is simulated. The simulation itself is not."""
    return path.startswith("durabus.") and not path.startswith("durabus.testing.")


def _name_of(owner: object) -> str:
    return owner.name if isinstance(owner, Host) else "outside"


def _here(simulated: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is simulated in this thread and real in all other threads."""
    simulating = threading.get_ident()

    def call(*args: Any, **options: Any) -> Any:
        return (simulated if threading.get_ident() == simulating else real)(*args, **options)

    return call


def _refusal(what: str) -> Callable[..., Any]:
    def refuse(*_args: Any, **_options: Any) -> Any:
        raise SimulationError(f"{what} inside a simulation: it would wait in real time, and no seed could repeat it")

    return refuse

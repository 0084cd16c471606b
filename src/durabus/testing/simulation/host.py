"""A process of the simulated fleet. It has its own clocks, and can be killed, frozen and started again."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any

from durabus.testing.simulation.loop import LANE, SimulationError, ThreadQueue, VirtualLoop, context_of

MAIN = "main"


class Host:
    """One life of a process. A restart is another ``Host`` with the same name and pid, as can happen on a machine."""

    def __init__(
        self, loop: VirtualLoop, name: str, life: int, *, wall_ahead: float, started: float, speed: float
    ) -> None:
        self._loop = loop
        self.name = name
        self.life = life
        self.wall_ahead = wall_ahead
        """How far the wall clock is ahead of the store's, in seconds."""
        self._started = started
        self._speed = speed
        self._lanes: dict[str, ThreadQueue] = {}
        self.crashed = False
        self.frozen = False

    @property
    def id(self) -> str:
        """The name of this life."""
        return f"{self.name}.{self.life}"

    def run(self, work: Coroutine[Any, Any, Any], thread: str = MAIN) -> asyncio.Task[Any]:
        """Start a task in a thread of the process."""
        return self._loop.create_task(work, context=self.context(thread))

    def context(self, thread: str = MAIN) -> contextvars.Context:
        """Return the context of a thread. Callbacks of this context run in that thread."""
        lane = self._lanes.get(thread)
        if lane is None:
            lane = self._loop.threads.lane(f"{self.id}/{thread}", owner=self, started=self._started, speed=self._speed)
            self._lanes[thread] = lane
            if self.crashed:
                self._loop.threads.kill(lane)
            elif self.frozen:
                self._loop.threads.freeze(lane)
        return context_of(lane)

    def crash(self) -> None:
        """Kill the process, as kill -9 does."""
        self.crashed = True
        for lane in self._lanes.values():
            self._loop.threads.kill(lane)

    def freeze(self) -> None:
        """Stop the process, as SIGSTOP does."""
        self.frozen = True
        for lane in self._lanes.values():
            self._loop.threads.freeze(lane)

    def thaw(self) -> None:
        """Let the process go on, as SIGCONT does."""
        self.frozen = False
        for lane in self._lanes.values():
            self._loop.threads.thaw(lane)


def host_here() -> Host:
    """Return the process that runs now."""
    owner = LANE.get().owner
    if not isinstance(owner, Host):
        raise SimulationError("this runs outside of every simulated process")
    return owner

"""The heartbeat without its thread: what it does is production's, only its pauses are slept in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

from durabus.testing.simulation.host import host_here
from durabus.worker.heartbeat import STOP_TIMEOUT, Heartbeat


class LaneHeartbeat(Heartbeat[Any]):
    """Runs in a lane of its own, so that it comes before, between and after the steps of the event loop."""

    def start(self) -> None:
        """Begin to beat."""
        self._loop = asyncio.get_running_loop()
        self._see_loop()
        self._beating = host_here().run(self._keep_beating(), "heartbeat")

    def end(self) -> None:
        """Stop, without waiting for it."""
        self._cancel()

    async def stop(self, within: float = STOP_TIMEOUT) -> None:
        """Stop and wait for it."""
        self.end()
        if self._beating is not None:
            await asyncio.wait({self._beating}, timeout=within)

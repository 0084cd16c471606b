"""The heartbeat without its thread: what it does is production's, only its pauses are slept in virtual time."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from durabus.testing.simulation.host import host_here
from durabus.worker.heartbeat import Heartbeat

logger = logging.getLogger("durabus.worker")


class LaneHeartbeat(Heartbeat[Any]):
    """Runs in a lane of its own, so that it comes before, between and after the steps of the event loop."""

    _pulse: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to beat."""
        self._loop = asyncio.get_running_loop()
        self._see_loop()
        self._pulse = host_here().run(self._keep_beating(), "heartbeat")

    def end(self) -> None:
        """Stop, without waiting for it."""
        self._stop.set()
        if self._pulse is not None:
            self._pulse.cancel()

    async def stop(self) -> None:
        """Stop and wait for it."""
        self.end()
        if self._pulse is not None:
            await asyncio.wait({self._pulse})

    async def _keep_beating(self) -> None:
        while not self._stop.is_set():
            await asyncio.sleep(self._tick)
            try:
                await self._beat()
            except Exception:
                logger.exception("heartbeat failed, will try again")

"""What the pages share: figures that are looked up in the background. The store could tell all of it again."""

from __future__ import annotations

from typing import Any

from litestar import Request

from durabus.http.api import Api
from durabus.http.dashboard.activity import Pulse, Pulses
from durabus.http.dashboard.counts import PATIENCE, Readings


class Board:
    """One for each app."""

    def __init__(self, api: Api) -> None:
        self.readings = Readings(api)
        self._pulses = Pulses(api)

    async def pulse(self, bus: str) -> Pulse:
        """What the log of a bus tells."""
        return await self._pulses.of(bus, PATIENCE)

    async def stop(self) -> None:
        """Before the store is closed. Repeatable."""
        await self._pulses.stop()
        await self.readings.stop()


def board_of(request: Request[Any, Any, Any]) -> Board:
    """The board behind a request."""
    found: Board = request.scope["board"]  # type: ignore[typeddict-item]
    return found

"""What the pages share: counts and activity that are read in the background. Nothing here is stored."""

from __future__ import annotations

from typing import Any

from litestar import Request

from durabus.http.api import Api
from durabus.http.dashboard.activity import ActivityByBus, BusActivity
from durabus.http.dashboard.counts import PATIENCE, CachedCounts


class DashboardState:
    """The shared state of one app's dashboard."""

    def __init__(self, api: Api) -> None:
        self.counts = CachedCounts(api)
        self._by_bus = ActivityByBus(api)

    async def activity(self, bus: str) -> BusActivity:
        """The activity of a bus, as its log shows it."""
        return await self._by_bus.of(bus, PATIENCE)

    async def stop(self) -> None:
        """Stop reading in the background. Call it before the store is closed. Repeatable."""
        await self._by_bus.stop()
        await self.counts.stop()


def dashboard_state(request: Request[Any, Any, Any]) -> DashboardState:
    """The dashboard state of the app that serves a request."""
    found: DashboardState = request.scope["dashboard"]  # type: ignore[typeddict-item]
    return found

"""The list of handlers: the nodes that have them, their events in the last minute, and their breakers."""

from __future__ import annotations

from durabus.http.api import api_of, principal_of
from durabus.http.dashboard.rendering import AnyRequest, Page, bus_of, live_views, page_route, render
from durabus.views.handlers import RULE, WINDOW, count_attempts, registered_handlers

MAX_HANDLERS = 500


@page_route("/dashboard/handlers")
async def handlers(request: AnyRequest) -> Page:
    """The page. It shows the whole bus, so tokens that are limited to tags may not see it."""
    api, principal, bus = api_of(request), principal_of(request), bus_of(request)
    principal.check_whole_bus("the list of handlers")
    lines = await registered_handlers(api.store, bus)
    activity = await live_views(request).activity(bus)
    now = await api.store.now()
    await count_attempts(api.store, lines, [one for one in activity.recent if one.at_ts > now - WINDOW])
    return render(
        request,
        "handlers.html",
        now=now,
        handlers=lines[:MAX_HANDLERS],
        more=len(lines) > MAX_HANDLERS,
        rule=f"more than {RULE.failure_ratio:.0%} of at least {RULE.minimum_samples} events failed within {WINDOW:g} s",
        open_for=RULE.open_for,
    )


ROUTES = [handlers]

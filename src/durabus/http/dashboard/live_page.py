"""The page that shows the log as it is written."""

from __future__ import annotations

from litestar import get
from litestar.response import Stream

from durabus.http.api import api_of, listens, principal_of, still_allowed
from durabus.http.auth.access import Scope
from durabus.http.dashboard.rendering import AnyRequest, Page, bus_of, page_route, render
from durabus.http.tail import tail
from durabus.model.statuses import Action


@page_route("/dashboard/live")
async def live(request: AnyRequest) -> Page:
    """The page. The script fills its table."""
    return render(request, "live.html", now=await api_of(request).store.now(), actions=list(Action))


@get("/dashboard/tail", opt={"scope": Scope.READ}, include_in_schema=False)
async def dashboard_tail(request: AnyRequest) -> Stream:
    """The same as ``/events/tail`` for a browser, which sends its cookie and its last position."""
    api, principal, bus = api_of(request), principal_of(request), bus_of(request)
    last = request.headers.get("last-event-id")
    position = await api.store.log_head() if last is None else last
    if last is not None:
        await api.store.read_log(after=position, limit=1)  # refuses an invalid position before the stream begins
    listens(request)
    return Stream(tail(api, principal, bus, position, still_allowed(request)), media_type="text/event-stream")


ROUTES = [live, dashboard_tail]

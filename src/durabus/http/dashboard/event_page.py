"""The page of one event: its state, its attempts, its handlers' results, and the actions to take."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar.params import PathParameter

from durabus.http.api import api_of, principal_of
from durabus.http.auth.tenancy import shown
from durabus.http.dashboard.rendering import AnyRequest, Page, action_route, linker, page_route, redirect, render
from durabus.http.schema.events import title_of
from durabus.http.schema.fields import MAX_ID
from durabus.model.log_entry import LogEntry
from durabus.model.query import EventQuery
from durabus.model.result import HandlerResult
from durabus.model.statuses import DEAD_LETTER, LIVE, EventStatus
from durabus.views.attempts import attempts_of
from durabus.views.dead_letters import fingerprint

MAX_CHILDREN = 20
MAX_TRAIL = 200
MAX_ATTEMPTS_SHOWN = 50
"""Maximum number of attempts to show. An event may have thousands; the newest ones say most."""

EventNumber = Annotated[int, PathParameter(ge=1, le=MAX_ID)]


class FailureDetails(msgspec.Struct, frozen=True):
    """The content of ``HandlerResult.value_json`` for a handler that raised an exception."""

    traceback: str


_FAILURE = msgspec.json.Decoder(FailureDetails)


class ResultRow(msgspec.Struct, frozen=True):
    """A handler's result as the page shows it."""

    result: HandlerResult
    traceback: str | None


@page_route("/dashboard/events/{id:int}")
async def event(request: AnyRequest, id: EventNumber) -> Page:  # noqa: A002
    """The page."""
    api, principal = api_of(request), principal_of(request)
    found = await api.event(id, principal)
    trail = await api.store.read_event_log(found.id)
    results = await api.store.list_results(found.id)
    family = (await api.store.find(EventQuery(parent_id=found.event_id, limit=MAX_CHILDREN))).events
    parent = None if found.parent_id is None else await api.store.get_event(found.parent_id)
    now = await api.store.now()
    title, description = title_of(found)
    attempts = attempts_of(found, trail, now)
    return render(
        request,
        "event.html",
        bus=found.bus,
        now=now,
        event=shown(principal, found),
        title=title,
        description=description,
        attempts=attempts[-MAX_ATTEMPTS_SHOWN:],
        earlier=max(len(attempts) - MAX_ATTEMPTS_SHOWN, 0),
        trail=trail[-MAX_TRAIL:],
        older=max(len(trail) - MAX_TRAIL, 0),
        handlers=[_line(result) for result in results or _last_results(trail)],
        children=[child for child in family if principal.sees(child)],
        parent=parent if parent is not None and principal.sees(parent) else None,
        is_dead=found.status in DEAD_LETTER,
        is_live=found.status in LIVE,
        is_processing=found.status is EventStatus.PROCESSING,
        group=fingerprint(found) if found.status in DEAD_LETTER else "",
    )


@action_route("/dashboard/events/{id:int}/retry")
async def retry_event(request: AnyRequest, id: EventNumber) -> Page:  # noqa: A002
    """Requeue a dead letter."""
    api = api_of(request)
    found = await api.event(id, principal_of(request))
    await api.store.requeue_dead_letters([found.id])
    return redirect(linker(request, found.bus)(f"/dashboard/events/{id}"))


@action_route("/dashboard/events/{id:int}/release")
async def release_event(request: AnyRequest, id: EventNumber) -> Page:  # noqa: A002
    """Take a PROCESSING event from its worker."""
    api, principal = api_of(request), principal_of(request)
    found = await api.event(id, principal)
    await api.store.reset_event(found.id, reason=f"released on the dashboard by {principal.name}")
    return redirect(linker(request, found.bus)(f"/dashboard/events/{id}"))


def _last_results(trail: list[LogEntry]) -> tuple[HandlerResult, ...]:
    """The results in the newest log entry that has some: an ended event may have them nowhere else."""
    return next((entry.results for entry in reversed(trail) if entry.results), ())


def _line(result: HandlerResult) -> ResultRow:
    try:
        failure = None if result.value_json is None else _FAILURE.decode(result.value_json)
    except msgspec.DecodeError:
        failure = None  # this is the handler's return value
    return ResultRow(result, None if failure is None else failure.traceback)


ROUTES = [event, retry_event, release_event]

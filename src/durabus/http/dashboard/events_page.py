"""The pages of events: the list, one event with its attempts and actions, and the log as it is written.

The address of the list holds its filter; each page of it begins where the previous one ended.
"""

from __future__ import annotations

import asyncio
import re
from typing import Annotated

import msgspec
from litestar import get
from litestar.params import PathParameter
from litestar.response import Stream

from durabus.errors import EventNotFound
from durabus.http.api import Api, api_of, principal_of
from durabus.http.asgi import AnyRequest
from durabus.http.auth.access import Principal, Scope, shown, shown_results
from durabus.http.dashboard.rendering import (
    Page,
    action_route,
    bus_of,
    form_of,
    linker,
    live_views,
    page_route,
    redirect,
    render,
)
from durabus.http.problems import Code, Problem
from durabus.http.schema.events import title_of
from durabus.http.schema.fields import MAX_ID, UUID_PATTERN, split_tags
from durabus.http.tail import tail_response
from durabus.model.event import Event
from durabus.model.pattern import check_pattern
from durabus.model.query import EventPage, EventQuery
from durabus.model.statuses import DEAD_LETTER, LIVE, Action, EventStatus
from durabus.views.attempts import attempts_of
from durabus.views.dead_letters import fingerprint
from durabus.views.events import read_event_details, read_family
from durabus.views.steps import handlers_of
from durabus.worker.cancelling import cancel_events, check_reason

PAGE = 50
UUID = re.compile(UUID_PATTERN)
WITHIN = 2.0
"""Maximum time of a search in seconds. With a filter that matches few events a store has to read many."""
MAX_DIGITS = len(str(MAX_ID))
AGES = {"5m": 300.0, "1h": 3600.0, "24h": 86_400.0, "7d": 604_800.0}
MAX_TRAIL = 200
MAX_ATTEMPTS_SHOWN = 50
"""Maximum number of attempts to show. An event may have thousands; the newest ones say most."""

MAX_STEPS_SHOWN = 200
"""Maximum number of steps of one handler to show. A handler may have a thousand."""

EventNumber = Annotated[int, PathParameter(ge=1, le=MAX_ID)]


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """The filter as the user wrote it."""

    status: str = ""
    type: str = ""
    tags: str = ""
    since: str = ""
    before: str = ""

    def query(self, bus: str, principal: Principal, now: float) -> EventQuery:
        """The query for the store. Refuses invalid values."""
        return EventQuery(
            bus=bus,
            statuses=(_status(self.status),) if self.status else (),
            type=check_pattern(self.type) if self.type else None,
            tags=principal.narrow(split_tags(self.tags)),
            created_from_ts=now - _age(self.since) if self.since else None,
            before_id=number_of(self.before, "before") if self.before else None,
            limit=PAGE,
        )

    @property
    def narrows(self) -> bool:
        """Whether the filter leaves out any events."""
        return bool(self.status or self.type or self.tags or self.since)


@page_route("/dashboard/events")
async def events(request: AnyRequest) -> Page:
    """The list of events."""
    api, principal, bus = api_of(request), principal_of(request), bus_of(request)
    asked = {name: request.query_params.get(name, "").strip() for name in Filter.__struct_fields__}
    wanted = request.query_params.get("id", "").strip().removeprefix("#")
    if wanted:
        found = await find_one(api, principal, wanted)
        return redirect(linker(request, bus)(f"/dashboard/events/{found.id}"))
    filter_ = Filter(**asked)
    now = await api.store.now()
    page = await find_within(api, filter_.query(bus, principal, now))
    return render(
        request,
        "events.html",
        now=now,
        filter=filter_,
        page=page,
        statuses=list(EventStatus),
        ages=list(AGES),
        counted=await live_views(request).queue(bus, principal.narrow(())),
    )


async def find_one(api: Api, principal: Principal, wanted: str) -> Event:
    """Find an event by its number or its event_id."""
    if wanted.isascii() and wanted.isdigit():
        return await api.event(number_of(wanted, "id"), principal)
    unknown = f"there is no event {wanted!r}, or none that this token may see"
    if not UUID.fullmatch(wanted.lower()):
        raise Problem(404, unknown, code=Code.EVENT_NOT_FOUND)
    try:
        return await api.event(wanted.lower(), principal)
    except EventNotFound:
        raise Problem(404, unknown, code=Code.EVENT_NOT_FOUND) from None


async def find_within(api: Api, query: EventQuery) -> EventPage:
    """One page of a search. Raises ``Problem`` 503 if the search takes too long."""
    try:
        async with asyncio.timeout(WITHIN):
            return await api.store.find(query)
    except TimeoutError:
        raise Problem(
            503, f"the search took longer than {WITHIN:g} s and was stopped: choose a status or a shorter period"
        ) from None


def number_of(text: str, what: str) -> int:
    """The number of an event."""
    if not 1 <= (digits_of(text) or 0) <= MAX_ID:
        raise Problem(400, f"{what}={text!r}: must be the number of an event, 1 or more")
    return int(text)


def digits_of(text: str) -> int | None:
    """The whole number in ``text``; None if it is not one or has too many digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None


def _status(text: str) -> EventStatus:
    try:
        return EventStatus(text)
    except ValueError:
        raise Problem(400, f"status={text!r}: must be one of {', '.join(EventStatus)}") from None


def _age(text: str) -> float:
    if text not in AGES:
        raise Problem(400, f"since={text!r}: must be one of {', '.join(AGES)}")
    return AGES[text]


@page_route("/dashboard/events/{id:int}")
async def event(request: AnyRequest, id: EventNumber) -> Page:  # noqa: A002
    """The page of one event: its state, its attempts, its handlers' results, and the actions to take."""
    api, principal = api_of(request), principal_of(request)
    details = await read_event_details(api.store, id)
    if details is None or not principal.sees(details.event):
        raise EventNotFound(id)
    found, trail = details.event, details.trail
    family = await read_family(api.store, found)
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
        handlers=handlers_of(shown_results(principal, found.bus, details.last_results)),
        most_steps=MAX_STEPS_SHOWN,
        children=[child for child in family.children if principal.sees(child)],
        parent=family.parent if family.parent is not None and principal.sees(family.parent) else None,
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


@page_route("/dashboard/events/{id:int}/cancel")
async def confirm_cancel(request: AnyRequest, id: EventNumber) -> Page:  # noqa: A002
    """The question before an event is cancelled: why, and with its descendants or without."""
    api, principal = api_of(request), principal_of(request)
    found = await api.event(id, principal)
    return render(
        request, "cancel.html", bus=found.bus, now=await api.store.now(), event=found, is_live=found.status in LIVE
    )


@action_route("/dashboard/events/{id:int}/cancel")
async def cancel_event(request: AnyRequest, id: EventNumber) -> Page:  # noqa: A002
    """Cancel an event that waits or runs. The log names the sender beside the reason."""
    api, principal, form = api_of(request), principal_of(request), await form_of(request)
    found = await api.event(id, principal)
    reason = f"{check_reason(form.get('reason', ''))} (cancelled on the dashboard by {principal.name})"
    await cancel_events(api.store, id, reason=reason, children=bool(form.get("children")), sees=principal.sees)
    return redirect(linker(request, found.bus)(f"/dashboard/events/{id}"))


@page_route("/dashboard/live")
async def live(request: AnyRequest) -> Page:
    """The log as it is written. The script fills the table."""
    return render(request, "live.html", now=await api_of(request).store.now(), actions=list(Action))


@get("/dashboard/tail", opt={"scope": Scope.READ}, include_in_schema=False)
async def dashboard_tail(request: AnyRequest) -> Stream:
    """Stream what ``/events/tail`` streams to a browser, which sends its cookie and its last position."""
    return await tail_response(request, bus_of(request), request.headers.get("last-event-id"))


ROUTES = [events, event, retry_event, release_event, confirm_cancel, cancel_event, live, dashboard_tail]

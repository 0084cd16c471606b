"""The list of events, newest first. The address holds the filter; each page begins where the previous one ended."""

from __future__ import annotations

import asyncio
import re

import msgspec

from durabus.http.api import Api, api_of, principal_of
from durabus.http.auth.access import Principal
from durabus.http.dashboard.rendering import AnyRequest, Page, bus_of, linker, live_views, page_route, redirect, render
from durabus.http.problems import Code, Problem
from durabus.http.schema.fields import MAX_ID, UUID_PATTERN, split_tags
from durabus.model.event import Event
from durabus.model.pattern import check_pattern
from durabus.model.query import EventPage, EventQuery
from durabus.model.statuses import EventStatus

PAGE = 50
UUID = re.compile(UUID_PATTERN)
WITHIN = 2.0
"""Maximum time of a search in seconds. With a filter that matches few events a store has to read many."""
MAX_DIGITS = len(str(MAX_ID))
AGES = {"5m": 300.0, "1h": 3600.0, "24h": 86_400.0, "7d": 604_800.0}


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
    """The page."""
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
    event = await api.store.get_event(wanted.lower()) if UUID.fullmatch(wanted.lower()) else None
    if event is None or not principal.sees(event):
        raise Problem(404, f"there is no event {wanted!r}, or none that this token may see", code=Code.EVENT_NOT_FOUND)
    return event


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


ROUTES = [events]

"""Events, newest first. The filter is the address, and every page begins where the one before ended."""

from __future__ import annotations

import asyncio
import re

import msgspec

from durabus.http.api import Api, api_of, principal_of
from durabus.http.auth.access import Principal
from durabus.http.dashboard.board import board_of
from durabus.http.dashboard.rendering import AnyRequest, Page, bus_of, linker, page_route, redirect, render
from durabus.http.problems import Code, Problem
from durabus.http.schema.fields import MAX_ID, UUID_PATTERN, split_tags
from durabus.model.event import Event
from durabus.model.pattern import check_pattern
from durabus.model.query import EventPage, EventQuery
from durabus.model.statuses import EventStatus

PAGE = 50
UUID = re.compile(UUID_PATTERN)
WITHIN = 2.0
"""Seconds a search may take. A filter that matches little makes a store look at much."""
MAX_DIGITS = len(str(MAX_ID))
AGES = {"5m": 300.0, "1h": 3600.0, "24h": 86_400.0, "7d": 604_800.0}


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """What the address asks for, as it was written."""

    status: str = ""
    type: str = ""
    tags: str = ""
    since: str = ""
    before: str = ""

    def query(self, bus: str, principal: Principal, now: float) -> EventQuery:
        """For the store. Refuses what cannot be meant."""
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
        """Whether anything but the page is asked for."""
        return bool(self.status or self.type or self.tags or self.since)


@page_route("/dashboard/events")
async def events(request: AnyRequest) -> Page:
    """The list."""
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
        counted=await board_of(request).readings.counts(bus, principal),
    )


async def find_one(api: Api, principal: Principal, wanted: str) -> Event:
    """By number or by event_id."""
    if wanted.isascii() and wanted.isdigit():
        return await api.event(number_of(wanted, "id"), principal)
    event = await api.store.get_event(wanted.lower()) if UUID.fullmatch(wanted.lower()) else None
    if event is None or not principal.sees(event):
        raise Problem(404, f"there is no event {wanted!r}, or none that this token may see", code=Code.EVENT_NOT_FOUND)
    return event


async def find_within(api: Api, query: EventQuery) -> EventPage:
    """A page, or a word on why not: a filter that matches next to nothing could look at everything."""
    try:
        async with asyncio.timeout(WITHIN):
            return await api.store.find(query)
    except TimeoutError:
        raise Problem(
            503, f"the search took longer than {WITHIN:g} s and was given up: ask for a status, or for less time"
        ) from None


def number_of(text: str, what: str) -> int:
    """An event's number."""
    if not 1 <= (digits_of(text) or 0) <= MAX_ID:
        raise Problem(400, f"{what}={text!r}: must be the number of an event, from 1 on")
    return int(text)


def digits_of(text: str) -> int | None:
    """A whole number as our own pages write it; None if it is none, or longer than any that we write."""
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

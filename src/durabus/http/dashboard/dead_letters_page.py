"""Dead letters: groups, and retry or purge of one, of a group, of all that match, after a confirmation."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from litestar import Response

from durabus.http.api import api_of, principal_of
from durabus.http.dashboard.board import board_of
from durabus.http.dashboard.bulk_actions import (
    DEAD,
    Deed,
    Selection,
    count_selected,
    error_of,
    group_dead_letters,
    take_step,
)
from durabus.http.dashboard.events_page import Filter, digits_of, find_within, number_of
from durabus.http.dashboard.rendering import (
    HEADERS,
    AnyRequest,
    Page,
    action_route,
    bus_of,
    form_of,
    page_route,
    render,
)
from durabus.http.problems import Problem
from durabus.http.schema.fields import split_tags
from durabus.model.pattern import check_pattern

MANY = 1_000
"""Beyond so many, a purge has to be typed."""
SHOWN = 20
DEEDS: tuple[Deed, ...] = get_args(Deed)
SELECTING = ("type", "tags", "group", "id")


@page_route("/dashboard/dead-letters")
async def dead_letters(request: AnyRequest) -> Page:
    """The groups, and the newest of those that match."""
    api, principal, bus = api_of(request), principal_of(request), bus_of(request)
    asked = {name: request.query_params.get(name, "").strip() for name in SELECTING}
    selection = selection_of(bus, asked)
    now = await api.store.now()
    grouped = await group_dead_letters(api, principal, msgspec.structs.replace(selection, group=""))
    query = Filter(type=asked["type"], tags=asked["tags"]).query(bus, principal, now)
    newest = await find_within(api, msgspec.structs.replace(query, statuses=DEAD, limit=SHOWN))
    return render(
        request,
        "dead_letters.html",
        now=now,
        asked=asked,
        grouped=grouped,
        newest=[(event, error_of(event)) for event in newest.events],
        more=newest.next_before_id is not None,
        counted=await board_of(request).readings.counts(bus, principal),
    )


@page_route("/dashboard/dead-letters/confirm")
async def confirm(request: AnyRequest) -> Page:
    """How many it would be, counted now."""
    api, principal, bus = api_of(request), principal_of(request), bus_of(request)
    asked = {name: request.query_params.get(name, "").strip() for name in SELECTING}
    deed = deed_of(request.query_params.get("deed", ""))
    number, capped, newest = await count_selected(api, principal, selection_of(bus, asked))
    return render(
        request,
        "confirm.html",
        now=await api.store.now(),
        deed=deed,
        asked=asked,
        number=number,
        capped=capped,
        typed=deed == "purge" and number > MANY,
        newest=[(event, error_of(event)) for event in newest],
    )


@action_route("/dashboard/dead-letters/step")
async def step(request: AnyRequest) -> Response[Any]:
    """Do some. The script asks on until none are left; without it a person presses a button."""
    api, principal = api_of(request), principal_of(request)
    form = await form_of(request)
    bus = api.bus(form.get("bus") or None, principal)
    deed = deed_of(form.get("deed", ""))
    expected = digits_of(form.get("number", "")) or 0
    if deed == "purge" and expected > MANY and form.get("typed", "") != "purge":
        raise Problem(400, f"to purge more than {MANY:,} dead letters, type the word purge: nothing was deleted")
    asked = {name: form.get(name, "") for name in SELECTING}
    before = number_of(form["before"], "before") if form.get("before") else None
    taken = await take_step(api, principal, selection_of(bus, asked), deed, before)
    done = taken.done + (digits_of(form.get("done", "")) or 0)
    if request.headers.get("accept") == "application/json":
        body = msgspec.json.encode({"done": done, "before": taken.before})
        return Response(body, headers=HEADERS, media_type="application/json")
    return render(
        request,
        "progress.html",
        bus=bus,
        deed=deed,
        asked=asked,
        done=done,
        number=expected,
        before=taken.before,
        typed=form.get("typed", ""),
    )


def selection_of(bus: str, asked: dict[str, str]) -> Selection:
    """Which dead letters an address or a form means."""
    return Selection(
        bus=bus,
        type=check_pattern(asked["type"]) if asked["type"] else None,
        tags=split_tags(asked["tags"]),
        group=asked["group"],
        id=number_of(asked["id"], "id") if asked["id"] else None,
    )


def deed_of(text: str) -> Deed:
    """Retry or purge, and nothing else."""
    for deed in DEEDS:
        if deed == text:
            return deed
    raise Problem(400, f"deed={text!r}: must be one of {', '.join(DEEDS)}")


ROUTES = [dead_letters, confirm, step]

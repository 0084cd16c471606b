"""Pages for dead letters: groups, and a confirmation before one, a group or all that match are retried or purged."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from litestar import Response

from durabus.http.api import api_of, principal_of
from durabus.http.asgi import AnyRequest
from durabus.http.auth.access import Principal
from durabus.http.dashboard.events_page import Filter, digits_of, find_within, number_of
from durabus.http.dashboard.rendering import (
    HEADERS,
    Page,
    action_route,
    bus_of,
    form_of,
    live_views,
    page_route,
    render,
)
from durabus.http.problems import Problem
from durabus.http.schema.fields import split_tags
from durabus.model.pattern import check_pattern
from durabus.views.dead_letters import (
    DEAD,
    BulkOperation,
    Selection,
    count_selected,
    error_of,
    group_dead_letters,
    take_step,
)

MANY = 1_000
"""To purge more than this many, the user has to type the word purge."""
SHOWN = 20
OPERATIONS: tuple[BulkOperation, ...] = get_args(BulkOperation)
SELECTING = ("type", "tags", "group", "id")


@page_route("/dashboard/dead-letters")
async def dead_letters(request: AnyRequest) -> Page:
    """The list of groups, and the newest dead letters that match."""
    api, principal, bus = api_of(request), principal_of(request), bus_of(request)
    asked = {name: request.query_params.get(name, "").strip() for name in SELECTING}
    selection = selection_of(bus, principal, asked)
    now = await api.store.now()
    grouped = await group_dead_letters(api.store, msgspec.structs.replace(selection, group=""))
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
        counted=await live_views(request).queue(bus, principal.narrow(())),
    )


@page_route("/dashboard/dead-letters/confirm")
async def confirm(request: AnyRequest) -> Page:
    """The question before a retry or purge, with the number of dead letters that match now."""
    api, principal, bus = api_of(request), principal_of(request), bus_of(request)
    asked = {name: request.query_params.get(name, "").strip() for name in SELECTING}
    operation = operation_of(request.query_params.get("operation", ""))
    counted = await count_selected(api.store, selection_of(bus, principal, asked))
    return render(
        request,
        "confirm.html",
        now=await api.store.now(),
        operation=operation,
        asked=asked,
        number=counted.number,
        capped=counted.capped,
        typed=operation == "purge" and counted.number > MANY,
        newest=[(event, error_of(event)) for event in counted.newest],
    )


@action_route("/dashboard/dead-letters/step")
async def step(request: AnyRequest) -> Response[Any]:
    """Retry or purge some. The script repeats this until none are left; without it the user presses a button."""
    api, principal = api_of(request), principal_of(request)
    form = await form_of(request)
    bus = api.bus(form.get("bus") or None, principal)
    operation = operation_of(form.get("operation", ""))
    expected = digits_of(form.get("number", "")) or 0
    if operation == "purge" and expected > MANY and form.get("typed", "") != "purge":
        raise Problem(400, f"to purge more than {MANY:,} dead letters, type the word purge: nothing was deleted")
    asked = {name: form.get(name, "") for name in SELECTING}
    before = number_of(form["before"], "before") if form.get("before") else None
    taken = await take_step(api.store, selection_of(bus, principal, asked), operation, before)
    done = taken.done + (digits_of(form.get("done", "")) or 0)
    if request.headers.get("accept") == "application/json":
        body = msgspec.json.encode({"done": done, "before": taken.before})
        return Response(body, headers=HEADERS, media_type="application/json")
    return render(
        request,
        "progress.html",
        bus=bus,
        operation=operation,
        asked=asked,
        done=done,
        number=expected,
        before=taken.before,
        typed=form.get("typed", ""),
    )


def selection_of(bus: str, principal: Principal, asked: dict[str, str]) -> Selection:
    """The selection that an address or a form describes."""
    return Selection(
        bus=bus,
        type=check_pattern(asked["type"]) if asked["type"] else None,
        tags=principal.narrow(split_tags(asked["tags"])),
        group=asked["group"],
        id=number_of(asked["id"], "id") if asked["id"] else None,
    )


def operation_of(text: str) -> BulkOperation:
    """Retry or purge. Refuses any other text."""
    for operation in OPERATIONS:
        if operation == text:
            return operation
    raise Problem(400, f"operation={text!r}: must be one of {', '.join(OPERATIONS)}")


ROUTES = [dead_letters, confirm, step]

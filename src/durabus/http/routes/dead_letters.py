"""Dead letters: list, bring back, delete."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, get, post
from litestar.params import QueryParameter

from durabus.http.api import api_of, principal_of
from durabus.http.auth.access import Scope
from durabus.http.auth.tenancy import shown
from durabus.http.openapi import DocumentedResponse, described
from durabus.http.problems import decoded
from durabus.http.routes.parameters import MAX_OFFSET, QueryBus, QueryTags
from durabus.http.schema.claims import (
    DeadLetterListDocument,
    PurgedDocument,
    PurgeDocument,
    RequeueDocument,
    WholeEventsDocument,
    whole_event,
)
from durabus.http.schema.fields import split_tags
from durabus.model.query import EventQuery
from durabus.queue.dead_letters import DLQInspector
from durabus.views.dead_letters import DEAD
from durabus.views.events import list_events

AnyRequest = Request[Any, Any, Any]
MAX_WHOLE = 100
"""The response contains whole events with their payloads, so a page is small."""


@get("/dead-letters", opt=described(Scope.READ, {}))
async def get_dead_letters(
    request: AnyRequest,
    tags: QueryTags = None,
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_WHOLE)] = MAX_WHOLE,
    offset: Annotated[int, QueryParameter(ge=0, le=MAX_OFFSET)] = 0,
    bus: QueryBus = None,
) -> DeadLetterListDocument:
    """Events that ended FAILED or COMPLETED_WITH_ERRORS, with one error for each attempt."""
    api, principal = api_of(request), principal_of(request)
    query = EventQuery(bus=api.bus(bus, principal), statuses=DEAD, tags=principal.narrow(split_tags(tags)))
    page = await list_events(
        api.store, query, limit=limit, offset=offset, show=lambda event: whole_event(shown(principal, event))
    )
    return DeadLetterListDocument(
        events=page.items, total=page.total, limit=limit, offset=offset, total_capped=page.capped
    )


@post(
    "/dead-letters/requeue",
    status_code=200,
    opt=described(
        Scope.ADMIN,
        {
            404: DocumentedResponse("An event does not exist."),
            409: DocumentedResponse("An event is not a dead letter."),
        },
        RequeueDocument,
    ),
)
async def requeue_dead_letters(request: AnyRequest) -> WholeEventsDocument:
    """Requeue dead letters, all or none: they become PENDING without retries and errors."""
    data = await decoded(request, RequeueDocument)
    api, principal = api_of(request), principal_of(request)
    await api.check_events(data.ids, principal)
    events = await api.store.requeue_dead_letters(data.ids)
    return WholeEventsDocument(events=[whole_event(shown(principal, event)) for event in events])


@post("/dead-letters/purge", status_code=200, opt=described(Scope.ADMIN, {}, PurgeDocument))
async def purge_dead_letters(request: AnyRequest) -> PurgedDocument:
    """Delete dead letters of a bus permanently."""
    data = await decoded(request, PurgeDocument)
    api, principal = api_of(request), principal_of(request)
    principal.check_whole_bus("purging")
    inspector = DLQInspector(api.store, bus=api.bus(data.bus, principal))
    return PurgedDocument(purged=await inspector.purge(data.older_than_days))


ROUTES = [get_dead_letters, requeue_dead_letters, purge_dead_letters]

"""Routes for operators: health, readiness, metrics, statistics, the log as it is written, and dead letters."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from litestar import Response, get, post
from litestar.params import HeaderParameter, QueryParameter
from litestar.response import Stream
from prometheus_client import CONTENT_TYPE_LATEST

from durabus.errors import StoreError
from durabus.http.api import api_of, principal_of
from durabus.http.asgi import AnyRequest
from durabus.http.auth.access import Scope, shown
from durabus.http.openapi import MAX_OFFSET, DocumentedResponse, QueryBus, QueryTags, described
from durabus.http.problems import Problem, decoded, logger
from durabus.http.schema.claims import (
    DeadLetterListDocument,
    PurgedDocument,
    PurgeDocument,
    RequeueDocument,
    StatsDocument,
    WholeEventsDocument,
    whole_event,
)
from durabus.http.schema.fields import split_tags
from durabus.http.tail import tail_response
from durabus.model.query import EventQuery
from durabus.queue.dead_letters import DLQInspector
from durabus.views.dead_letters import DEAD
from durabus.views.events import count_events, list_events
from durabus.views.stats import read_metrics

MAX_WHOLE = 100
"""A list of dead letters contains whole events with their payloads, so a page is small."""
READY_WITHIN = 2.0
MAX_POSITION_CHARS = 1_000
METRICS_TYPE = CONTENT_TYPE_LATEST.removesuffix("; charset=utf-8")
"""The framework adds the charset."""


class HealthDocument(msgspec.Struct):
    """The state of the server."""

    status: str


@get("/livez", opt=described(None, {}))
async def livez() -> HealthDocument:
    """Whether the process responds."""
    return HealthDocument("alive")


@get(
    "/readyz",
    opt=described(None, {503: DocumentedResponse("The server cannot serve requests now.")}),
)
async def readyz(request: AnyRequest) -> HealthDocument:
    """Whether the store responds and the server is not about to stop."""
    api = api_of(request)
    if api.stopping.is_set():
        raise Problem(503, "stopping")
    try:
        async with asyncio.timeout(READY_WITHIN):
            await api.store.now()
            await api.store.log_head()
    except (StoreError, TimeoutError) as error:
        logger.warning("not ready: %r", error)
        raise Problem(503, "the store does not respond") from error
    return HealthDocument("ready")


@get(
    "/metrics",
    opt=described(Scope.READ, {200: DocumentedResponse("Metrics for Prometheus.", media_type="text/plain")}),
)
async def metrics(request: AnyRequest) -> Response[bytes]:
    """Metrics of this process's requests, and of events and missing handlers of the server's bus."""
    api, principal = api_of(request), principal_of(request)
    principal.check_whole_bus("/metrics")
    bus = api.bus(None, principal)
    return Response(api.metrics.text(await read_metrics(api.store, bus)), media_type=METRICS_TYPE)


@get("/stats", opt=described(Scope.READ, {}))
async def stats(request: AnyRequest, bus: QueryBus = None) -> StatsDocument:
    """How many events a bus has in each status."""
    api, principal = api_of(request), principal_of(request)
    name = api.bus(bus, principal)
    found = await count_events(api.store, name, principal.narrow(()))
    return StatsDocument(bus=name, capped=found.capped, **msgspec.structs.asdict(found.counts))


@get(
    "/events/tail",
    opt=described(Scope.READ, {200: DocumentedResponse("Server-sent events.", media_type="text/event-stream")}),
)
async def events_tail(
    request: AnyRequest,
    after: Annotated[
        str | None,
        QueryParameter(max_length=MAX_POSITION_CHARS, description="A position; empty: the whole log. Default: now."),
    ] = None,
    last_event_id: Annotated[str | None, HeaderParameter(name="Last-Event-ID", max_length=MAX_POSITION_CHARS)] = None,
    bus: QueryBus = None,
) -> Stream:
    """Every transition as it happens. A disconnected reader continues after its last entry."""
    name = api_of(request).bus(bus, principal_of(request))
    return await tail_response(request, name, last_event_id if last_event_id is not None else after)


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


ROUTES = [
    get_dead_letters,
    requeue_dead_letters,
    purge_dead_letters,
    livez,
    readyz,
    metrics,
    stats,
    events_tail,
]

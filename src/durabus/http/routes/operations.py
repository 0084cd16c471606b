"""Routes for operators: health, readiness, metrics, statistics, and the log as it is written."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get
from litestar.params import HeaderParameter, QueryParameter
from litestar.response import Stream
from prometheus_client import CONTENT_TYPE_LATEST

from durabus.errors import StoreError
from durabus.http.api import api_of, listens, principal_of, still_allowed
from durabus.http.auth.access import Scope
from durabus.http.openapi import DocumentedResponse, described
from durabus.http.problems import Problem, logger
from durabus.http.routes.parameters import QueryBus
from durabus.http.schema.claims import StatsDocument
from durabus.http.tail import tail
from durabus.store.log import START
from durabus.views.events import count_events
from durabus.views.handlers import registered_handlers

AnyRequest = Request[Any, Any, Any]
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
    counts, hold = await api.store.counts(bus), await api.store.log_hold()
    missing = sum(line.missing for line in await registered_handlers(api.store, bus))
    return Response(api.metrics.text(bus, counts, hold, missing), media_type=METRICS_TYPE)


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
    api, principal = api_of(request), principal_of(request)
    name = api.bus(bus, principal)
    begin = last_event_id if last_event_id is not None else after
    position = await api.store.log_head() if begin is None else begin
    if begin not in (None, START):
        await api.store.read_log(after=position, limit=1)  # refuses an invalid position before the stream begins
    listens(request)
    return Stream(tail(api, principal, name, position, still_allowed(request)), media_type="text/event-stream")


ROUTES = [livez, readyz, metrics, stats, events_tail]

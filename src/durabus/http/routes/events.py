"""The seven endpoints of the design document, and the two beside them that complete its audit trail."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, Response, get, post
from litestar.params import QueryParameter

from durabus.errors import InvalidPayloadError
from durabus.http import worker_actions
from durabus.http.api import Api, api_of, principal_of
from durabus.http.auth.access import Principal, Scope
from durabus.http.auth.tenancy import scoped, shown, with_parents
from durabus.http.listing import MAX_OFFSET, MAX_PAGE, list_events
from durabus.http.openapi import DocumentedResponse, described
from durabus.http.problems import MEDIA_TYPE, STATUS, Code, Problem, decoded
from durabus.http.schema.claims import NewEventsDocument, WholeEventsDocument, whole_event
from durabus.http.schema.events import (
    CompletedDocument,
    CompleteDocument,
    EventDocument,
    EventListDocument,
    EventWithLogsDocument,
    FailDocument,
    FailedDocument,
    JobDocument,
    LogEntryDocument,
    MaxRetriesDocument,
    NewEventDocument,
    StartDocument,
    StartedDocument,
    event_document,
    event_with_logs,
    job_document,
    log_documents,
    summary_document,
)
from durabus.http.schema.fields import (
    NAME_PATTERN,
    TAGS_PATTERN,
    WORKER_PATTERN,
    PathId,
    QueryBus,
    QueryTags,
    split_tags,
)
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import Event, NewEvent
from durabus.model.limits import MAX_NAME_CHARS
from durabus.model.query import EventQuery
from durabus.model.statuses import EventStatus

AnyRequest = Request[Any, Any, Any]
TOKEN_HEADER = "Durabus-Claim-Token"  # noqa: S105  (a header's name)
FENCE_HEADER = "Durabus-Claim-Fence"

NOT_FOUND = {404: DocumentedResponse("No event with this number, or none that this token may see.")}
CONFLICT = {409: DocumentedResponse("The claim is lost: nothing was written.")}


@post("/events", opt=described(Scope.PUBLISH, {409: DocumentedResponse("The key is another's.")}, NewEventDocument))
async def create_event(request: AnyRequest) -> EventDocument:
    """Publish an event."""
    data = await decoded(request, NewEventDocument)
    api = api_of(request)
    event = (await publish(request, [data]))[0]
    return event_document(event, api.settings.max_retries)


@post(
    "/events/batch", opt=described(Scope.PUBLISH, {409: DocumentedResponse("A key is another's.")}, NewEventsDocument)
)
async def create_events(request: AnyRequest) -> WholeEventsDocument:
    """Publish many events in one step, all or none."""
    data = await decoded(request, NewEventsDocument)
    events = await publish(request, data.events)
    return WholeEventsDocument(events=[whole_event(shown(principal_of(request), event)) for event in events])


async def publish(request: AnyRequest, documents: list[NewEventDocument]) -> list[Event]:
    """Store events, and answer only with what the sender may see."""
    api, principal = api_of(request), principal_of(request)
    try:
        new = [_new_event(document, api, principal) for document in documents]
    except InvalidPayloadError as error:
        code = Code.PAYLOAD_TOO_LARGE if "the limit is" in str(error) else Code.INVALID_PAYLOAD
        raise Problem(STATUS[code], str(error), code=code) from error
    events = await api.store.add_events(await with_parents(principal, api.store, new))
    if principal.limited and not all(principal.sees(event) for event in events):
        # Another tenant cannot bring this about, only a publisher without limits that imitates a scope.
        raise Problem(
            409,
            "an event_id or idempotency_key is taken by an event that this token may not see; others were stored",
            code=Code.KEY_TAKEN,
        )
    return events


def _new_event(document: NewEventDocument, api: Api, principal: Principal) -> NewEvent:
    new = document.new_event(bus=api.settings.bus, max_retries=api.settings.max_retries)
    principal.check_bus(new.bus)
    principal.check_new(new.tags)
    return scoped(principal, new, own_id=document.event_id is not None)


@get(
    "/events/subscribe",
    opt=described(
        Scope.CLAIM,
        {200: DocumentedResponse("An event for this worker.", JobDocument), 204: DocumentedResponse("Nothing to do.")},
    ),
)
async def subscribe(
    request: AnyRequest,
    worker_id: Annotated[
        str,
        QueryParameter(
            min_length=1,
            max_length=MAX_NAME_CHARS,
            pattern=WORKER_PATTERN,
            description="Who works: `{hostname}:{pid}`.",
        ),
    ],
    tags: Annotated[
        str | None,
        QueryParameter(
            pattern=TAGS_PATTERN,
            description="Comma-separated; an event with ANY of them matches. Without it every event does, also one "
            "that has no tags.",
        ),
    ] = None,
    bus: QueryBus = None,
) -> Response[Any]:
    """Take the next event that has one of the tags, or the next one of all."""
    api, principal = api_of(request), principal_of(request)
    wanted = ClaimRequest(
        bus=api.bus(bus, principal),
        worker_id=worker_id,
        token=new_token(),
        lease=api.settings.lease,
        tags=principal.narrow(split_tags(tags)),
        max_attempts=api.settings.max_retries,
    )
    claims = await api.store.claim_next_events(wanted)
    if not claims:
        return Response(None, status_code=204)
    claim = claims[0]
    return Response(
        job_document(claim.event, api.settings.max_retries),
        headers={TOKEN_HEADER: claim.token, FENCE_HEADER: str(claim.event.fence)},
    )


@post(
    "/events/{id:int}/complete",
    status_code=200,
    opt=described(Scope.CLAIM, {**NOT_FOUND, **CONFLICT}, CompleteDocument),
)
async def complete_event(request: AnyRequest, id: PathId) -> CompletedDocument:  # noqa: A002
    """Report success. Safe to repeat."""
    data = await decoded(request, CompleteDocument)
    return await worker_actions.complete(api_of(request), principal_of(request), id, data)


@post(
    "/events/{id:int}/fail",
    status_code=200,
    opt=described(
        Scope.CLAIM,
        {
            200: DocumentedResponse("Tried again later.", FailedDocument),
            400: DocumentedResponse("Max retries exceeded, or a wrong request.", MaxRetriesDocument),
            **NOT_FOUND,
            **CONFLICT,
        },
        FailDocument,
    ),
)
async def fail_event(request: AnyRequest, id: PathId) -> Response[Any]:  # noqa: A002
    """Report failure. Safe to repeat."""
    data = await decoded(request, FailDocument)
    answer = await worker_actions.fail(api_of(request), principal_of(request), id, data)
    if isinstance(answer, MaxRetriesDocument):
        return Response(answer, status_code=400, media_type=MEDIA_TYPE)
    return Response(answer)


@post(
    "/events/{id:int}/start",
    status_code=200,
    opt=described(Scope.CLAIM, {**NOT_FOUND, **CONFLICT}, StartDocument),
)
async def start_event(request: AnyRequest, id: PathId) -> StartedDocument:  # noqa: A002
    """Record that work began; again: a sign of life that keeps the event for another lease."""
    data = await decoded(request, StartDocument)
    return await worker_actions.start(api_of(request), principal_of(request), id, data)


@post("/events/{id:int}/reset", status_code=200, opt=described(Scope.ADMIN, NOT_FOUND))
async def reset_event(
    request: AnyRequest,
    id: PathId,  # noqa: A002
    reason: Annotated[
        str,
        QueryParameter(
            min_length=1,
            max_length=MAX_NAME_CHARS,
            pattern=NAME_PATTERN,
            description="Kept in the trail.",
        ),
    ],
) -> EventWithLogsDocument:
    """Take a PROCESSING event from its worker. Any other is answered unchanged."""
    api = api_of(request)
    await api.event(id, principal_of(request))
    event = await api.store.reset_event(id, reason=reason)
    return event_with_logs(event, api.settings.max_retries, None)


@get("/events/{id:int}", opt=described(Scope.READ, NOT_FOUND))
async def get_event(
    request: AnyRequest,
    id: PathId,  # noqa: A002
    include_logs: Annotated[bool, QueryParameter(description="With what its workers did.")] = False,  # noqa: FBT002
) -> EventWithLogsDocument:
    """One event as it stands."""
    api = api_of(request)
    event = await api.event(id, principal_of(request))
    entries = await api.store.read_event_log(event.id) if include_logs else None
    return event_with_logs(event, api.settings.max_retries, entries)


@get("/events/{id:int}/log", opt=described(Scope.READ, NOT_FOUND))
async def get_event_log(request: AnyRequest, id: PathId) -> list[LogEntryDocument]:  # noqa: A002
    """What workers did with an event, oldest first."""
    api = api_of(request)
    event = await api.event(id, principal_of(request))
    return log_documents(await api.store.read_event_log(event.id), with_event_id=True)


@get("/events", opt=described(Scope.READ, {}))
async def get_events(  # noqa: PLR0917  (the query's parameters)
    request: AnyRequest,
    status: Annotated[EventStatus | None, QueryParameter(description="Only these.")] = None,
    tags: QueryTags = None,
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_PAGE)] = 20,
    offset: Annotated[int, QueryParameter(ge=0, le=MAX_OFFSET)] = 0,
    before_id: Annotated[
        int | None, QueryParameter(ge=1, le=2**63 - 1, description="Only smaller ids: pages of any depth.")
    ] = None,
    bus: QueryBus = None,
) -> EventListDocument:
    """List events, newest first."""
    api, principal = api_of(request), principal_of(request)
    query = EventQuery(
        bus=api.bus(bus, principal),
        statuses=() if status is None else (status,),
        tags=split_tags(tags),
        before_id=before_id,
    )
    page = await list_events(api, principal, query, limit=limit, offset=offset, show=summary_document)
    return EventListDocument(events=page.items, total=page.total, limit=limit, offset=offset, total_capped=page.capped)


ROUTES = [
    create_event,
    create_events,
    subscribe,
    complete_event,
    fail_event,
    start_event,
    reset_event,
    get_event,
    get_event_log,
    get_events,
]

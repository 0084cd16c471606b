"""The seven endpoints of the design document, a batch endpoint, one that cancels, and two for the audit trail."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Response, get, post
from litestar.params import QueryParameter

from durabus.errors import InvalidPayloadError
from durabus.http import worker_actions
from durabus.http.api import Api, api_of, principal_of
from durabus.http.asgi import AnyRequest
from durabus.http.auth.access import Principal, Scope, scoped, shown, shown_results, with_parents
from durabus.http.openapi import MAX_OFFSET, MAX_PAGE, DocumentedResponse, PathId, QueryBus, QueryTags, described
from durabus.http.problems import MEDIA_TYPE, STATUS, Code, Problem, decoded
from durabus.http.schema.claims import CancelledEventsDocument, NewEventsDocument, WholeEventsDocument, whole_event
from durabus.http.schema.events import (
    CompletedDocument,
    CompleteDocument,
    EventDocument,
    EventListDocument,
    EventWithLogsDocument,
    FailDocument,
    FailedDocument,
    HandlerDocument,
    JobDocument,
    LogEntryDocument,
    MaxRetriesDocument,
    NewEventDocument,
    StartDocument,
    StartedDocument,
    StepDocument,
    event_document,
    event_with_logs,
    iso,
    job_document,
    log_documents,
    summary_document,
)
from durabus.http.schema.fields import NAME_PATTERN, TAGS_PATTERN, WORKER_PATTERN, split_tags
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import Event, NewEvent
from durabus.model.limits import MAX_NAME_CHARS
from durabus.model.payload import decode_payload
from durabus.model.query import EventQuery
from durabus.model.statuses import LIVE, EventStatus
from durabus.views.events import list_events, read_event_details
from durabus.views.steps import HandlerShown, StepShown, handlers_of
from durabus.worker.cancelling import cancel_events

TOKEN_HEADER = "Durabus-Claim-Token"  # noqa: S105  (a header's name)
FENCE_HEADER = "Durabus-Claim-Fence"
MAX_STEP_CHARS = 4096
"""Maximum length of a step's value as JSON that the document of an event carries."""

NOT_FOUND = {404: DocumentedResponse("No event has this number, or this token may not see it.")}
QueryReason = Annotated[
    str,
    QueryParameter(
        min_length=1, max_length=MAX_NAME_CHARS, pattern=NAME_PATTERN, description="Recorded in the event's log."
    ),
]
CONFLICT = {409: DocumentedResponse("The claim is lost: nothing was written.")}


@post(
    "/events",
    opt=described(Scope.PUBLISH, {409: DocumentedResponse("The key is taken.")}, NewEventDocument),
)
async def create_event(request: AnyRequest) -> EventDocument:
    """Publish an event."""
    data = await decoded(request, NewEventDocument)
    api = api_of(request)
    event = (await publish(request, [data]))[0]
    return event_document(event, api.settings.max_retries)


@post(
    "/events/batch",
    opt=described(Scope.PUBLISH, {409: DocumentedResponse("A key is taken.")}, NewEventsDocument),
)
async def create_events(request: AnyRequest) -> WholeEventsDocument:
    """Publish many events in one step, all or none."""
    data = await decoded(request, NewEventsDocument)
    events = await publish(request, data.events)
    return WholeEventsDocument(events=[whole_event(shown(principal_of(request), event)) for event in events])


async def publish(request: AnyRequest, documents: list[NewEventDocument]) -> list[Event]:
    """Store events. Refuses to return an event that the sender may not see."""
    api, principal = api_of(request), principal_of(request)
    try:
        new = [_new_event(document, api, principal) for document in documents]
    except InvalidPayloadError as error:
        code = Code.PAYLOAD_TOO_LARGE if "the limit is" in str(error) else Code.INVALID_PAYLOAD
        raise Problem(STATUS[code], str(error), code=code) from error
    events = await api.store.add_events(await with_parents(principal, api.store, new))
    if principal.limited and not all(principal.sees(event) for event in events):
        # Another tenant cannot cause this, only a publisher with an unlimited token that imitates a scope.
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
        {
            200: DocumentedResponse("An event for this worker.", JobDocument),
            204: DocumentedResponse("No event is due."),
        },
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
            description="The name of the worker: `{hostname}:{pid}`.",
        ),
    ],
    tags: Annotated[
        str | None,
        QueryParameter(
            pattern=TAGS_PATTERN,
            description="Comma-separated; an event with ANY of them matches. Without tags every event matches, even "
            "one without tags.",
        ),
    ] = None,
    bus: QueryBus = None,
) -> Response[Any]:
    """Claim the next event with one of the tags; without tags, the next of all events."""
    api, principal = api_of(request), principal_of(request)
    wanted = ClaimRequest(
        bus=api.bus(bus, principal),
        worker_id=worker_id,
        token=new_token(),
        lease=api.settings.lease,
        tags=principal.narrow(split_tags(tags)),
        max_attempts=api.settings.max_retries,
    )
    claims = await worker_actions.claim_now(api, wanted)
    if not claims:
        return Response(None, status_code=204)
    claim = claims[0]
    api.granted.add(claims, principal)
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
            200: DocumentedResponse("The event will be retried later.", FailedDocument),
            400: DocumentedResponse("Max retries exceeded, or an invalid request.", MaxRetriesDocument),
            **NOT_FOUND,
            **CONFLICT,
        },
        FailDocument,
    ),
)
async def fail_event(request: AnyRequest, id: PathId) -> Response[Any]:  # noqa: A002
    """Report failure. Safe to repeat."""
    data = await decoded(request, FailDocument)
    recorded = await worker_actions.fail(api_of(request), principal_of(request), id, data)
    if isinstance(recorded, MaxRetriesDocument):
        return Response(recorded, status_code=400, media_type=MEDIA_TYPE)
    return Response(recorded)


@post(
    "/events/{id:int}/start",
    status_code=200,
    opt=described(Scope.CLAIM, {**NOT_FOUND, **CONFLICT}, StartDocument),
)
async def start_event(request: AnyRequest, id: PathId) -> StartedDocument:  # noqa: A002
    """Record that work began, and renew the lease. A repeat renews it again."""
    data = await decoded(request, StartDocument)
    return await worker_actions.start(api_of(request), principal_of(request), id, data)


@post("/events/{id:int}/reset", status_code=200, opt=described(Scope.ADMIN, NOT_FOUND))
async def reset_event(
    request: AnyRequest,
    id: PathId,  # noqa: A002
    reason: QueryReason,
) -> EventWithLogsDocument:
    """Take a PROCESSING event from its worker. Any other event is returned unchanged."""
    api = api_of(request)
    await api.event(id, principal_of(request))
    event = await api.store.reset_event(id, reason=reason)
    return event_with_logs(event, api.settings.max_retries, None, None)


@post(
    "/events/{id:int}/cancel",
    status_code=200,
    opt=described(Scope.ADMIN, {**NOT_FOUND, 409: DocumentedResponse("The event has ended.")}),
)
async def cancel_event(
    request: AnyRequest,
    id: PathId,  # noqa: A002
    reason: QueryReason,
    children: Annotated[  # noqa: FBT002
        bool, QueryParameter(description="Also cancel its live descendants that this token may see.")
    ] = False,
) -> CancelledEventsDocument:
    """Cancel a PENDING or PROCESSING event. Returns the cancelled events, parents first. Safe to repeat."""
    api, principal, others_left = api_of(request), principal_of(request), False

    def sees(child: Event) -> bool:
        nonlocal others_left
        is_seen = principal.sees(child)
        others_left = others_left or (not is_seen and child.status in LIVE)
        return is_seen

    await api.event(id, principal)
    cancelled = await cancel_events(api.store, id, reason=reason, children=children, sees=sees)
    events = [whole_event(shown(principal, event)) for event in cancelled]
    return CancelledEventsDocument(events=events, others_left=others_left)


@get("/events/{id:int}", opt=described(Scope.READ, NOT_FOUND))
async def get_event(
    request: AnyRequest,
    id: PathId,  # noqa: A002
    include_logs: Annotated[bool, QueryParameter(description="Include what workers did with the event.")] = False,  # noqa: FBT002
    include_results: Annotated[  # noqa: FBT002
        bool, QueryParameter(description="Include what its handlers did, with their steps and sleeps.")
    ] = False,
) -> EventWithLogsDocument:
    """The current state of one event."""
    api, principal = api_of(request), principal_of(request)
    event = await api.event(id, principal)
    entries = await api.store.read_event_log(event.id) if include_logs else None
    details = await read_event_details(api.store, event.id) if include_results else None
    results = () if details is None else shown_results(principal, event.bus, details.last_results)
    handlers = None if details is None else [_handler_document(one) for one in handlers_of(results)]
    return event_with_logs(event, api.settings.max_retries, entries, handlers)


def _handler_document(handler: HandlerShown) -> HandlerDocument:
    """The document of one handler in ``GET /events/{id}``."""
    result = handler.result
    return HandlerDocument(
        handler_id=handler.handler_id,
        status=handler.status,
        attempts=None if result is None else result.attempts,
        execution_time_ms=None if result is None else result.execution_time_ms,
        error=None if result is None else result.error,
        value=None if result is None or handler.traceback else result.value,
        steps=[_step_document(step) for step in handler.steps],
    )


def _step_document(step: StepShown) -> StepDocument:
    text = step.value_json or "null"
    return StepDocument(
        name=step.name,
        attempts=step.attempts,
        execution_time_ms=step.milliseconds,
        value=decode_payload(text) if len(text) <= MAX_STEP_CHARS else None,
        value_chars=len(text) if len(text) > MAX_STEP_CHARS else None,
        hidden=step.hidden,
        sleeps_until=None if step.until_ts is None or step.waits_for is not None else iso(step.until_ts),
        waits_for=step.waits_for,
        waits_until=None if step.until_ts is None or step.waits_for is None else iso(step.until_ts),
    )


@get("/events/{id:int}/log", opt=described(Scope.READ, NOT_FOUND))
async def get_event_log(request: AnyRequest, id: PathId) -> list[LogEntryDocument]:  # noqa: A002
    """What workers did with an event, oldest first."""
    api = api_of(request)
    event = await api.event(id, principal_of(request))
    return log_documents(await api.store.read_event_log(event.id), with_event_id=True)


@get("/events", opt=described(Scope.READ, {}))
async def get_events(  # noqa: PLR0917  (the query's parameters)
    request: AnyRequest,
    status: Annotated[EventStatus | None, QueryParameter(description="Only events with this status.")] = None,
    tags: QueryTags = None,
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_PAGE)] = 20,
    offset: Annotated[int, QueryParameter(ge=0, le=MAX_OFFSET)] = 0,
    before_id: Annotated[
        int | None,
        QueryParameter(ge=1, le=2**63 - 1, description="Only events with smaller ids, to read page by page."),
    ] = None,
    bus: QueryBus = None,
) -> EventListDocument:
    """List events, newest first."""
    api, principal = api_of(request), principal_of(request)
    query = EventQuery(
        bus=api.bus(bus, principal),
        statuses=() if status is None else (status,),
        tags=principal.narrow(split_tags(tags)),
        before_id=before_id,
    )
    page = await list_events(api.store, query, limit=limit, offset=offset, show=summary_document)
    return EventListDocument(events=page.items, total=page.total, limit=limit, offset=offset, total_capped=page.capped)


ROUTES = [
    create_event,
    create_events,
    subscribe,
    complete_event,
    fail_event,
    start_event,
    reset_event,
    cancel_event,
    get_event,
    get_event_log,
    get_events,
]

"""Routes for schedules: list, show, put, pause, resume, run now, delete."""

from __future__ import annotations

from typing import Annotated

from litestar import delete, get, post, put
from litestar.params import PathParameter, QueryParameter

from durabus.errors import ConfigurationError, ScheduleNotFound
from durabus.http.api import api_of, principal_of
from durabus.http.asgi import AnyRequest
from durabus.http.auth.access import KEY_PREFIX, Principal, Scope, scoped_name
from durabus.http.openapi import DocumentedResponse, QueryBus, described
from durabus.http.problems import Code, Problem, decoded
from durabus.http.schema.fields import NAME_PATTERN, split_tags
from durabus.http.schema.schedules import (
    AskedRunDocument,
    DeletedScheduleDocument,
    PutScheduleDocument,
    ScheduleDocument,
    SchedulesDocument,
    ShownScheduleDocument,
    instant_text,
    schedule_fields,
)
from durabus.model.limits import MAX_NAME_CHARS
from durabus.schedules.schedule import MAX_SCHEDULE_CHARS, Schedule
from durabus.schedules.schedules import Schedules

SHOWN_RUNS = 5
MAX_STATES = 1_000
NOT_FOUND = {404: DocumentedResponse("The bus has no schedule of this name, or this token may not see it.")}
CHANGED = {409: DocumentedResponse("Others kept changing the schedule, or this token may not see it.")}
PathName = Annotated[
    str,
    PathParameter(
        min_length=1, max_length=MAX_SCHEDULE_CHARS, pattern=NAME_PATTERN, description="The name of the schedule."
    ),
]
OptionalReason = Annotated[
    str | None,
    QueryParameter(min_length=1, max_length=MAX_NAME_CHARS, pattern=NAME_PATTERN, description="Kept with the change."),
]


class ScheduleDesk:
    """The schedules of the bus of a request, as its sender sees them."""

    def __init__(self, request: AnyRequest, bus: str | None) -> None:
        self.principal: Principal = principal_of(request)
        self.bus = api_of(request).bus(bus, self.principal)
        self.schedules = Schedules(api_of(request).store, self.bus)

    def stored_name(self, name: str) -> str:
        """The name under which the store keeps a schedule of this sender."""
        return scoped_name(self.principal, name)

    def sees(self, schedule: Schedule) -> bool:
        """Whether the sender may see the schedule."""
        return self.principal.sees_tags(schedule.tags)

    async def seen(self, name: str) -> Schedule:
        """The schedule. Raises ``ScheduleNotFound`` also if the sender may not see it."""
        found = await self.schedules.get(self.stored_name(name))
        if found is None or not self.sees(found):
            raise ScheduleNotFound(name, self.bus)
        return found

    def document(self, schedule: Schedule) -> ScheduleDocument:
        """The document of a schedule."""
        return ScheduleDocument(**schedule_fields(schedule, self.shown_name(schedule), self.bus))

    def shown_name(self, schedule: Schedule) -> str:
        """The name as the sender gave it."""
        return KEY_PREFIX.sub("", schedule.name) if self.principal.tags else schedule.name


@get("/schedules", opt=described(Scope.READ, {}))
async def get_schedules(request: AnyRequest, bus: QueryBus = None) -> SchedulesDocument:
    """The schedules of a bus."""
    desk = ScheduleDesk(request, bus)
    found = [desk.document(one) for one in await desk.schedules.list() if desk.sees(one)]
    return SchedulesDocument(schedules=found)


@get("/schedules/{name:str}", opt=described(Scope.READ, NOT_FOUND))
async def get_schedule(request: AnyRequest, name: PathName, bus: QueryBus = None) -> ShownScheduleDocument:
    """One schedule and its next runs."""
    desk = ScheduleDesk(request, bus)
    schedule = await desk.seen(name)
    runs = await desk.schedules.next_runs(schedule.name, SHOWN_RUNS)
    return ShownScheduleDocument(
        **schedule_fields(schedule, desk.shown_name(schedule), desk.bus),
        next_runs=[instant_text(run) or "" for run in runs],
    )


@get("/schedules/{name:str}/history", opt=described(Scope.READ, NOT_FOUND))
async def get_schedule_history(
    request: AnyRequest,
    name: PathName,
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_STATES)] = 100,
    bus: QueryBus = None,
) -> SchedulesDocument:
    """The states of a schedule, newest first: what changed it, by whom and why, and when it was due."""
    desk = ScheduleDesk(request, bus)
    states = [one for one in await desk.schedules.history(desk.stored_name(name), limit) if desk.sees(one)]
    if not states:
        raise ScheduleNotFound(name, desk.bus)
    return SchedulesDocument(schedules=[desk.document(one) for one in states])


@put("/schedules/{name:str}", opt=described(Scope.ADMIN, CHANGED, PutScheduleDocument))
async def put_schedule(request: AnyRequest, name: PathName, bus: QueryBus = None) -> ScheduleDocument:
    """Store a schedule, or replace the one of this name. The same document again changes nothing."""
    data = await decoded(request, PutScheduleDocument)
    desk = ScheduleDesk(request, bus)
    tags = split_tags(data.tags)
    desk.principal.check_new(tags)
    when = data.cron if data.every is None else data.every
    if when is None or None not in (data.cron, data.every):
        raise ConfigurationError("a schedule has either cron, such as '*/5 * * * *', or every, in seconds: give one")
    known = await desk.schedules.get(desk.stored_name(name))
    if known is not None and not desk.sees(known):
        raise Problem(409, "the name is taken by a schedule that this token may not see", code=Code.KEY_TAKEN)
    schedule = await desk.schedules.put(
        desk.stored_name(name),
        when,
        data.type,
        data.payload,
        tz=data.tz,
        catch_up=data.catch_up,
        overlap=data.overlap,
        tags=tags,
        priority=data.priority,
        actor=desk.principal.name,
        reason=data.reason,
    )
    return desk.document(schedule)


@delete("/schedules/{name:str}", status_code=200, opt=described(Scope.ADMIN, CHANGED))
async def delete_schedule(
    request: AnyRequest, name: PathName, reason: OptionalReason = None, bus: QueryBus = None
) -> DeletedScheduleDocument:
    """Delete a schedule. It publishes nothing after the response. Safe to repeat."""
    desk = ScheduleDesk(request, bus)
    known = await desk.schedules.get(desk.stored_name(name))
    if known is None or not desk.sees(known):
        return DeletedScheduleDocument(deleted=False)
    deleted = await desk.schedules.delete(known.name, actor=desk.principal.name, reason=reason)
    return DeletedScheduleDocument(deleted=deleted)


@post("/schedules/{name:str}/pause", status_code=200, opt=described(Scope.ADMIN, {**NOT_FOUND, **CHANGED}))
async def pause_schedule(
    request: AnyRequest, name: PathName, reason: OptionalReason = None, bus: QueryBus = None
) -> ScheduleDocument:
    """Stop a schedule until it is resumed. Safe to repeat."""
    desk = ScheduleDesk(request, bus)
    schedule = await desk.seen(name)
    return desk.document(await desk.schedules.pause(schedule.name, actor=desk.principal.name, reason=reason))


@post("/schedules/{name:str}/resume", status_code=200, opt=described(Scope.ADMIN, {**NOT_FOUND, **CHANGED}))
async def resume_schedule(
    request: AnyRequest, name: PathName, reason: OptionalReason = None, bus: QueryBus = None
) -> ScheduleDocument:
    """Let a paused schedule go on with its next slot. Safe to repeat."""
    desk = ScheduleDesk(request, bus)
    schedule = await desk.seen(name)
    return desk.document(await desk.schedules.resume(schedule.name, actor=desk.principal.name, reason=reason))


@post("/schedules/{name:str}/run", status_code=200, opt=described(Scope.ADMIN, {**NOT_FOUND, **CHANGED}))
async def run_schedule(
    request: AnyRequest, name: PathName, reason: OptionalReason = None, bus: QueryBus = None
) -> AskedRunDocument:
    """Let a worker publish the event of a schedule at once, also while it is paused. Each request asks for one more."""
    desk = ScheduleDesk(request, bus)
    schedule = await desk.seen(name)
    event_id = await desk.schedules.run_now(schedule.name, actor=desk.principal.name, reason=reason)
    return AskedRunDocument(event_id=event_id)


ROUTES = [
    get_schedules,
    get_schedule,
    get_schedule_history,
    put_schedule,
    delete_schedule,
    pause_schedule,
    resume_schedule,
    run_schedule,
]

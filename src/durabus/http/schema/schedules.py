"""Documents of schedules."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from durabus.http.schema.events import iso
from durabus.http.schema.fields import Priority, TagsOrNone, TypeName, join_tags
from durabus.model.limits import MAX_NAME_CHARS, MAX_SECONDS
from durabus.schedules.schedule import CatchUp, Overlap, Schedule, ScheduleAction
from durabus.schedules.timing import MAX_CRON_CHARS, MIN_EVERY, SECOND

Reason = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]


class PutScheduleDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A schedule: what it publishes, and when. It has either ``cron`` or ``every``."""

    type: TypeName
    payload: Any = None
    cron: Annotated[str, Meta(max_length=MAX_CRON_CHARS, description="Such as `*/5 * * * *`.")] | None = None
    every: Annotated[float, Meta(ge=MIN_EVERY, le=MAX_SECONDS, description="Seconds.")] | None = None
    tz: Annotated[str, Meta(max_length=MAX_NAME_CHARS, description="Such as `Europe/Oslo`.")] = "UTC"
    catch_up: CatchUp = CatchUp.ONE
    overlap: Overlap = Overlap.SKIP
    tags: TagsOrNone = ""
    priority: Priority = 0
    reason: Reason | None = None


class ScheduleDocument(msgspec.Struct, kw_only=True):
    """A schedule as it is now."""

    name: str
    bus: str
    type: str
    payload: Any
    cron: str | None
    every: float | None
    tz: str
    catch_up: CatchUp
    overlap: Overlap
    tags: str
    priority: int
    paused: bool
    next_run_at: str | None
    last_run_at: str | None
    last_event_id: str | None
    skipped: int
    number: int
    action: ScheduleAction
    actor: str | None
    reason: str | None
    changed_at: str


class ShownScheduleDocument(ScheduleDocument, kw_only=True):
    """A schedule with its next runs; while it is paused, none of them happens."""

    next_runs: list[str]


class SchedulesDocument(msgspec.Struct, kw_only=True):
    """Schedules in order of their names, or the states of one schedule, newest first."""

    schedules: list[ScheduleDocument]


class DeletedScheduleDocument(msgspec.Struct, kw_only=True):
    """Whether there was such a schedule."""

    deleted: bool


class AskedRunDocument(msgspec.Struct, kw_only=True):
    """The event that a worker of the bus publishes at once."""

    event_id: str


def schedule_fields(schedule: Schedule, name: str, bus: str) -> dict[str, Any]:
    """The fields of a schedule. ``name`` is the one that the sender knows."""
    return {
        "name": name,
        "bus": bus,
        "type": schedule.type,
        "payload": schedule.payload,
        "cron": schedule.cron,
        "every": schedule.every,
        "tz": schedule.tz,
        "catch_up": schedule.catch_up,
        "overlap": schedule.overlap,
        "tags": join_tags(schedule.tags),
        "priority": schedule.priority,
        "paused": schedule.paused,
        "next_run_at": instant_text(schedule.next_run_at),
        "last_run_at": instant_text(schedule.last_run_at),
        "last_event_id": schedule.last_event_id,
        "skipped": schedule.skipped,
        "number": schedule.number,
        "action": schedule.action,
        "actor": schedule.actor,
        "reason": schedule.reason,
        "changed_at": iso(schedule.changed_ms / SECOND),
    }


def instant_text(instant: datetime | None) -> str | None:
    """An instant as the API writes it."""
    return None if instant is None else iso(instant.timestamp())

"""A schedule as a value: what was declared, and its present state. Every state is kept as an event.

The states of all schedules of a bus are events on a bus of their own, which no user can name. State ``number`` of a
schedule has an ``event_id`` made of the bus, the name and the number, so the store keeps only the first event that
claims to be that state: a caller that wanted to store another one has lost a race. Each event that a schedule
publishes, a tick, has an ``event_id`` made of the bus, the name and the slot, so it is stored once.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import blake2b
from typing import Any

import msgspec

from durabus.errors import ConfigurationError, InvalidEventError, PayloadDecodeError
from durabus.model.event import ORDERING_KEY, Event, NewEvent
from durabus.model.limits import (
    SCHEDULES_SUFFIX,
    Duration,
    check_name,
    check_priority,
    check_tags,
    choice,
    stored_text,
)
from durabus.model.pattern import check_type
from durabus.model.payload import decode_payload, encode_payload
from durabus.schedules.timing import SECOND, Cron, Interval, Timing, check_cron, check_every, zone

MAX_SCHEDULE_CHARS = 200
MAX_SCHEDULE_BYTES = 524_288
"""Maximum size of a payload as JSON. Every state of the schedule carries it."""
REST = 10 * 366 * 86_400.0
"""Seconds after which a worker looks at a paused schedule again."""
SCHEDULE = "schedule"
"""The metadata entry of a tick with the name of its schedule."""
SLOT = "schedule_slot"
"""The metadata entry of a tick with its slot, as a text in UTC. A tick of ``run_now`` has none."""


class CatchUp(StrEnum):
    """What happens to slots that passed while no worker served the bus."""

    ONE = "one"
    """One tick, for the newest of them."""
    ALL = "all"
    """A tick for each of them."""
    NONE = "none"
    """No tick, if the newest of them is late by more than a minute."""


class Overlap(StrEnum):
    """What happens to a tick whose predecessor has not ended."""

    SKIP = "skip"
    """It is not published."""
    QUEUE = "queue"
    """It waits for the end of the predecessor."""
    PARALLEL = "parallel"
    """It runs beside its predecessor."""


class ScheduleAction(StrEnum):
    """What made a state of a schedule."""

    PUT = "put"
    PAUSE = "pause"
    RESUME = "resume"
    RUN = "run"
    DELETE = "delete"
    FIRE = "fire"
    """A worker handled the due slots. All other actions are changes that a caller asked for."""


class ScheduleDeclaration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a schedule publishes, and when. ``declare`` makes it and checks every field."""

    name: str
    type: str
    payload: Any = None
    cron: str | None = None
    every: float | None = None
    """Seconds. A schedule has either ``cron`` or ``every``."""
    tz: str = "UTC"
    catch_up: CatchUp = CatchUp.ONE
    overlap: Overlap = Overlap.SKIP
    tags: tuple[str, ...] = ()
    priority: int = 0

    def declares(self) -> tuple[bytes, ...]:
        """Return the declaration in a form that can be compared: 1, 1.0 and True differ as JSON."""
        return tuple(msgspec.json.encode(getattr(self, field)) for field in ScheduleDeclaration.__struct_fields__)

    def has_times_of(self, other: ScheduleDeclaration) -> bool:
        """Whether both have the same slots, from the same beginning on."""
        return (self.cron, self.every, self.tz) == (other.cron, other.every, other.tz)


class Schedule(ScheduleDeclaration, frozen=True, kw_only=True, omit_defaults=True):
    """One state of a schedule. ``number`` counts its states from 1. Fields that end with ``_ms`` are milliseconds."""

    number: int
    action: ScheduleAction
    """What made this state."""
    actor: str | None = None
    reason: str | None = None
    changed_ms: int
    """When this state was made, by the clock of the store."""
    anchor_ms: int
    """When the interval of ``every`` began."""
    slot_ms: int | None = None
    """The next slot; None if there is none."""
    paused: bool = False
    last_slot_ms: int | None = None
    last_event_id: str | None = None
    """The newest tick."""
    skipped: int = 0
    """How many ticks were not published because their predecessor had not ended."""
    runs: tuple[str, ...] = ()
    """The ids of the ticks that ``run_now`` asked for and that no worker has published yet."""

    @property
    def timing(self) -> Timing:
        """The slots."""
        if self.cron is not None:
            return Cron(self.cron, self.tz)
        return Interval(round((self.every or 0.0) * SECOND), self.anchor_ms)

    @property
    def next_run_at(self) -> datetime | None:
        """The next slot; None while the schedule is paused."""
        return None if self.paused else _instant(self.slot_ms)

    @property
    def last_run_at(self) -> datetime | None:
        """The newest slot with a tick."""
        return _instant(self.last_slot_ms)

    @property
    def changed_at(self) -> datetime:
        """When this state was made."""
        return datetime.fromtimestamp(self.changed_ms / SECOND, UTC)

    def due_in(self, now: int) -> float:
        """Return the seconds until a worker has to handle this state."""
        if self.runs or self.action is ScheduleAction.DELETE:
            return 0.0
        if self.paused or self.slot_ms is None:
            return REST
        return min(max(self.slot_ms - now, 0) / SECOND, REST)


def declare(
    name: str,
    when: str | Duration,
    event_type: str,
    payload: Any = None,
    *,
    tz: str = "UTC",
    catch_up: CatchUp | str = CatchUp.ONE,
    overlap: Overlap | str = Overlap.SKIP,
    tags: Iterable[str] = (),
    priority: int = 0,
) -> ScheduleDeclaration:
    """Check what a user gives. ``when`` is a cron expression, or an interval in seconds."""
    check_schedule_name(name)
    zone(tz)
    caught, overlaps = choice(CatchUp, catch_up, "catch_up"), choice(Overlap, overlap, "overlap")
    if caught is CatchUp.ALL and overlaps is Overlap.SKIP:
        raise ConfigurationError(
            "catch_up='all' with overlap='skip': the second tick to catch up would be skipped, because the first has "
            "not ended; use overlap='queue' or overlap='parallel'"
        )
    return ScheduleDeclaration(
        name=name,
        type=check_type(event_type),
        payload=decode_payload(encode_payload(payload, limit=MAX_SCHEDULE_BYTES)),
        cron=check_cron(when) if isinstance(when, str) else None,
        every=None if isinstance(when, str) else check_every(when),
        tz=tz,
        catch_up=caught,
        overlap=overlaps,
        tags=check_tags(tags),
        priority=check_priority(priority),
    )


def check_schedule_name(name: str) -> str:
    """Return the name of a schedule, or raise."""
    check_name(name, "schedule")
    if "/" in name:
        raise InvalidEventError(
            f"schedule={name!r}: a slash is not allowed, because the HTTP API has names in addresses"
        )
    if len(name) > MAX_SCHEDULE_CHARS:
        raise InvalidEventError(
            f"schedule has {len(name)} characters ({name[:40]!r}…): the limit is {MAX_SCHEDULE_CHARS}"
        )
    return name


def check_actor(actor: str | None, reason: str | None) -> None:
    """Raise unless these can be kept with a change."""
    if actor is not None:
        check_name(actor, "actor")
    if reason is not None and (not isinstance(reason, str) or stored_text(reason) != reason):
        raise InvalidEventError(f"reason={reason!r:.80}: must be a text that every store can hold")


def state_bus(bus: str) -> str:
    """Return the bus with the states of the schedules of ``bus``."""
    return bus + SCHEDULES_SUFFIX


def chain_id(bus: str, name: str) -> str:
    """Return the ``parent_id`` that all states of a schedule have. No event has this id: it only finds the states."""
    return _uuid(_bits("chain", bus, name), 8)


def state_id(bus: str, name: str, number: int) -> str:
    """Return the ``event_id`` of a state: a UUIDv8."""
    return _uuid(_bits("state", bus, name, str(number)), 8)


def tick_id(bus: str, name: str, slot: int) -> str:
    """Return the ``event_id`` of the tick of a slot: a UUIDv7 with the time of the slot."""
    return _uuid((slot & (1 << 48) - 1) << 80 | _bits("tick", bus, name, str(slot)) & (1 << 80) - 1, 7)


def state_event(bus: str, schedule: Schedule, now: int) -> NewEvent:
    """Return the event that keeps a state."""
    return NewEvent(
        event_id=state_id(bus, schedule.name, schedule.number),
        bus=state_bus(bus),
        type=f"schedule.{schedule.action.value}",
        payload_json=msgspec.json.encode(schedule).decode(),
        tags=schedule.tags,
        delay=schedule.due_in(now),
        parent_id=chain_id(bus, schedule.name),
    )


def state_of(event: Event) -> Schedule:
    """Return the state that an event keeps."""
    try:
        return msgspec.json.decode(event.payload_json, type=Schedule)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise PayloadDecodeError(f"event {event.event_id} keeps no state of a schedule: {error}") from error


def tick_event(bus: str, schedule: Schedule, event_id: str, slot: int | None) -> NewEvent:
    """Return the event that a schedule publishes for a slot; None: for a call of ``run_now``."""
    metadata = {SCHEDULE: schedule.name}
    at = _instant(slot)
    if at is not None:
        metadata[SLOT] = at.isoformat().replace("+00:00", "Z")
    if schedule.overlap is Overlap.QUEUE:
        metadata[ORDERING_KEY] = f"{schedule.name}:schedule"
    return NewEvent(
        event_id=event_id,
        bus=bus,
        type=schedule.type,
        payload_json=msgspec.json.encode(schedule.payload).decode(),
        metadata_json=msgspec.json.encode(metadata).decode(),
        tags=schedule.tags,
        priority=schedule.priority,
    )


def _instant(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / SECOND, UTC)


def _bits(*parts: str) -> int:
    return int.from_bytes(blake2b(msgspec.json.encode(parts), digest_size=16).digest())


def _uuid(bits: int, version: int) -> str:
    """Return a UUID of these bits, with the marks of its version."""
    bits = bits & ~((0xF << 76) | (0x3 << 62)) | version << 76 | 0x2 << 62
    text = f"{bits:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

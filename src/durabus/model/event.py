"""An event: what was published, and its present state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypedDict

import msgspec
import uuid_utils

from durabus.errors import InvalidEventError
from durabus.model.limits import (
    MAX_NAME_CHARS,
    MAX_SECONDS,
    Duration,
    check_name,
    check_priority,
    check_tags,
    is_attempts,
    seconds,
)
from durabus.model.pattern import check_type
from durabus.model.payload import decode_payload, encode_payload
from durabus.model.statuses import EventStatus
from durabus.model.upcasting import decode_newest, newest_json

DEFAULT_BUS = "default"
ORDERING_KEY = "ordering_key"
"""The name of the metadata entry that holds the ordering key."""
REPLY_TO = "event_reply_to"
"""The name of the metadata entry that holds the address of the node which waits for the event's end."""
ADDRESSED = f'"{REPLY_TO}":"'
"""Stands before this address in the text of the metadata."""
UNREAD_FOR = 10.0
"""Seconds after the end of an event in which the node that waits for it may still have to read the result. A node whose
hint was lost looks every 5 seconds."""
EXPIRES_AFTER = "expires_after"
"""The name of the metadata entry that says after how many seconds the event must not be begun any more."""
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class NewEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event that is not stored yet. ``new_event`` makes it and checks every field."""

    event_id: str
    bus: str
    type: str
    payload_json: str
    metadata_json: str | None = None
    tags: tuple[str, ...] = ()
    priority: int = 0
    delay: float = 0.0
    max_attempts: int | None = None
    parent_id: str | None = None
    idempotency_key: str | None = None


class PublishOptions(TypedDict, total=False):
    """What a publisher may give besides type, payload and metadata."""

    event_id: str | None
    tags: Iterable[str]
    priority: int
    delay: Duration
    at: datetime | None
    """When the event is due, as an aware datetime, in place of ``delay``. A time in the past means now."""
    expires: Duration | datetime | None
    """After this duration, or at this aware datetime, no worker begins the event any more: it is cancelled."""
    max_attempts: int | None
    parent_id: str | None
    """None means no parent. If it is left out inside a handler, the parent is the event that is being handled; an event
    with a ``delay`` or ``at`` then has no parent.
    """
    idempotency_key: str | None
    ordering_key: str | None


class EmitOptions(PublishOptions, total=False):
    """What a bus takes besides. ``key`` names a child among those of its handler: a retry with this key finds it."""

    key: str | None


def new_event(
    event_type: str,
    payload: Any = None,
    *,
    bus: str = DEFAULT_BUS,
    event_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    tags: Iterable[str] = (),
    priority: int = 0,
    delay: Duration = 0.0,
    at: datetime | None = None,
    expires: Duration | datetime | None = None,
    max_attempts: int | None = None,
    parent_id: str | None = None,
    idempotency_key: str | None = None,
    ordering_key: str | None = None,
) -> NewEvent:
    """Check and encode what a publisher gives. Raises before anything is stored.

    ``ordering_key`` is kept as the metadata entry of that name. Events of one bus with the same key are handled one at
    a time, in the order of their ids. ``expires`` is kept as the entry ``expires_after``, in seconds. The store never
    gets an instant of the publisher: ``at`` and ``expires`` become durations here.
    """
    if max_attempts is not None and not is_attempts(max_attempts):
        raise InvalidEventError(f"max_attempts={max_attempts!r}: must be a whole number of 1 or more, or None")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidEventError(f"metadata={metadata!r}: must be a mapping, not {type(metadata).__name__}")
    wait = delay_of(delay, at)
    if ordering_key is not None:
        metadata = {**(metadata or {}), ORDERING_KEY: ordering_key}
    if expires is not None:
        metadata = {**(metadata or {}), EXPIRES_AFTER: _seconds_until(expires, "expires")}
    if metadata and metadata.get(ORDERING_KEY) is not None:
        check_name(metadata[ORDERING_KEY], ORDERING_KEY)
    if metadata and metadata.get(EXPIRES_AFTER) is not None:
        _check_expiry(metadata[EXPIRES_AFTER], wait)
    return NewEvent(
        event_id=new_event_id() if event_id is None else check_event_id(event_id),
        bus=check_name(bus, "bus"),
        type=check_type(event_type),
        payload_json=encode_payload(payload),
        metadata_json=encode_payload(dict(metadata), "metadata") if metadata else None,
        tags=check_tags(tags) if tags else (),
        priority=check_priority(priority) if priority else 0,
        delay=wait,
        max_attempts=max_attempts,
        parent_id=None if parent_id is None else check_event_id(parent_id),
        idempotency_key=None if idempotency_key is None else check_name(idempotency_key, "idempotency_key"),
    )


def ordering_key_of(metadata_json: str) -> str | None:
    """Return the ordering key in an event's metadata, or None."""
    if f'"{ORDERING_KEY}"' not in metadata_json:
        return None  # most events have none: this saves decoding
    key = decode_payload(metadata_json).get(ORDERING_KEY)
    return key if isinstance(key, str) and key else None


def with_reply_to(metadata_json: str | None, node: str) -> str:
    """Return the metadata with the address of the node that waits for the event's end. It is the last entry."""
    entry = f'"{REPLY_TO}":"{node}"}}'
    return "{" + entry if metadata_json is None else f"{metadata_json[:-1]},{entry}"


def has_reply_to(metadata_json: str | None, node: str) -> bool:
    """Return whether metadata have the address of this node."""
    return metadata_json is not None and node in metadata_json


def may_be_unread(event: Event, node: str, now: float) -> bool:
    """Return whether another node than ``node`` may have yet to read the result of an event that has ended."""
    metadata = event.metadata_json
    recent = event.updated_ts > now - UNREAD_FOR
    return recent and metadata is not None and ADDRESSED in metadata and node not in metadata


def reply_to_of(metadata_json: str) -> str | None:
    """Return the address of the node that waits for the end of an event, from its metadata, or None."""
    if f'"{REPLY_TO}"' not in metadata_json:
        return None
    node = decode_payload(metadata_json).get(REPLY_TO)
    return node if isinstance(node, str) and node.isprintable() and len(node) <= MAX_NAME_CHARS else None


def delay_of(delay: Duration, at: datetime | None) -> float:
    """Return the seconds until an event is due."""
    if at is None:
        return seconds(delay, "delay") if delay else 0.0
    if delay:
        raise InvalidEventError(f"delay={delay!r} and at={at!r}: give only one of them")
    return max(_seconds_until(at, "at"), 0.0)


def _seconds_until(value: Duration | datetime, option: str) -> float:
    """Return a duration as seconds, or the seconds until an instant, which are negative for a past one."""
    if not isinstance(value, datetime):
        if option == "at":
            raise InvalidEventError(f"at={value!r}: must be an aware datetime; delay takes seconds or a timedelta")
        return seconds(value, option, allow_zero=False)
    if value.utcoffset() is None:
        raise InvalidEventError(
            f"{option}={value!r}: has no time zone, so it names no instant; give one, such as tzinfo=datetime.UTC"
        )
    now = datetime.now(UTC)  # clock: the caller's instant becomes a duration, which the store adds to its own time
    left = (value - now).total_seconds()
    if left <= 0 and option == "expires":
        raise InvalidEventError(f"expires={value!r}: this instant is past, so no worker could begin the event")
    return seconds(left, option) if left > 0 else left


def _check_expiry(after: object, delay: float) -> None:
    """Raise unless an event may expire after this number of seconds."""
    if isinstance(after, bool) or not isinstance(after, int | float) or not 0 < after <= MAX_SECONDS:
        raise InvalidEventError(
            f"{EXPIRES_AFTER}={after!r}: must be more than 0 and at most {MAX_SECONDS:.0f} seconds (a hundred years)"
        )
    if after <= delay:
        raise InvalidEventError(
            f"the event would expire after {after:g} s, but be due after {delay:g} s: no worker could begin it. Let it "
            "expire later"
        )


def expires_after_of(metadata_json: str) -> float | None:
    """Return after how many seconds an event expires, from its metadata; None if it never does."""
    if f'"{EXPIRES_AFTER}"' not in metadata_json:
        return None  # most events never expire: this saves decoding
    after = decode_payload(metadata_json).get(EXPIRES_AFTER)
    return float(after) if isinstance(after, int | float) and not isinstance(after, bool) else None


def new_event_id() -> str:
    """Return a UUIDv7: unique without coordination, and sorted by the time it was made."""
    return str(uuid_utils.uuid7())


def check_event_id(event_id: str) -> str:
    """Return the id that a publisher chose, or raise if it is not a UUID in canonical lower-case form."""
    if not isinstance(event_id, str) or not _UUID.fullmatch(event_id):
        raise InvalidEventError(f"event_id={event_id!r}: must be a UUID in canonical lower-case form")
    return event_id


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event as the store holds it. Instants are kept as seconds (``*_ts``) and shown as datetimes (``*_at``)."""

    id: int
    """The store gives ids, strictly increasing in queue order."""
    event_id: str
    """A UUIDv7 that the publisher made. Publishing it twice stores one event."""
    bus: str
    type: str
    payload_json: str
    metadata_json: str | None = None
    tags: tuple[str, ...] = ()
    priority: int = 0
    max_attempts: int | None = None
    parent_id: str | None = None
    idempotency_key: str | None = None
    status: EventStatus = EventStatus.PENDING
    attempts: int = 0
    """The number of claims granted in this generation, without those that were given back."""
    generation: int = 0
    """How often the event was requeued from the dead letters."""
    fence: int = 0
    """The number of the newest claim. A new claim raises it, and so does a cancellation that revokes a claim.
    Nothing ever lowers it."""
    worker_id: str | None = None
    errors: tuple[str, ...] = ()
    """One text for each failed or abandoned attempt of this generation, oldest first."""
    created_ts: float
    updated_ts: float
    due_ts: float
    """The event cannot be claimed before this time."""
    picked_ts: float | None = None
    started_ts: float | None = None
    expires_ts: float | None = None
    """When the lease of the current claim ends, by the store's clock."""

    @property
    def payload(self) -> Any:
        """The payload, in the newest version that an upcaster makes.

        Each access decodes it again, so that no reader can change another reader's copy.
        """
        return decode_newest(self.type, self.metadata_json, self.payload_json)

    @property
    def newest_payload_json(self) -> str:
        """The JSON text of ``payload``. ``payload_json`` is the text as it was published."""
        return newest_json(self.type, self.metadata_json, self.payload_json)

    @property
    def metadata(self) -> dict[str, Any]:
        """What the publisher sent along with the payload."""
        if self.metadata_json is None:
            return {}
        metadata: dict[str, Any] = decode_payload(self.metadata_json)
        metadata.pop(REPLY_TO, None)  # the address of a node that waits: it belongs to this event only
        return metadata

    @property
    def ordering_key(self) -> str | None:
        """Events of one bus with the same key are handled one at a time, in the order of their ids."""
        return None if self.metadata_json is None else ordering_key_of(self.metadata_json)

    @property
    def expires_after(self) -> float | None:
        """The seconds after its creation from which on no worker begins the event; None if it never expires."""
        return None if self.metadata_json is None else expires_after_of(self.metadata_json)

    @property
    def has_expired(self) -> bool:
        """Whether the event was claimed too late to be begun. The times are those of the store's clock."""
        after = self.expires_after
        return after is not None and self.picked_ts is not None and self.picked_ts - self.created_ts >= after

    @property
    def retry_count(self) -> int:
        """The number of attempts of this generation that failed or were abandoned."""
        return len(self.errors)

    @property
    def last_error(self) -> str | None:
        """A JSON array with one string for each failed attempt, or None."""
        return msgspec.json.encode(self.errors).decode() if self.errors else None

    @property
    def created_at(self) -> datetime:
        """When the store accepted the event."""
        return datetime.fromtimestamp(self.created_ts, UTC)

    @property
    def updated_at(self) -> datetime:
        """When the event last changed."""
        return datetime.fromtimestamp(self.updated_ts, UTC)

    @property
    def next_retry_at(self) -> datetime | None:
        """When an event that waits after a failed attempt can be claimed again."""
        waiting = self.status is EventStatus.PENDING and self.errors and self.due_ts > self.updated_ts
        return datetime.fromtimestamp(self.due_ts, UTC) if waiting else None

    @property
    def processing_started_at(self) -> datetime | None:
        """When the current claim was granted."""
        return None if self.picked_ts is None else datetime.fromtimestamp(self.picked_ts, UTC)

    @property
    def lease_expires_at(self) -> datetime | None:
        """When the lease of the current claim ends, by the store's clock."""
        return None if self.expires_ts is None else datetime.fromtimestamp(self.expires_ts, UTC)

"""An event: what was published, and its present state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypedDict

import msgspec
import uuid_utils

from durabus.errors import InvalidEventError
from durabus.model.limits import Duration, check_name, check_priority, check_tags, is_attempts, seconds
from durabus.model.pattern import check_type
from durabus.model.payload import decode_payload, encode_payload
from durabus.model.statuses import EventStatus

DEFAULT_BUS = "default"
ORDERING_KEY = "ordering_key"
"""The name of the metadata entry that holds the ordering key."""
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
    max_attempts: int | None
    parent_id: str | None
    """None means no parent. If it is left out inside a handler, the parent is the event that is being handled; an event
    with a ``delay`` then has no parent.
    """
    idempotency_key: str | None
    ordering_key: str | None


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
    max_attempts: int | None = None,
    parent_id: str | None = None,
    idempotency_key: str | None = None,
    ordering_key: str | None = None,
) -> NewEvent:
    """Check and encode what a publisher gives. Raises before anything is stored.

    ``ordering_key`` is kept as the metadata entry of that name. Events of one bus with the same key are handled one at
    a time, in the order of their ids.
    """
    if max_attempts is not None and not is_attempts(max_attempts):
        raise InvalidEventError(f"max_attempts={max_attempts!r}: must be a whole number of 1 or more, or None")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidEventError(f"metadata={metadata!r}: must be a mapping, not {type(metadata).__name__}")
    if ordering_key is not None:
        metadata = {**(metadata or {}), ORDERING_KEY: ordering_key}
    if metadata and metadata.get(ORDERING_KEY) is not None:
        check_name(metadata[ORDERING_KEY], ORDERING_KEY)
    return NewEvent(
        event_id=new_event_id() if event_id is None else check_event_id(event_id),
        bus=check_name(bus, "bus"),
        type=check_type(event_type),
        payload_json=encode_payload(payload),
        metadata_json=encode_payload(dict(metadata), "metadata") if metadata else None,
        tags=check_tags(tags) if tags else (),
        priority=check_priority(priority) if priority else 0,
        delay=seconds(delay, "delay") if delay else 0.0,
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
    """The number of the newest claim. Only a new claim raises it; nothing ever lowers it."""
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
        """The payload. Each access decodes it again, so that no reader can change another reader's copy."""
        return decode_payload(self.payload_json)

    @property
    def metadata(self) -> dict[str, Any]:
        """What the publisher sent along with the payload."""
        return {} if self.metadata_json is None else decode_payload(self.metadata_json)

    @property
    def ordering_key(self) -> str | None:
        """Events of one bus with the same key are handled one at a time, in the order of their ids."""
        return None if self.metadata_json is None else ordering_key_of(self.metadata_json)

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

"""An event on the public lane: its payload as plain JSON, and headers that any consumer understands.

::

    subject or topic   events.{event_type} (NATS), events (Kafka)
    body               the payload, the JSON as published
    event_id, bus_id, event_type, event_parent_id, traceparent      the fields of the event
    ce_specversion, ce_id, ce_source, ce_type                       the same fields by their CloudEvents names
    durabus            what durabus needs besides, and which piece of which publish the record is
    durabus-crc        a checksum of the body and of the header ``durabus``

Another program may write to the public lane too. Its record needs only a JSON body. Nodes take ``event_id`` (a UUID),
``bus_id``, ``event_type`` and ``event_parent_id`` from the headers of these names, or from the CloudEvents headers.
Without an id, nodes derive the id from the position in the log. Without a bus, the event goes to the bus ``default``.
On Kafka a type is required. A record that cannot be an event is skipped, counted and logged. Another program must not
copy the headers ``durabus`` and ``durabus-crc``: a record with one of them counts as written by durabus, and if it is
damaged, the nodes stop.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from durabus.errors import DurabusError
from durabus.model.event import DEFAULT_BUS, NewEvent, check_event_id, new_event
from durabus.model.payload import decode_payload
from durabus.stores.replicated_log.records import CRC, DamagedRecordError, check, checksum
from durabus.stores.replicated_log.transport import BrokerRecord, PublicRecord

HEADER = "durabus"
NAMESPACE = uuid.UUID("6f0e1c58-6d0c-5d6f-9d3f-5c8a1c5d7f10")
TRACE = "traceparent"
APART_FROM = 8_000
"""Characters of metadata. Larger metadata travel in an ``Attach`` command, because NATS allows 64 KiB of headers."""


class Rest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The header ``durabus``: what the other headers do not carry, or not exactly."""

    session: str
    number: int
    place: int
    count: int
    event_id: str
    bus: str
    type: str
    metadata_json: str | None = None
    metadata_apart: bool = False
    """Whether an ``Attach`` command carries the metadata."""
    tags: tuple[str, ...] = ()
    priority: int = 0
    delay: float = 0.0
    max_attempts: int | None = None
    parent_id: str | None = None
    idempotency_key: str | None = None


class Arrival(NamedTuple):
    """An event of the public lane, and its header ``durabus`` (None for a record of another program)."""

    new: NewEvent
    rest: Rest | None


class NoEventError(ValueError):
    """The record cannot be an event."""


_ENCODER = msgspec.json.Encoder()
_REST = msgspec.json.Decoder(Rest)
_ANY = msgspec.json.Decoder()


def public_record(new: NewEvent, *, session: str, number: int, place: int, count: int) -> PublicRecord:
    """Return the record that publishes ``new``, the ``place``-th of ``count`` events that are published together.

    Raises if no node could read the event. That can happen to an event that ``new_event`` did not make.
    """
    rest = Rest(
        session=session,
        number=number,
        place=place,
        count=count,
        event_id=new.event_id,
        bus=new.bus,
        type=new.type,
        metadata_json=None if travels_apart(new) else new.metadata_json,
        metadata_apart=travels_apart(new),
        tags=new.tags,
        priority=new.priority,
        delay=new.delay,
        max_attempts=new.max_attempts,
        parent_id=new.parent_id,
        idempotency_key=new.idempotency_key,
    )
    headers = {
        "event_id": new.event_id,
        "bus_id": new.bus,
        "event_type": new.type,
        "ce_specversion": "1.0",
        "ce_id": new.event_id,
        "ce_source": new.bus,
        "ce_type": new.type,
        "content-type": "application/json",
    }
    if new.parent_id is not None:
        headers["event_parent_id"] = new.parent_id
    if new.metadata_json is not None and TRACE in new.metadata_json:
        trace = decode_payload(new.metadata_json).get(TRACE)
        if isinstance(trace, str):
            headers[TRACE] = trace
    written, body = _ENCODER.encode(rest), new.payload_json.encode()
    _REST.decode(written)
    headers[HEADER] = written.decode()
    headers[CRC] = checksum(written, body)
    return PublicRecord(f"{session}-{number}-{place}", new.type, headers, body)


def travels_apart(new: NewEvent) -> bool:
    """Return whether the metadata are too large for a header."""
    return new.metadata_json is not None and len(new.metadata_json) > APART_FROM


def arrival(entry: BrokerRecord) -> Arrival:
    """Return the event in a public record.

    Raises ``NoEventError`` if a record of another program holds none, ``DamagedRecordError`` if our record is damaged.
    """
    if HEADER not in entry.headers and CRC not in entry.headers:
        try:
            return Arrival(_foreign(entry), None)
        except (DurabusError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise NoEventError(str(error)) from error
    written = entry.headers.get(HEADER, "").encode()
    check(entry.headers, written, entry.body)
    try:
        rest = _REST.decode(written)
        body = entry.body.decode()
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise DamagedRecordError(f"the record cannot be read: {error}") from error
    if not 0 <= rest.place < rest.count or rest.number < 1:
        raise DamagedRecordError(f"place {rest.place} of {rest.count}, number {rest.number}: impossible")
    new = NewEvent(
        event_id=rest.event_id,
        bus=rest.bus,
        type=rest.type,
        payload_json=body,
        metadata_json=rest.metadata_json,
        tags=rest.tags,
        priority=rest.priority,
        delay=rest.delay,
        max_attempts=rest.max_attempts,
        parent_id=rest.parent_id,
        idempotency_key=rest.idempotency_key,
    )
    return Arrival(new, rest)


def _foreign(entry: BrokerRecord) -> NewEvent:
    headers = {name.lower().replace("ce-", "ce_"): value for name, value in entry.headers.items()}
    payload = _ANY.decode(entry.body)
    place = "-".join(map(str, entry.position))
    return new_event(
        headers.get("event_type") or headers.get("ce_type") or entry.type or "",
        payload,
        bus=headers.get("bus_id") or DEFAULT_BUS,
        event_id=_id(headers) or str(uuid.uuid5(NAMESPACE, place)),
        parent_id=headers.get("event_parent_id"),
        metadata={TRACE: headers[TRACE]} if TRACE in headers else None,
    )


def _id(headers: Mapping[str, str]) -> str | None:
    given = headers.get("event_id") or headers.get("ce_id")
    if given is None:
        return None
    try:
        return check_event_id(given)
    except DurabusError:
        # An id of CloudEvents may be any text. The same text from the same source means the same event.
        return str(uuid.uuid5(NAMESPACE, f"{headers.get('ce_source', '')} {given}"))

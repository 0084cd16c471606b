"""An event on the public lane: its payload as plain JSON, and headers that any consumer understands.

::

    subject or topic   events.{event_type} (NATS), events (Kafka)
    body               the payload, the JSON as published
    event_id, bus_id, event_type, event_parent_id, traceparent      who, where, what, from what
    ce_specversion, ce_id, ce_source, ce_type                       the same in CloudEvents' words
    durabus            what durabus needs beside it, and which piece of which publish the record is
    durabus-crc        a checksum of the body and of the header ``durabus``

A foreign producer may write there too. Its record needs only a JSON body; ``event_id`` (a UUID), ``bus_id``,
``event_type`` and ``event_parent_id`` are taken from the headers of these names, or of CloudEvents', if they are there.
Without an id the event's is made from its place in the log; without a bus it goes to the bus ``default``; on Kafka it
must have a type. What cannot be an event is skipped, counted and reported. A foreign producer must not copy the headers
``durabus`` and ``durabus-crc``: a record that has one of them is a publish of durabus, and stops the nodes if damaged.
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
"""Characters of metadata. NATS takes 64 KiB of headers."""


class Rest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The header ``durabus``: what the other headers do not say, or not exactly."""

    session: str
    number: int
    place: int
    count: int
    event_id: str
    bus: str
    type: str
    metadata_json: str | None = None
    metadata_apart: bool = False
    """An ``Attach`` command brought the metadata."""
    tags: tuple[str, ...] = ()
    priority: int = 0
    delay: float = 0.0
    max_attempts: int | None = None
    parent_id: str | None = None
    idempotency_key: str | None = None


class Arrival(NamedTuple):
    """An event that came by the public lane, and of which publish it is a piece (None: a foreign one)."""

    new: NewEvent
    rest: Rest | None


class NoEventError(ValueError):
    """The record cannot be an event."""


_ENCODER = msgspec.json.Encoder()
_REST = msgspec.json.Decoder(Rest)
_ANY = msgspec.json.Decoder()


def public_record(new: NewEvent, *, session: str, number: int, place: int, count: int) -> PublicRecord:
    """The record that publishes ``new``: the ``place``-th of ``count`` that are published together.

    Raises what is wrong with an event that was made by hand and that no node could read.
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
    """Whether the metadata is too large for a header."""
    return new.metadata_json is not None and len(new.metadata_json) > APART_FROM


def arrival(entry: BrokerRecord) -> Arrival:
    """The event in a public record. Raises ``NoEventError`` if there is none, ``DamagedRecordError`` if it was ours."""
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
        # CloudEvents' ids are any text: the same text is the same event.
        return str(uuid.uuid5(NAMESPACE, f"{headers.get('ce_source', '')} {given}"))

"""A wait: the condition of an event that a handler waits for, as a stored result, and the event that met it.

A result with the status WAITING holds an ``EventWait``. The store that finds a matching event replaces it by a result
with the status KEPT that holds this event. All stores write the same text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from durabus.errors import ConfigurationError
from durabus.model.event import Event
from durabus.model.limits import check_name
from durabus.model.pattern import check_type
from durabus.model.result import HandlerResult
from durabus.model.statuses import ResultStatus

MAX_WAIT_FIELDS = 8
MAX_WAIT_BYTES = 512
MAX_WAITS = 100
"""Maximum number of waits of one event that are not met."""
LARGEST_NUMBER = 2**53
"""Numbers of this size and more are not exact in every store."""

Scalar = str | int | float | bool | None


class EventWait(msgspec.Struct, frozen=True):
    """The next event of one bus and type, with equal fields for every entry of ``where``.

    ``shape`` (bus, type and the names of the fields) and ``key`` (their values) are the index of the stores.
    """

    shape: str
    key: str
    type: str
    where: dict[str, Scalar]
    until: float | None = None
    """No event that is stored at or after this time, by the clock of the store, meets the wait."""


class MetEvent(msgspec.Struct, frozen=True):
    """What the memo of a met wait keeps of the event."""

    id: int
    event_id: str
    type: str
    created_ms: int
    parent_id: str | None
    tags: tuple[str, ...]
    metadata: msgspec.Raw
    payload: msgspec.Raw


class _MetMemo(msgspec.Struct, frozen=True):
    event: MetEvent | None


_WAIT = msgspec.json.Decoder(EventWait)
_MEMO = msgspec.json.Decoder(_MetMemo)
_encode = msgspec.json.Encoder().encode
NOT_MET = '{"event":null}'
"""The memo of a wait that no event met in time."""


def new_wait(bus: str, event_type: str, where: Mapping[str, Scalar] | None, until: float | None) -> EventWait:
    """Return the wait for an event of exactly this type. Raises for a pattern, and for values that no store finds."""
    check_type(event_type)
    fields = {} if where is None else where
    if not isinstance(fields, Mapping):
        raise ConfigurationError(f"where={where!r}: must be a mapping from names of fields to values")
    if len(fields) > MAX_WAIT_FIELDS:
        raise ConfigurationError(f"where has {len(fields)} fields: the limit is {MAX_WAIT_FIELDS}")
    for name, value in fields.items():
        check_name(name, "field of where")
        _check_value(name, value)
    ordered = {name: fields[name] for name in sorted(fields)}
    size = len(_encode(ordered))
    if size > MAX_WAIT_BYTES:
        raise ConfigurationError(
            f"where has {size:,} bytes as JSON, the limit is {MAX_WAIT_BYTES:,}: wait for an id, not for a text"
        )
    key = key_of(ordered, tuple(ordered)) or ""
    return EventWait(shape_of(bus, event_type, tuple(ordered)), key, event_type, ordered, until)


def _check_value(name: str, value: object) -> None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(f"where[{name!r}]={value!r}: surrogates are not allowed") from error
        if "\0" in value:
            raise ConfigurationError(
                f"where[{name!r}]={value!r}: NUL is not allowed, because some stores cannot hold it"
            )
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if not (math.isfinite(value) and abs(value) < LARGEST_NUMBER):
            raise ConfigurationError(
                f"where[{name!r}]={value!r}: a number must be below 2**53, because larger ones are not exact in JSON: "
                "publish it as a string"
            )
    elif value is not None and not isinstance(value, bool):
        raise ConfigurationError(
            f"where[{name!r}]={value!r}: must be a string, a number, True, False or None, not {type(value).__name__}"
        )


def shape_of(bus: str, event_type: str, names: tuple[str, ...]) -> str:
    """Return bus, type and sorted names of fields as one text. The first two have no control characters."""
    return f"{bus}\n{event_type}\n{_encode(names).decode()}"


def prefix_of(bus: str, event_type: str) -> str:
    """Return how every shape of waits for this type begins."""
    return f"{bus}\n{event_type}\n"


def names_of(shape: str) -> tuple[str, ...]:
    """Return the names of the fields of a shape."""
    return tuple(msgspec.json.decode(shape.rpartition("\n")[2], type=list[str]))


def key_of(payload: object, names: tuple[str, ...]) -> str | None:
    """Return the values of the fields as one text; None if the payload lacks one, or one is no scalar.

    Equal JSON values have the same text: 1 and 1.0 do, 1 and true do not.
    """
    if not names:
        return ""
    if not isinstance(payload, dict):
        return None
    parts: list[str] = []
    for name in names:
        value = payload.get(name, parts)
        if value is None:
            parts.append("z")
        elif isinstance(value, bool):
            parts.append("t" if value else "f")
        elif isinstance(value, int | float):
            parts.append(f"n{value + 0.0:.17g};")  # adding 0.0 makes -0.0 equal to 0
        elif isinstance(value, str):
            parts.append(f"s{len(value.encode(errors='surrogatepass'))}:{value}")
        else:
            return None
    return "".join(parts)


def waiting(handler_id: str, wait: EventWait) -> HandlerResult:
    """Return the result that registers a wait."""
    value = _encode(wait).decode()
    return HandlerResult(handler_id=handler_id, status=ResultStatus.WAITING, attempts=1, value_json=value)


def wait_of(result: HandlerResult) -> EventWait:
    """Return the wait of a WAITING result."""
    return _WAIT.decode(result.value_json or "")


def met(result: HandlerResult, event: Event) -> HandlerResult:
    """Return the result of a wait that ``event`` met."""
    return msgspec.structs.replace(result, status=ResultStatus.KEPT, value_json=memo_of(event))


def memo_of(event: Event) -> str:
    """Return the memo of a wait that ``event`` met. PostgreSQL and Redis write the same text."""
    parent = "null" if event.parent_id is None else f'"{event.parent_id}"'
    return (
        f'{{"event":{{"id":{event.id},"event_id":"{event.event_id}","type":{_encode(event.type).decode()},'
        f'"created_ms":{math.floor(event.created_ts * 1000 + 0.5)},"parent_id":{parent},'
        f'"tags":{_encode(event.tags).decode()},"metadata":{event.metadata_json or "null"},'
        f'"payload":{event.payload_json}}}}}'
    )


def met_event(memo: str, bus: str) -> Event | None:
    """Return the event of a memo, as it was published; None if no event came in time."""
    kept = _MEMO.decode(memo).event
    if kept is None:
        return None
    created, metadata = kept.created_ms / 1000, bytes(kept.metadata).decode()
    return Event(
        id=kept.id,
        event_id=kept.event_id,
        bus=bus,
        type=kept.type,
        payload_json=bytes(kept.payload).decode(),
        metadata_json=None if metadata == "null" else metadata,
        tags=kept.tags,
        parent_id=kept.parent_id,
        created_ts=created,
        updated_ts=created,
        due_ts=created,
    )

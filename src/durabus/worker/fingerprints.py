"""Fingerprints of the arguments of a step: equal arguments have equal ones, in every process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from pathlib import PurePath
from typing import Any
from uuid import UUID

import msgspec

from durabus.errors import InvalidPayloadError
from durabus.model.event import Event
from durabus.model.payload import encode_payload


def fingerprint(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return a short digest of the arguments. Of one without a value of its own, such as a client, the type counts."""
    parts = [*map(_text_of, args), *(f"{name}={_text_of(kwargs[name])}" for name in sorted(kwargs))]
    return blake2b("\n".join(parts).encode(errors="surrogatepass"), digest_size=8).hexdigest()


def _text_of(argument: object) -> str:
    if isinstance(argument, Event):
        return argument.event_id  # its attempts and errors change
    try:
        return encode_payload(argument, "arguments")
    except InvalidPayloadError:
        pass  # no JSON
    try:
        return _exact(argument)
    except RecursionError:
        return _type_of(argument)  # it contains itself


def _exact(value: object) -> str:
    """Return type and value as a text."""
    text = next((text_of(value) for kinds, text_of in _TEXTS if isinstance(value, kinds)), None)
    if text is None:
        fields = _fields_of(value)
        text = None if fields is None else _pairs(fields)
    return _type_of(value) if text is None else f"{_type_of(value)}({text})"


def _type_of(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _fields_of(value: Any) -> Mapping[str, Any] | None:
    """Return the fields of a dataclass, msgspec struct or pydantic model; None if it is none of them."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name, None) for name in value.__struct_fields__}
    return dict(value) if hasattr(value, "model_dump") else None


def _pairs(mapping: Mapping[Any, Any]) -> str:
    return _joined(sorted(f"{_exact(key)}: {_exact(item)}" for key, item in mapping.items()))


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(texts)


_TEXTS: tuple[tuple[type | tuple[type, ...], Callable[[Any], str]], ...] = (
    (Event, lambda event: event.event_id),
    (Enum, lambda member: str(member.name)),
    ((Decimal, UUID, date, time, timedelta, PurePath), str),
    ((bytes, bytearray), lambda octets: octets.hex()),
    ((str, float, bool, type(None)), repr),
    (int, hex),
    (Mapping, _pairs),
    ((set, frozenset), lambda items: _joined(sorted(map(_exact, items)))),
    ((list, tuple), lambda items: _joined(map(_exact, items))),
)
"""How the value of each type becomes a text. The first line that fits counts."""

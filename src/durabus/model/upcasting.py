"""Upcasters: pure functions that turn a payload of an older schema version into one of a newer version.

::

    @upcast("order.placed", 1, 2)
    def with_currency(payload):
        return {**payload, "currency": "EUR"}

An event names the version of its payload in its metadata, as ``schema_version``; without it, the version is 1. The
store keeps the payload as it was published. Handlers, projections of the log and the pipeline see the newest version:
the upcasters run one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from durabus.errors import ConfigurationError, PayloadDecodeError
from durabus.model.pattern import check_type
from durabus.model.payload import decode_payload, encode_payload

SCHEMA_VERSION = "schema_version"
"""The metadata key with the version of the payload's schema."""

F = TypeVar("F", bound=Callable[[Any], Any])


class Upcaster(msgspec.Struct, frozen=True):
    """One step: ``function`` returns the payload of version ``to``."""

    to: int
    function: Callable[[Any], Any]


_UPCASTERS: dict[str, dict[int, Upcaster]] = {}
"""The upcasters of each event type, by the version that they take."""


def upcast(event_type: str, from_version: int, to_version: int) -> Callable[[F], F]:
    """Register the decorated function: it takes a payload of ``from_version`` and returns one of ``to_version``.

    It must return a new value and depend on its argument alone. Raises ``ConfigurationError`` if another function is
    registered for this version.
    """
    check_type(event_type)
    if not 1 <= from_version < to_version:
        raise ConfigurationError(
            f"upcast({event_type!r}, {from_version}, {to_version}): versions begin at 1, and the second must be larger"
        )

    def register(function: F) -> F:
        steps = _UPCASTERS.setdefault(event_type, {})
        known = steps.get(from_version)
        if known is not None and _name_of(known.function) != _name_of(function):  # a module may be loaded again
            raise ConfigurationError(
                f"upcast({event_type!r}, {from_version}, …) is registered twice: as {_name_of(known.function)} and "
                f"{_name_of(function)}"
            )
        steps[from_version] = Upcaster(to_version, function)
        return function

    return register


def _name_of(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', repr(function))}"


def upcasters_of(event_type: str) -> dict[int, Upcaster]:
    """Return the upcasters of an event type, by the version that they take."""
    return _UPCASTERS.get(event_type, {})


def upcasted_types() -> list[str]:
    """Return the event types that have upcasters."""
    return sorted(_UPCASTERS)


def schema_version(metadata_json: str | None) -> int:
    """Return the version that the metadata name; 1 if they name none."""
    given = "" if metadata_json is None else str(decode_payload(metadata_json).get(SCHEMA_VERSION))
    return int(given) if given.isascii() and given.isdigit() else 1


def newest_payload(steps: dict[int, Upcaster], metadata_json: str | None, payload: Any) -> Any:
    """Return the payload after all upcasters that its version needs. Raises ``PayloadDecodeError`` if one fails."""
    version = schema_version(metadata_json)
    while (step := steps.get(version)) is not None:
        try:
            payload = step.function(payload)
        except Exception as error:
            raise PayloadDecodeError(
                f"the upcaster from version {version} to {step.to} failed: {type(error).__name__}: {error}"
            ) from error
        version = step.to
    return payload


def decode_newest(event_type: str, metadata_json: str | None, payload_json: str) -> Any:
    """Decode a payload, in the newest version of its schema."""
    payload = decode_payload(payload_json)
    steps = _UPCASTERS.get(event_type)
    return payload if steps is None else newest_payload(steps, metadata_json, payload)


def newest_json(event_type: str, metadata_json: str | None, payload_json: str) -> str:
    """Return the JSON text of a payload in the newest version of its schema."""
    steps = _UPCASTERS.get(event_type)
    if steps is None or schema_version(metadata_json) not in steps:
        return payload_json
    return encode_payload(newest_payload(steps, metadata_json, decode_payload(payload_json)))

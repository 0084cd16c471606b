"""Convert what users may pass as event, pattern and mode into the values that the core uses."""

from __future__ import annotations

from dataclasses import is_dataclass
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from durabus.errors import ConfigurationError, InvalidEventError
from durabus.model.pattern import ANY
from durabus.worker.handler import HandlerFunction

E = TypeVar("E", bound=StrEnum)


def type_name(event_class: type) -> str:
    """The event type of a class: its ``event_type`` attribute if it has one, else its name."""
    name = getattr(event_class, "event_type", event_class.__name__)
    return name if isinstance(name, str) else event_class.__name__


def result_type(event: object) -> Any:
    """What handlers of this event, or class of events, return: its ``event_result_type``; None if it has none."""
    return getattr(event, "event_result_type", None)


def typed_event(event: object, payload: object) -> tuple[str, object]:
    """Return the type and the payload of an event that is an object of its own class."""
    known = is_dataclass(event) or isinstance(event, msgspec.Struct) or hasattr(event, "model_dump")
    if not known or isinstance(event, type):
        raise InvalidEventError(
            f"event type={event!r}: must be a string, or one object (dataclass, msgspec struct, pydantic model)"
        )
    if payload is not None:
        raise InvalidEventError(f"{event!r} is an event of its own: a payload beside it would be lost")
    return type_name(type(event)), event


def pattern_and_function(
    pattern: str | type | HandlerFunction, handler: HandlerFunction | None
) -> tuple[str, HandlerFunction]:
    """Return pattern and handler for both ways to subscribe: with a pattern, or to all events."""
    if handler is None:
        if isinstance(pattern, str | type):
            raise ConfigurationError(f"subscribe({pattern!r}) has no handler: call subscribe(pattern, handler)")
        return ANY, pattern
    return pattern_of(pattern), handler


def pattern_of(pattern: object) -> str:
    """Return the pattern for a string or an event class."""
    if isinstance(pattern, str):
        return pattern
    if isinstance(pattern, type):
        return type_name(pattern)
    raise ConfigurationError(f"pattern={pattern!r}: must be a string such as 'user.*', or an event class")


def choice(kind: type[E], value: E | str, option: str) -> E:
    """Return ``value`` as a member of ``kind``."""
    try:
        return kind(value)
    except ValueError:
        raise ConfigurationError(f"{option}={value!r}: must be one of {[one.value for one in kind]}") from None

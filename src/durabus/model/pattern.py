"""Event type globs: ``*`` stands for one segment between dots, a lone ``*`` for every type.

Matching compares segments one by one: linear in the length of the type, no backtracking, no regular expressions.
"""

from __future__ import annotations

from durabus.errors import InvalidEventError
from durabus.model.limits import check_name

ANY = "*"


FOREIGN_WILDCARDS = frozenset({">", "#", "+", "?", "%", "**"})
"""Segments that stand for others in NATS, AMQP, MQTT, shells and SQL. Here they would match nothing but themselves."""


def check_pattern(pattern: str) -> str:
    """Return ``pattern``, or raise if it is no pattern of event types."""
    for segment in _segments(pattern, "pattern"):
        if segment == ANY:
            continue
        if segment in FOREIGN_WILDCARDS:
            raise InvalidEventError(
                f"pattern={pattern!r}: {segment!r} is no wildcard here. '*' stands for exactly one segment, and a lone "
                "'*' for every type: write 'order.*', 'order.*.shipped' or '*'"
            )
        if ANY in segment:
            raise InvalidEventError(
                f"pattern={pattern!r}: in {segment!r} the star is only a part of the segment, but it stands for a "
                "whole one: write 'user.*', 'order.*.shipped' or '*'"
            )
    return pattern


def check_type(event_type: str) -> str:
    """Return ``event_type``, or raise if no event may have it."""
    _segments(event_type, "event type")
    if ANY in event_type:
        raise InvalidEventError(f"event type={event_type!r}: a star belongs into patterns, not into types")
    return event_type


def _segments(name: str, what: str) -> list[str]:
    """The parts between the dots. None is empty, and there is no space in any."""
    if " " in check_name(name, what):
        hint = name.strip(" ").replace(" ", "_")
        raise InvalidEventError(f"{what}={name!r}: spaces are not allowed. Did you mean {hint!r}?")
    segments = name.split(".")
    if "" in segments:
        hint = ".".join(segment for segment in segments if segment) or "order.placed"
        raise InvalidEventError(
            f"{what}={name!r}: there must be a name before and after every dot. Did you mean {hint!r}?"
        )
    return segments


def matches(pattern: str, event_type: str) -> bool:
    """Whether ``pattern`` covers ``event_type``."""
    if pattern in (ANY, event_type):
        return True
    if ANY not in pattern:
        return False
    wanted, actual = pattern.split("."), event_type.split(".")
    return len(wanted) == len(actual) and all(w in (ANY, a) for w, a in zip(wanted, actual, strict=True))

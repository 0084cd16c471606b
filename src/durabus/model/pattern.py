"""Patterns of event types: ``*`` stands for one segment between dots, a lone ``*`` for every type.

Matching compares the segments one by one. It takes time linear in the length of the type, without regular expressions.
"""

from __future__ import annotations

from durabus.errors import InvalidEventError
from durabus.model.limits import check_name

ANY = "*"


FOREIGN_WILDCARDS = frozenset({">", "#", "+", "?", "%", "**"})
"""Wildcards of NATS, AMQP, MQTT, shells and SQL. Here they would match only themselves, so they are refused."""


def check_pattern(pattern: str) -> str:
    """Return ``pattern``, or raise if it is not a pattern of event types."""
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
                f"pattern={pattern!r}: in {segment!r} the star is only a part of the segment, but it must be the "
                "whole segment: write 'user.*', 'order.*.shipped' or '*'"
            )
    return pattern


def check_type(event_type: str) -> str:
    """Return ``event_type``, or raise if it is not a valid type."""
    _segments(event_type, "event type")
    if ANY in event_type:
        raise InvalidEventError(f"event type={event_type!r}: a star is allowed in patterns, not in types")
    return event_type


def _segments(name: str, what: str) -> list[str]:
    """Return the parts between the dots, or raise if a part is empty or contains a space."""
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
    """Return whether ``pattern`` matches ``event_type``."""
    if pattern in (ANY, event_type):
        return True
    if ANY not in pattern:
        return False
    wanted, actual = pattern.split("."), event_type.split(".")
    return len(wanted) == len(actual) and all(w in (ANY, a) for w, a in zip(wanted, actual, strict=True))

"""Event type globs: ``*`` stands for one segment between dots, a lone ``*`` for every type.

Matching compares segments one by one: linear in the length of the type, no backtracking, no regular expressions.
"""

from __future__ import annotations

from durabus.errors import InvalidEventError
from durabus.model.limits import check_name

ANY = "*"


def check_pattern(pattern: str) -> str:
    """A pattern as a subscriber may write it."""
    check_name(pattern, "pattern")
    odd = next((part for part in pattern.split(".") if ANY in part and part != ANY), None)
    if odd is not None:
        raise InvalidEventError(
            f"pattern={pattern!r}: in {odd!r} the star is only a part of the segment, but it stands for a whole one: "
            "write 'user.*', 'order.*.shipped' or '*'"
        )
    return pattern


def matches(pattern: str, event_type: str) -> bool:
    """Whether ``pattern`` covers ``event_type``."""
    if pattern in (ANY, event_type):
        return True
    if ANY not in pattern:
        return False
    wanted, actual = pattern.split("."), event_type.split(".")
    return len(wanted) == len(actual) and all(w in (ANY, a) for w, a in zip(wanted, actual, strict=True))

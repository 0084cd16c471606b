"""Figures as people read them. They are the templates' filters."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
THOUSAND = 1000.0
MAX_SHOWN_CHARS = 100_000
UNKNOWN = "\N{EN DASH}"


def number(value: float | None) -> str:
    """12,345; a dash if it is not known."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Per second: three digits that matter."""
    if value is None:
        return UNKNOWN
    if value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"  # noqa: PLR2004


def percent(value: float | None) -> str:
    """A share of 1."""
    if value is None:
        return UNKNOWN
    return f"{value * 100:.0f} %" if value in (0, 1) or value >= 0.1 else f"{value * 100:.1f} %"  # noqa: PLR2004


def duration(seconds: float | None) -> str:
    """850 ms, 12.3 s, 4 min, 3 h, 12 d."""
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        milliseconds = max(seconds, 0.0) * THOUSAND
        return f"{milliseconds:.1f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"  # noqa: PLR2004
    if seconds < MINUTE:
        return f"{seconds:.0f} s" if seconds == int(seconds) else f"{seconds:.1f} s"
    if seconds < HOUR:
        return f"{seconds / MINUTE:.0f} min"
    return f"{seconds / HOUR:.0f} h" if seconds < 2 * DAY else f"{seconds / DAY:,.0f} d"


def ago(instant: float | None, now: float) -> str:
    """How long it is from ``instant`` to ``now``, in either direction."""
    if instant is None:
        return UNKNOWN
    return f"{duration(now - instant)} ago" if instant <= now else f"in {duration(instant - now)}"


def clock(instant: float) -> str:
    """12:04:05.123, with the day if it is not part of the page's own."""
    return datetime.fromtimestamp(instant, UTC).strftime("%H:%M:%S.%f")[:-3]


def iso(instant: float) -> str:
    """For machines, and for those who point at a relative time."""
    return datetime.fromtimestamp(instant, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def status(value: str) -> str:
    """COMPLETED_WITH_ERRORS as words."""
    return value.replace("_", " ").lower()


def pretty(text: str | None) -> str:
    """Stored JSON, indented; what was damaged by hand is shown as it is. Very long ones are cut."""
    if text is None:
        return ""
    try:
        shown = msgspec.json.format(text.encode(), indent=2).decode()
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        shown = text
    return shown if len(shown) <= MAX_SHOWN_CHARS else shown[:MAX_SHOWN_CHARS] + "\n… cut here"


def first_line(text: str | None) -> str:
    """The line of an error that says most."""
    return (text or "").strip().partition("\n")[0]


FILTERS: dict[str, Callable[..., Any]] = {
    "number": number,
    "rate": rate,
    "percent": percent,
    "duration": duration,
    "ago": ago,
    "clock": clock,
    "iso": iso,
    "status": status,
    "pretty": pretty,
    "first_line": first_line,
}

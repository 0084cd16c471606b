"""Formats numbers, durations and times for people. The templates use these functions as filters."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
THOUSAND, MILLION = 1000.0, 1_000_000
MAX_SHOWN_CHARS = 100_000
SHORT_CHARS = 120
UNKNOWN = "\N{EN DASH}"


def number(value: float | None) -> str:
    """A number such as 12,345; a dash if it is unknown."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def plural(count: int, noun: str) -> str:
    """A count with its noun: "1 event", "2 events"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def rate(value: float | None) -> str:
    """A rate per second with up to three digits; a dash if it is unknown."""
    if value is None:
        return UNKNOWN
    if value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"  # noqa: PLR2004


def percent(value: float | None) -> str:
    """A share of 1 as a percentage."""
    if value is None:
        return UNKNOWN
    return f"{value * 100:.0f} %" if value in (0, 1) or value >= 0.1 else f"{value * 100:.1f} %"  # noqa: PLR2004


def duration(seconds: float | None) -> str:
    """A duration such as 850 ms, 12.3 s, 4 min, 3 h or 12 d."""
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


def disk_size(size: int | None) -> str:
    """A size such as 7 kB, 1.25 MB or 7,654 MB; a dash if it is unknown."""
    if size is None:
        return UNKNOWN
    if size < MILLION:
        return f"{size / THOUSAND:.0f} kB"
    return f"{size / MILLION:,.2f} MB" if size < 10 * MILLION else f"{size / MILLION:,.0f} MB"


def ago(instant: float | None, now: float) -> str:
    """The time between ``instant`` and ``now``: "3 s ago" or "in 3 s"."""
    if instant is None:
        return UNKNOWN
    return f"{duration(now - instant)} ago" if instant <= now else f"in {duration(instant - now)}"


def clock(instant: float) -> str:
    """The time of day in UTC, such as 12:04:05.123."""
    return datetime.fromtimestamp(instant, UTC).strftime("%H:%M:%S.%f")[:-3]


def iso(instant: float) -> str:
    """The full time in ISO 8601, for programs and tooltips."""
    return datetime.fromtimestamp(instant, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def status(value: str) -> str:
    """A status as words: "completed with errors"."""
    return value.replace("_", " ").lower()


def pretty(text: str | None, most: int = MAX_SHOWN_CHARS) -> str:
    """Stored JSON, indented. Invalid JSON is shown unchanged; a text of more than ``most`` characters is cut."""
    if text is None:
        return ""
    try:
        shown = msgspec.json.format(text.encode(), indent=2).decode()
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        shown = text
    return shown if len(shown) <= most else shown[:most] + "\n… cut here"


def first_line(text: str | None) -> str:
    """The first line of a text."""
    return (text or "").strip().partition("\n")[0]


def short(text: str) -> str:
    """The beginning of a text, for one line."""
    return text if len(text) <= SHORT_CHARS else text[:SHORT_CHARS] + "…"


FILTERS: dict[str, Callable[..., Any]] = {
    "number": number,
    "plural": plural,
    "rate": rate,
    "percent": percent,
    "duration": duration,
    "disk_size": disk_size,
    "ago": ago,
    "clock": clock,
    "iso": iso,
    "status": status,
    "pretty": pretty,
    "first_line": first_line,
    "short": short,
}

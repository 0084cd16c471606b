"""When a schedule is due: cron expressions in a time zone, and intervals. Instants are whole milliseconds since 1970.

A slot is one instant at which a schedule is due. Slots follow Debian's cron, also where clocks are put forward or back:

- If the minute and the hour are both fixed, as in ``30 2 * * *``, the slot exists once a day. A time that the clock
  skips moves to the first minute after the gap. Of a time that comes twice, the first one is the slot.
- If the minute or the hour begins with a star, as in ``*/30 * * * *``, the slots follow the time that has passed: none
  in the hour that is skipped, and one for each pass of the hour that comes twice.
"""

from __future__ import annotations

import difflib
import re
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import msgspec
from cronsim import CronSim, CronSimError

from durabus.errors import ConfigurationError
from durabus.model.limits import Duration, seconds

SECOND, HOUR, DAY = 1_000, 3_600_000, 86_400_000
MIN_EVERY = 0.1
"""The shortest interval, in seconds."""
MAX_CRON_CHARS = 255
FIELDS = (
    ("minute", "0-59"),
    ("hour", "0-23"),
    ("day of month", "1-31 or L"),
    ("month", "1-12 or JAN-DEC"),
    ("day of week", "0-7 or SUN-SAT"),
)
_WINDOWS = (HOUR, DAY, 32 * DAY, 367 * DAY, 8 * 366 * DAY)


def milliseconds(seconds_: float) -> int:
    """Return an instant of the store's clock as a slot is written. A slot that is reached must not seem to be ahead."""
    return int(seconds_ * SECOND + 1e-3)


class Cron(msgspec.Struct, frozen=True):
    """The slots of a cron expression in a time zone."""

    expression: str
    tz: str

    def after(self, instant: int) -> int | None:
        """Return the first slot after ``instant``; None if there is none within fifty years."""
        local = datetime.fromtimestamp(instant // SECOND, zone(self.tz))
        for found in CronSim(self.expression, local):
            slot = int(found.timestamp()) * SECOND
            if slot > instant:  # in an hour that comes twice, the parser may return a time of its first pass
                return slot
        return None


class Interval(msgspec.Struct, frozen=True):
    """The slots at ``anchor`` and every ``every`` milliseconds after it."""

    every: int
    anchor: int

    def after(self, instant: int) -> int | None:
        """Return the first slot after ``instant``."""
        return self.anchor + ((instant - self.anchor) // self.every + 1) * self.every


Timing = Cron | Interval


def newest_slot(timing: Timing, first: int, now: int) -> int:
    """Return the newest slot that is not after ``now``. ``first`` is a slot, and not after ``now``.

    The time that this takes does not depend on how long ago ``first`` is.
    """
    if isinstance(timing, Interval):
        return max(first, timing.anchor + (now - timing.anchor) // timing.every * timing.every)
    slot = first
    for window in _WINDOWS:
        found = timing.after(now - window) if now - window > first else first
        if found is not None and found <= now:
            slot = found
            break
    while (following := timing.after(slot)) is not None and following <= now:
        slot = following
    return slot


def check_cron(expression: str) -> str:
    """Return a cron expression, or raise ``ConfigurationError`` with the place of the mistake."""
    if not isinstance(expression, str) or len(expression) > MAX_CRON_CHARS:
        raise ConfigurationError(
            f"cron={expression!r:.300}: must be a text of at most {MAX_CRON_CHARS} characters, such as '*/5 * * * *'"
        )
    fields = list(re.finditer(r"\S+", expression))
    if len(fields) != len(FIELDS):
        raise ConfigurationError(
            f"cron={expression!r}: has {len(fields)} fields, and must have 5: minute, hour, day of month, month, day "
            "of week. For intervals of seconds, give every= and no cron"
        )
    for number, (field, (name, values)) in enumerate(zip(fields, FIELDS, strict=True)):
        place = field.start() + 1
        for term in field[0].split(","):
            alone = ["*"] * len(FIELDS)
            alone[number] = term
            if not term or not _parses(" ".join(alone)):
                raise ConfigurationError(
                    f"cron={expression!r}: {term!r} at character {place} is no {name} ({values}; also *, ranges such "
                    "as 1-5, steps such as */5, and lists with commas)"
                )
            place += len(term) + 1
    if not _parses(expression) or Cron(expression, "UTC").after(0) is None:
        raise ConfigurationError(
            f"cron={expression!r}: no date matches the day {fields[2][0]!r} at character {fields[2].start() + 1} in "
            f"the month {fields[3][0]!r} on the day of week {fields[4][0]!r}"
        )
    return expression


def check_every(every: Duration) -> float:
    """Return an interval in seconds, or raise ``ConfigurationError`` if it is too short."""
    found = seconds(every, "every", allow_zero=False)
    if found < MIN_EVERY:
        raise ConfigurationError(f"every={found:g}: must be at least {MIN_EVERY:g} s")
    return round(found, 3)


def zone(name: str) -> tzinfo:
    """Return a time zone by its name. Raises ``ConfigurationError`` if this machine does not know it."""
    if name == "UTC":
        return UTC
    if isinstance(name, str) and name:
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            pass
    known = available_timezones()
    alike = difflib.get_close_matches(name, known, 1) if isinstance(name, str) else []
    hint = f"; is {alike[0]!r} meant?" if alike else ", such as 'Europe/Oslo'"
    if not known:
        hint = ": this machine has no time zones, install them with `pip install tzdata`"
    raise ConfigurationError(f"tz={name!r:.100}: is no time zone{hint}")


def _parses(expression: str) -> bool:
    try:
        CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC))
    except (CronSimError, ValueError):
        return False
    return True

"""What a read of ``format("durabus")`` wants of the log: its columns and rows, as the options say."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from typing import Any

from durabus.errors import ConfigurationError
from durabus.model.log_entry import LOG_COLUMNS
from durabus.model.pattern import check_pattern, matches
from durabus.model.statuses import Action
from durabus.pipeline.schema import ARROW

_BUS, _TYPE, _ACTION, _AT = (LOG_COLUMNS.index(name) for name in ("bus", "type", "action", "at_ts"))


class ReadRequest:
    """The columns to read, and the conditions for entries. An entry must meet every condition that is set."""

    def __init__(self, options: Mapping[str, str], columns: Sequence[str] = ARROW.names) -> None:
        self.columns = columns
        self._bus = options.get("bus")
        self._type = check_pattern(options["type"]) if "type" in options else None
        self._actions = (
            frozenset(Action(name) for name in options["action"].split(",")) if "action" in options else None
        )
        self._since, self._before = instant_option(options, "since"), instant_option(options, "before")
        self._by_event = self._bus is not None or self._type is not None
        self._by_entry = self._actions is not None or self._since is not None or self._before is not None
        self.payloads = truth_option(options, "payloads", default=True) and "payload" in columns
        self._types: dict[str, bool] = {}

    @property
    def everything(self) -> bool:
        """Whether every entry is wanted."""
        return not self._by_event and not self._by_entry

    def of_event(self, row: tuple[Any, ...]) -> bool:
        """Return whether the event of this row meets the conditions. All entries of an event have one bus and type."""
        if not self._by_event:
            return True
        event_type = row[_TYPE]
        wanted = self._types.get(event_type)
        if wanted is None:
            wanted = self._types[event_type] = self._type is None or matches(self._type, event_type)
        return wanted and self._bus in (None, row[_BUS])

    def of_entry(self, row: tuple[Any, ...]) -> bool:
        """Return whether this row itself meets the conditions."""
        return not self._by_entry or (
            (self._actions is None or row[_ACTION] in self._actions)
            and (self._since is None or row[_AT] >= self._since)
            and (self._before is None or row[_AT] < self._before)
        )


def instant_option(options: Mapping[str, str], name: str) -> float | None:
    """Return the value of an option, an instant, in seconds since 1970; None if it is not set."""
    given = options.get(name)
    if given is None:
        return None
    try:
        instant = datetime.fromisoformat(given)
    except ValueError as error:
        raise ConfigurationError(f"{name}={given!r}: must be an instant, such as 2026-11-18T09:30:00") from error
    return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()


def truth_option(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return the value of an option, which must be true or false."""
    given = options.get(name)
    if given is None:
        return default
    if given.lower() not in ("true", "false"):
        raise ConfigurationError(f"{name}={given!r}: must be true or false")
    return given.lower() == "true"


def whole_option(options: MutableMapping[str, str], name: str, default: int) -> int:
    """Return the value of an option, which must be a whole number of 1 or more."""
    given = options.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdigit()) or int(given) < 1:
        raise ConfigurationError(f"{name}={given!r}: must be a whole number of 1 or more")
    return int(given)

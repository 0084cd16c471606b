"""Failures of commands: exit codes, and one block of text that says what failed, why, and what to do.

::

    0  done                       3  the store cannot be reached or is unknown
    1  the operation failed       4  not found
    2  wrong usage                5  conflict: the event's status does not allow it
                                130  interrupted; 143 terminated (the demo)
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import IntEnum
from importlib.util import find_spec

from durabus.errors import (
    ConfigurationError,
    DamagedLogError,
    DurabusError,
    EventEnded,
    EventNotFound,
    InvalidEventError,
    InvalidPayloadError,
    LeaseLost,
    NotADeadLetter,
    ScheduleChanged,
    ScheduleNotFound,
    SchemaError,
    StoreError,
    UnknownStoreError,
    UnsupportedByStore,
)


class Exit(IntEnum):
    """Exit codes."""

    OK = 0
    FAILED = 1
    USAGE = 2
    STORE = 3
    NOT_FOUND = 4
    CONFLICT = 5
    INTERRUPTED = 130


CONFLICTS: dict[type[DurabusError], str] = {
    EventEnded: "the event has ended",
    LeaseLost: "another worker holds the event",
    ScheduleChanged: "the schedule was not changed",
}


class CommandFailed(Exception):  # noqa: N818  (the name is a sentence)
    """Ends a command with a message for people and a code for scripts."""

    def __init__(self, what: str, why: str = "", hint: str = "", *, code: Exit = Exit.FAILED) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.hint = hint
        self.code = code


def require_installed(packages: Sequence[str], *, what: str, extras: str) -> None:
    """Refuse a command if one of the packages is not installed. ``extras`` are those of durabus that bring them."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise CommandFailed(
            f"{what} is not installed", f"it needs {', '.join(missing)}", f"pip install 'durabus[{extras}]'"
        )


def from_error(error: DurabusError) -> CommandFailed:
    """The failure to show for an error of the library."""
    why = str(error)
    match error:
        case UnknownStoreError():
            hint = "to use a file in this folder: --store sqlite:///bus.db"
            return CommandFailed("unknown store", why, hint, code=Exit.STORE)
        case SchemaError():
            return _from_schema_error(why)
        case UnsupportedByStore():
            return CommandFailed("this store cannot do that", why, code=Exit.FAILED)
        case StoreError():
            return _from_store_error(error)
        case EventNotFound() | ScheduleNotFound():
            what = "event" if isinstance(error, EventNotFound) else "schedule"
            hint = f"`durabus {what}s list` lists the {what}s"
            return CommandFailed(f"{what} not found", why, hint, code=Exit.NOT_FOUND)
        case NotADeadLetter():
            hint = "`durabus events show ID` shows its status"
            return CommandFailed("not a dead letter", why, hint, code=Exit.CONFLICT)
        case EventEnded() | LeaseLost() | ScheduleChanged():
            return CommandFailed(CONFLICTS[type(error)], why, code=Exit.CONFLICT)
        case InvalidPayloadError():
            return CommandFailed("the payload cannot be stored", why, code=Exit.USAGE)
        case InvalidEventError() | ConfigurationError():
            return CommandFailed("invalid argument", why, code=Exit.USAGE)
        case _:
            return CommandFailed("the operation failed", why)


def _from_store_error(error: StoreError) -> CommandFailed:
    what = "cannot use the store"
    hint = "check --store (file: path, permissions, free space; server: is it running?), then try again"
    if isinstance(error, DamagedLogError):
        what, hint = "the broker's log is damaged", "docs/howto/repair-a-damaged-log.md says what to do"
    return CommandFailed(what, str(error), hint, code=Exit.STORE)


def _from_schema_error(why: str) -> CommandFailed:
    """The failure for a ``SchemaError``. The library has one class for five causes; the text tells which it is."""
    what = "the store's tables do not match this version"
    hint = "`durabus db status` shows the difference, `durabus db migrate` upgrades an older schema"
    if "by a newer durabus" in why:
        what, hint = "a newer durabus made this store", "upgrade durabus: pip install --upgrade durabus"
    elif "was made as shard" in why or "published through shards" in why:
        what, hint = (
            "the shards do not match",
            "name the same shards in --store, in the same order, or use empty stores",
        )
    elif "is not an SQLite database" in why:
        what, hint = "not a database", "check the path in --store or the file name"
    elif "is no durabus store" in why:
        what, hint = "not a store", "use a file that `durabus db backup` wrote"
    return CommandFailed(what, why, hint, code=Exit.STORE)


def report(failure: CommandFailed) -> int:
    """Print the failure to stderr. Returns the exit code."""
    lines = [f"error: {failure.what}"]
    lines += [f"  {line}" for line in failure.why.splitlines()]
    if failure.hint:
        lines.append(f"hint:  {failure.hint}")
    text = "\n".join(lines)
    if sys.stderr.isatty():
        text = text.replace("error:", "\033[1;31merror:\033[0m", 1).replace("\nhint: ", "\n\033[1;36mhint:\033[0m ", 1)
    print(text, file=sys.stderr)
    return failure.code

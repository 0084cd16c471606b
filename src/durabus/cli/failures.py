"""What goes wrong on the command line: exit codes, and one block of text that says what, why and what to do.

::

    0  done                       3  the store cannot be reached or is unknown
    1  the operation failed       4  not found
    2  wrong usage                5  conflict: the event is not in a state for this
                                130  interrupted; 143 terminated (the demo)
"""

from __future__ import annotations

import sys
from enum import IntEnum

from durabus.errors import (
    ConfigurationError,
    DamagedLogError,
    DurabusError,
    EventNotFound,
    InvalidEventError,
    InvalidPayloadError,
    LeaseLost,
    NotADeadLetter,
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


class CommandFailed(Exception):  # noqa: N818  (reads as the sentence it is)
    """Ends a command with a message for people and a code for scripts."""

    def __init__(self, what: str, why: str = "", hint: str = "", *, code: Exit = Exit.FAILED) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.hint = hint
        self.code = code


def from_error(error: DurabusError) -> CommandFailed:
    """The block for an error that the library raised."""
    why = str(error)
    match error:
        case UnknownStoreError():
            hint = "for a file in this folder use --store sqlite:///bus.db"
            return CommandFailed("unknown store", why, hint, code=Exit.STORE)
        case SchemaError():
            return _from_schema_error(why)
        case UnsupportedByStore():
            return CommandFailed("this store cannot do that", why, code=Exit.FAILED)
        case StoreError():
            return _from_store_error(error)
        case EventNotFound():
            return CommandFailed(
                "event not found", why, "`durabus events list` shows what there is", code=Exit.NOT_FOUND
            )
        case NotADeadLetter():
            hint = "`durabus events show ID` shows where it stands"
            return CommandFailed("not a dead letter", why, hint, code=Exit.CONFLICT)
        case LeaseLost():
            return CommandFailed("somebody else holds the event", why, code=Exit.CONFLICT)
        case InvalidPayloadError():
            return CommandFailed("the payload cannot be stored", why, code=Exit.USAGE)
        case InvalidEventError() | ConfigurationError():
            return CommandFailed("invalid argument", why, code=Exit.USAGE)
        case _:
            return CommandFailed("the operation failed", why)


def _from_store_error(error: StoreError) -> CommandFailed:
    what = "cannot use the store"
    hint = "check --store (a file: path, permissions, free space; a server: is it up), then try again"
    if isinstance(error, DamagedLogError):
        what, hint = "the broker's log is damaged", "docs/howto/repair-a-damaged-log.md says what to do"
    return CommandFailed(what, str(error), hint, code=Exit.STORE)


def _from_schema_error(why: str) -> CommandFailed:
    """One class for the library, but four things to do: told apart by what the error says."""
    what = "the store's tables do not fit this version"
    hint = "`durabus db status` shows the difference, `durabus db migrate` upgrades an older schema"
    if "by a newer durabus" in why:
        what, hint = "the store is from a newer durabus", "upgrade durabus: pip install --upgrade durabus"
    elif "was made as shard" in why or "published through shards" in why:
        what, hint = "these stores are not these shards", "name them in --store as at the first time, or empty ones"
    elif "is not an SQLite database" in why:
        what, hint = "not a database", "check the path in --store, or the name of the file"
    elif "is no durabus store" in why:
        what, hint = "not a store", "name a file that `durabus db backup` made"
    return CommandFailed(what, why, hint, code=Exit.STORE)


def report(failure: CommandFailed) -> int:
    """Print the block to stderr; answers the exit code."""
    lines = [f"error: {failure.what}"]
    lines += [f"  {line}" for line in failure.why.splitlines()]
    if failure.hint:
        lines.append(f"hint:  {failure.hint}")
    text = "\n".join(lines)
    if sys.stderr.isatty():
        text = text.replace("error:", "\033[1;31merror:\033[0m", 1).replace("\nhint: ", "\n\033[1;36mhint:\033[0m ", 1)
    print(text, file=sys.stderr)
    return failure.code

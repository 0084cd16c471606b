"""What is wrong with a log, and which records are ours.

Every record that durabus writes, on either lane, carries the header ``durabus-crc``: a checksum of its bytes. A record
without it is somebody else's, and is skipped. A record with it must be whole: a node that skipped a damaged one would
decide otherwise than a node that read it from a sound copy. So the node stops.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping

from durabus.backends.fold.transport import Entry, Position
from durabus.clock import monotonic
from durabus.errors import DamagedLogError

CRC = "durabus-crc"
SETTLED_WITHIN = 10.0
"""Seconds. A broker that has just started, or a new leader, may not know all its records yet: until then the log seems
shorter than it is."""
PRESENT_WITHIN = 60.0
"""Seconds. A broker that has just started may not know all its streams or topics yet."""
LOOK_AGAIN_AFTER = 0.2
AGAIN = (
    "If one copy of the broker is damaged, repair it and start the node again. If all copies are, stop every node and "
    "start them with {option}: the record then counts on none of them"
)
GONE = "Restore the log from a backup; or, if another node still runs, let it write a snapshot and start this one again"
REPLACED = (
    "The broker lost records that it had acknowledged, or the log was deleted and made anew. Restore it from a backup, "
    "or start the nodes again to go on with what the broker has now"
)


class DamagedRecordError(ValueError):
    """A record of ours that is not as it was written."""


class Damage(Exception):  # noqa: N818  (never leaves the fold: the node makes a ``DamagedLogError`` of it)
    """Why the log cannot be followed any further than ``position``."""

    def __init__(self, position: Position, problem: str, remedy: str = REPLACED) -> None:
        super().__init__(problem)
        self.position = position
        self.remedy = remedy

    def told(self, log: str) -> DamagedLogError:
        """As callers hear of it."""
        return DamagedLogError(log, place(self.position), str(self), self.remedy)


class Doubt:
    """The log is shorter than what was read, or is not there: that may pass, or it is damage."""

    def __init__(self, position: Position) -> None:
        self._position = position
        self._began = monotonic()

    async def shorter(self, problem: str) -> None:
        """Wait a little. Raises ``Damage`` if it has been so for too long."""
        await self._wait(problem, SETTLED_WITHIN)

    async def missing(self, problem: str) -> None:
        """Wait a little. Raises ``Damage`` if it has been so for too long."""
        await self._wait(problem, PRESENT_WITHIN)

    async def _wait(self, problem: str, within: float) -> None:
        if monotonic() - self._began > within:
            raise Damage(self._position, problem)
        await asyncio.sleep(LOOK_AGAIN_AFTER)


def place(position: Position) -> str:
    """A position in errors and in the option ``skip_record``."""
    return "-".join(map(str, position)) or "its beginning"


def label(*contents: bytes) -> dict[str, str]:
    """The header that makes a record ours."""
    return {CRC: checksum(*contents)}


def checksum(*contents: bytes) -> str:
    """Of all of them, one after the other."""
    value = 0
    for content in contents:
        value = zlib.crc32(content, value)
    return f"{value:08x}"


def check(headers: Mapping[str, str], *contents: bytes) -> None:
    """Raise ``DamagedRecordError`` unless these are the bytes that ``label`` was made of."""
    found, written = checksum(*contents), headers.get(CRC)
    if found != written:
        raise DamagedRecordError(f"the record was written with the checksum {written}, but its bytes have {found}")


def fingerprint(entry: Entry) -> int:
    """The same for the same record at the same time, and hardly ever for another one."""
    around = f"{entry.at_ts!r} {entry.type} {entry.headers.get(CRC)}"
    return zlib.crc32(entry.body, zlib.crc32(around.encode(errors="replace")))

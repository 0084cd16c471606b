"""What is wrong with a log, and which records are ours.

Every record that durabus writes, on either lane, carries the header ``durabus-crc``: a checksum of its bytes. A record
without it is somebody else's, and is skipped. A record with it must be whole: a node that skipped a damaged one would
decide otherwise than a node that read it from a sound copy. So the node stops.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator, Mapping

import msgspec

from durabus.clock import monotonic
from durabus.errors import DamagedLogError
from durabus.stores.replicated_log.transport import BrokerRecord, Position

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


def fingerprint(entry: BrokerRecord) -> int:
    """The same for the same record at the same time, and hardly ever for another one."""
    around = f"{entry.at_ts!r} {entry.type} {entry.headers.get(CRC)}"
    return zlib.crc32(entry.body, zlib.crc32(around.encode(errors="replace")))


HEADER_BYTES = 96
"""More than an envelope adds to its body."""


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A control record, or a piece of one that was too large for the broker."""

    format: int
    session: str
    number: int
    low: int
    public_seen: int
    """See ``Transport.public_seen``."""
    piece: int
    pieces: int
    body: bytes


FORMAT = 3
"""Which records a node can read; one that meets a larger number stops."""
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Envelope)


class NoEnvelopeError(ValueError):
    """The bytes were not written by durabus."""


def seal(body: bytes, *, session: str, number: int, low: int, public_seen: int, largest: int) -> Iterator[bytes]:
    """The record as one or more pieces that the broker takes. Each is written with its ``label``."""
    room = largest - HEADER_BYTES
    pieces = max(-(-len(body) // room), 1)
    for piece in range(pieces):
        part = body[piece * room : (piece + 1) * room]
        yield _ENCODER.encode(Envelope(FORMAT, session, number, low, public_seen, piece, pieces, part))


def unseal(data: bytes, headers: Mapping[str, str]) -> Envelope:
    """What ``seal`` made. Raises ``NoEnvelopeError`` on what others wrote, ``DamagedRecordError`` on a damaged one."""
    if CRC not in headers:
        if _could_be_ours(data):
            raise DamagedRecordError(f"the record has lost its header {CRC}")
        raise NoEnvelopeError(f"not a record of durabus: it has no header {CRC}")
    check(headers, data)
    try:
        envelope = _DECODER.decode(data)
    except msgspec.MsgspecError as error:
        raise DamagedRecordError(f"the record cannot be read: {error}") from error
    if not 0 <= envelope.piece < envelope.pieces or envelope.number < 1 or envelope.public_seen < 0:
        raise DamagedRecordError(f"piece {envelope.piece} of {envelope.pieces}, number {envelope.number}: impossible")
    return envelope


def _could_be_ours(data: bytes) -> bool:
    try:
        _DECODER.decode(data)
    except msgspec.MsgspecError:
        return False
    return True

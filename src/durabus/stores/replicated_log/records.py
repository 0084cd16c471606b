"""Records of the log: their checksum, their envelope on the control lane, and what a node does about damage.

Every record that durabus writes, on either lane, carries the header ``durabus-crc``: a checksum of its bytes. A record
without it comes from another program, and nodes skip it, unless its body could be ours: then it has lost the header.
A node that finds a damaged record stops: if it skipped the record, its decisions would differ from those of a node
that read an undamaged copy.
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
"""Seconds. A broker that has just started, or a new leader, may not have all its records yet. Until then the log looks
shorter than it is."""
PRESENT_WITHIN = 60.0
"""Seconds. A broker that has just started may not have all its streams or topics yet."""
LOOK_AGAIN_AFTER = 0.2
AGAIN = (
    "If one copy of the broker is damaged, repair it and start the node again. If all copies are, stop every node and "
    "start them with {option}: the record then counts on none of them"
)
GONE = "Restore the log from a backup; or, if another node still runs, let it write a snapshot and start this one again"
REPLACED = (
    "The broker lost records that it had acknowledged, or the log was deleted and created again. Restore it from a "
    "backup, or start the nodes again to continue with what the broker has now"
)


class DamagedRecordError(ValueError):
    """A record of durabus is not as it was written."""


class Damage(Exception):  # noqa: N818  (stays inside this package: the node turns it into a ``DamagedLogError``)
    """Why the node cannot follow the log beyond ``position``."""

    def __init__(self, position: Position, problem: str, remedy: str = REPLACED) -> None:
        super().__init__(problem)
        self.position = position
        self.remedy = remedy

    def as_error(self, log: str) -> DamagedLogError:
        """Return the error that callers get."""
        return DamagedLogError(log, place(self.position), str(self), self.remedy)


class Doubt:
    """The log is shorter than what the node has read, or it is missing. It may come back, or it is damaged."""

    def __init__(self, position: Position) -> None:
        self._position = position
        self._began = monotonic()

    async def shorter(self, problem: str) -> None:
        """Wait a little. Raises ``Damage`` if the log has been too short for too long."""
        await self._wait(problem, SETTLED_WITHIN)

    async def missing(self, problem: str) -> None:
        """Wait a little. Raises ``Damage`` if the log has been missing for too long."""
        await self._wait(problem, PRESENT_WITHIN)

    async def _wait(self, problem: str, within: float) -> None:
        if monotonic() - self._began > within:
            raise Damage(self._position, problem)
        await asyncio.sleep(LOOK_AGAIN_AFTER)


def place(position: Position) -> str:
    """Return a position as errors and the option ``skip_record`` show it."""
    return "-".join(map(str, position)) or "its beginning"


def label(*contents: bytes) -> dict[str, str]:
    """Return the header that marks a record as written by durabus."""
    return {CRC: checksum(*contents)}


def checksum(*contents: bytes) -> str:
    """Return the checksum of all contents, one after the other."""
    value = 0
    for content in contents:
        value = zlib.crc32(content, value)
    return f"{value:08x}"


def check(headers: Mapping[str, str], *contents: bytes) -> None:
    """Raise ``DamagedRecordError`` unless the contents have the checksum in the headers."""
    found, written = checksum(*contents), headers.get(CRC)
    if found != written:
        raise DamagedRecordError(f"the record was written with the checksum {written}, but its bytes have {found}")


def fingerprint(entry: BrokerRecord) -> int:
    """Return a number that identifies a record: another record almost never has the same one."""
    around = f"{entry.at_ts!r} {entry.type} {entry.headers.get(CRC)}"
    return zlib.crc32(entry.body, zlib.crc32(around.encode(errors="replace")))


HEADER_BYTES = 96
"""An upper bound for the bytes that an envelope adds to its body."""


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A control record, or one piece of a record that is too large for the broker."""

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
"""The format of records that this version writes. A node that reads a larger number stops."""
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Envelope)


class NoEnvelopeError(ValueError):
    """The bytes were not written by durabus."""


def seal(body: bytes, *, session: str, number: int, low: int, public_seen: int, largest: int) -> Iterator[bytes]:
    """Yield the record in pieces that are small enough for the broker. The caller writes each with its ``label``."""
    room = largest - HEADER_BYTES
    pieces = max(-(-len(body) // room), 1)
    for piece in range(pieces):
        part = body[piece * room : (piece + 1) * room]
        yield _ENCODER.encode(Envelope(FORMAT, session, number, low, public_seen, piece, pieces, part))


def unseal(data: bytes, headers: Mapping[str, str]) -> Envelope:
    """Return the envelope that ``seal`` made.

    Raises ``NoEnvelopeError`` for a record of another program, ``DamagedRecordError`` for a damaged one.
    """
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

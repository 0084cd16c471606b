"""Who sent a record, which of its records it is, and which piece of it.

A session is one opened store. It numbers its records. ``low`` says that it has done with every number up to there:
answered, or given up. So a record that comes twice is seen to be known, and one that comes after its sender gave it up
is void, however late it comes. That is exact, and costs each replica a few numbers per session.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import msgspec

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
    checksum: int


FORMAT = 2
"""Which records a node can read; one that meets a larger number stops."""
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Envelope)


class NoEnvelopeError(ValueError):
    """The bytes were not written by durabus, or were damaged since."""


def seal(body: bytes, *, session: str, number: int, low: int, public_seen: int, largest: int) -> Iterator[bytes]:
    """The record as one or more pieces that the broker takes."""
    room = largest - HEADER_BYTES
    pieces = max(-(-len(body) // room), 1)
    for piece in range(pieces):
        part = body[piece * room : (piece + 1) * room]
        whole = Envelope(FORMAT, session, number, low, public_seen, piece, pieces, part, 0)
        yield _ENCODER.encode(msgspec.structs.replace(whole, checksum=_checksum(whole)))


def unseal(data: bytes) -> Envelope:
    """What ``seal`` made. Raises ``NoEnvelopeError`` on anything else."""
    try:
        envelope = _DECODER.decode(data)
    except msgspec.MsgspecError as error:
        raise NoEnvelopeError(f"not a record of durabus: {error}") from error
    if _checksum(envelope) != envelope.checksum:
        raise NoEnvelopeError("the checksum does not match: the record was damaged")
    if not 0 <= envelope.piece < envelope.pieces or envelope.number < 1 or envelope.public_seen < 0:
        raise NoEnvelopeError(f"piece {envelope.piece} of {envelope.pieces}, number {envelope.number}: impossible")
    return envelope


def _checksum(envelope: Envelope) -> int:
    """Of everything: a place in the order that was misread would stop a replica."""
    numbers = (envelope.format, envelope.session, envelope.number, envelope.low, envelope.public_seen)
    return zlib.crc32(envelope.body, zlib.crc32(repr((*numbers, envelope.piece, envelope.pieces)).encode()))

"""Who sent a record, which of its records it is, and which piece of it.

A session is one opened store. It numbers its records. ``low`` says that it has done with every number up to there:
answered, or given up. So a record that comes twice is seen to be known, and one that comes after its sender gave it up
is void, however late it comes. That is exact, and costs each replica a few numbers per session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from durabus.backends.fold.damage import CRC, DamagedRecordError, check

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

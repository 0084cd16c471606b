"""The chain of proofs in ``ops.proofs``. A line that is changed or removed breaks it.

Each hash covers a result and the hash of the line before it, and the store knows the last one. A program that can
rewrite the lake can compute such a chain too, but not the signatures that a secret key makes.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

from durabus.errors import ConfigurationError, PipelineError
from durabus.model.lake_summary import ProofSummary
from durabus.pipeline.gaps import Gap
from durabus.pipeline.lake import Lake
from durabus.pipeline.schema import Table

SHORTEST_KEY = 32
"""Minimum number of bytes of the key that signs proofs."""

PROOFS = Table(
    name="ops.proofs",
    ddl="number BIGINT, made_at TIMESTAMP, proof STRING, previous STRING, hash STRING, signature STRING",
    append_only=True,
)
"""One row per proof: what was found as JSON, the hash of the row before, the hash of both, and its signature."""


class SegmentState(StrEnum):
    """The result for one segment of the log."""

    EQUAL = "equal"
    """Lake and store have the same entries."""
    TRIMMED = "trimmed"
    """The lake has every entry. The store has trimmed some after they were verified; all others are equal."""
    DIFFERS = "differs"
    """The lake lacks entries, has other ones than the store, or has changed since the last proof."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and hashes of one segment on both sides. ``first_seq`` to ``first_seq + rows - 1`` are its entries."""

    first_seq: int
    rows: int
    hash: str
    in_store: int
    store_hash: str
    state: SegmentState
    reason: str = ""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What is proven complete, what is accounted for, and what is missing."""

    lake_id: str
    until: str
    """The position of the last entry of the lake."""
    entries: int
    behind: int
    """Entries of the store that are not archived yet."""
    missing: int
    """Entries of the store before ``until`` that the lake lacks."""
    segments: list[Segment]
    gaps: list[Gap]

    def count(self, state: SegmentState) -> int:
        """Return the number of entries in the segments with this result."""
        return sum(segment.rows for segment in self.segments if segment.state is state)

    @property
    def trimmed(self) -> int:
        """The number of entries that only the lake has, because the store has trimmed them after verification."""
        return sum(one.rows - one.in_store for one in self.segments if one.state is SegmentState.TRIMMED)

    @property
    def holds(self) -> bool:
        """Whether every entry is in the lake or accounted for."""
        return not self.missing and all(one.state is not SegmentState.DIFFERS for one in self.segments)


class Proven(msgspec.Struct, frozen=True, kw_only=True):
    """A proof with its place in the chain."""

    number: int
    made_at: datetime
    proof: Proof
    previous: str
    hash: str
    signature: str | None = None
    """The HMAC-SHA256 of ``hash``; None if it was made without a key."""
    unsigned: tuple[int, ...] = ()
    """The numbers of earlier proofs that no signature covered before this one. It is not kept."""


def read_chain(lake: Lake) -> list[Proven]:
    """Return all proofs, oldest first. Raises ``PipelineError`` if one was changed or removed."""
    if not lake.exists(PROOFS.name):
        return []
    previous, chain = "", list[Proven]()
    for number, row in enumerate(lake.read(PROOFS.name).orderBy("number").collect()):
        if (row["number"], row["previous"], row["hash"]) != (number, previous, chained(previous, row["proof"])):
            raise PipelineError(
                f"{PROOFS.name} is broken at proof {number}: a proof was changed or removed by hand; find out who did "
                "it, and move the folder of this table away to begin a new chain"
            )
        chain.append(
            Proven(
                number=number,
                made_at=row["made_at"].astimezone(UTC),
                proof=msgspec.json.decode(row["proof"], type=Proof),
                previous=previous,
                hash=row["hash"],
                signature=row.asDict().get("signature"),  # a table from before there were signatures lacks the column
            )
        )
        previous = row["hash"]
    return chain


def refuse_cut_chain(chain: Sequence[Proven], known: ProofSummary | None) -> None:
    """Raise ``PipelineError`` if the chain lacks the last proof that the store knows, or has another one there.

    An empty chain is a new one: the person who repairs a broken chain moves the folder of the table away.
    """
    if known is None or not chain:
        return
    if known.number >= len(chain) or chain[known.number].hash != known.hash:
        raise PipelineError(
            f"{PROOFS.name} is broken at proof {known.number}: the store knows a proof that is gone, or is another one "
            "now; find out who did it, and move the folder of this table away to begin a new chain"
        )


def check_key(key: bytes | None) -> None:
    """Raise ``ConfigurationError`` for a key that could be guessed."""
    if key is not None and len(key) < SHORTEST_KEY:
        raise ConfigurationError(
            f"the key has {len(key)} bytes: it must have {SHORTEST_KEY} or more; `openssl rand -hex 32` makes one"
        )


def unsigned_proofs(chain: Sequence[Proven], key: bytes) -> tuple[int, ...]:
    """Return the numbers of the proofs after the last signed one. A signature covers all proofs before it as well.

    Raises ``PipelineError`` if a signature was not made with this key.
    """
    unsigned: list[int] = []
    for one in chain:
        if one.signature is None:
            unsigned.append(one.number)
            continue
        if not hmac.compare_digest(one.signature.encode(), signed(one.hash, key).encode()):
            raise PipelineError(
                f"the signature of proof {one.number} in {PROOFS.name} is not of this key: either a program without "
                "the key has rewritten the chain, or another key has signed it; use that key, or find out who did it "
                "and move the folder of this table away to begin a new chain"
            )
        unsigned = []
    return tuple(unsigned)


def chained(previous: str, text: str) -> str:
    """Return the hash of a proof, as text, and of the hash of the proof before it."""
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


def signed(own: str, key: bytes) -> str:
    """Return the signature of the hash of a proof."""
    return hmac.new(key, own.encode(), hashlib.sha256).hexdigest()

"""What the fold asks of a broker: two lanes with one order, and a place for snapshots."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from durabus.errors import StoreUnavailableError

Position = tuple[int, ...]
"""A place in the log; later ones compare larger. NATS: (sequence). Kafka: (control offset, public offset)."""
BEGINNING: Position = ()


class PublicRecord(NamedTuple):
    """One event on the public lane: its JSON, and headers for everybody."""

    key: str
    """The same for a repeat of the record, and for no other."""
    type: str
    headers: Mapping[str, str]
    body: bytes


class BrokerRecord(NamedTuple):
    """One record as it was read back. ``type`` is None on the control lane."""

    position: Position
    at_ts: float
    """When the broker appended it."""
    type: str | None
    headers: Mapping[str, str]
    body: bytes


class SnapshotPart(NamedTuple):
    """A piece of a snapshot: a table of the state, a key in it, and some rows."""

    table: str
    key: str
    rows: bytes


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot is of."""

    format: int
    position: Position
    at_ts: float
    """The log's time there."""


class GapError(StoreUnavailableError):
    """Records that this node has not read were trimmed: it must begin again from the newest snapshot."""


class UnknownOutcomeError(StoreUnavailableError):
    """The broker did not say whether it took a record. Sending it again is harmless."""


class RefusedError(StoreUnavailableError):
    """The broker said no, and would again."""


class Transport(Protocol):
    """One log on a broker. All methods run in the node's own thread and loop."""

    @property
    def name(self) -> str:
        """What the log is called in errors, with its stream or topics."""
        ...

    @property
    def largest(self) -> int:
        """How many bytes a record may have."""
        ...

    async def open(self) -> None:
        """Connect, make what is missing, check what is there. Raises ``SchemaError`` on settings that lose records."""
        ...

    async def verify(self) -> None:
        """Check the settings that the order, the time and the keeping of records rest on. Raises ``SchemaError``."""
        ...

    async def close(self) -> None:
        """Let go. Repeatable."""
        ...

    def refusal(self, record: PublicRecord) -> str | None:
        """Why the broker would not take such a record; None if it would."""
        ...

    async def publish(self, records: Sequence[PublicRecord]) -> None:
        """Append to the public lane, in this order. Returns when the broker has them and they have their place."""
        ...

    async def append(self, record: bytes, key: str, headers: Mapping[str, str]) -> None:
        """Append to the control lane. Returns when the broker has it. ``key`` is that of a ``PublicRecord``."""
        ...

    async def head(self) -> Position:
        """The place of the newest record that has one; everything acknowledged before the call is not after it."""
        ...

    def public_seen(self) -> int:
        """Which public record a control record written now comes after, where the lanes need that to have one order."""
        ...

    async def follow(self, after: Position, deliver: Callable[[Sequence[BrokerRecord]], None]) -> None:
        """Deliver every record after ``after``, in order, for ever; ``deliver`` runs in this loop.

        Each time the reading begins, also after an interruption, it begins with the last record that was delivered (on
        Kafka the last one of each lane), so that the replica sees whether the log is still the one that it has read.
        Heals by itself from everything that passes. Ends by being cancelled, with ``GapError`` if records after
        ``after``, or the one there, are gone, or with ``Damage`` if the log is not the one that was read.
        """
        ...

    async def newest_snapshot(self) -> Manifest | None:
        """The newest complete snapshot."""
        ...

    def read_snapshot(self, manifest: Manifest) -> AsyncIterator[SnapshotPart]:
        """Its parts, in the order of writing. Raises ``GapError`` if a newer one replaced it meanwhile."""
        ...

    async def write_snapshot(self, manifest: Manifest, parts: AsyncIterator[SnapshotPart], *, fence: int) -> bool:
        """Replace the snapshot in one step. False if somebody with a larger fence, or a later position, was faster."""
        ...

    async def trim(self, control: Position, public: Position) -> None:
        """Forget the control records up to one place, and the public ones up to another."""
        ...

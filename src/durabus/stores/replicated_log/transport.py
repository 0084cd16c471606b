"""What the replicated log needs from a broker: two lanes with one order, and a place for snapshots.

The public lane carries events, for any consumer. The control lane carries the commands of nodes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from durabus.errors import StoreUnavailableError

Position = tuple[int, ...]
"""A position in the log; later ones compare larger. NATS: (sequence). Kafka: (control offset, public offset)."""
BEGINNING: Position = ()


class PublicRecord(NamedTuple):
    """One event on the public lane: its JSON, and headers for any consumer."""

    key: str
    """A repeat of the record has the same key; no other record has it."""
    type: str
    headers: Mapping[str, str]
    body: bytes


class BrokerRecord(NamedTuple):
    """One record that was read from the log. ``type`` is None on the control lane."""

    position: Position
    at_ts: float
    """When the broker appended the record."""
    type: str | None
    headers: Mapping[str, str]
    body: bytes


class SnapshotPart(NamedTuple):
    """A part of a snapshot: a table, a key in it, and some rows."""

    table: str
    key: str
    rows: bytes


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The position of the log that a snapshot was made at."""

    format: int
    position: Position
    at_ts: float
    """The log's time at this position."""


class GapError(StoreUnavailableError):
    """Records that this node has not read were trimmed. The node must start again from the newest snapshot."""


class UnknownOutcomeError(StoreUnavailableError):
    """The broker did not confirm a record. Sending it again is harmless."""


class RefusedError(StoreUnavailableError):
    """The broker refused a record, and would refuse it again."""


class Snapshots(Protocol):
    """Keeps the newest snapshot of a log on the broker."""

    async def newest(self) -> Manifest | None:
        """Return the manifest of the newest complete snapshot."""
        ...

    def read(self, manifest: Manifest) -> AsyncIterator[SnapshotPart]:
        """Yield the parts of a snapshot as they were written. Raises ``GapError`` if a newer snapshot replaces it."""
        ...

    async def write(self, manifest: Manifest, parts: AsyncIterator[SnapshotPart], *, fence: int) -> bool:
        """Replace the snapshot in one step. False if a node with a larger fence or a later position was faster."""
        ...


class Transport(Protocol):
    """One log on a broker. All methods run in the node's own thread and loop."""

    @property
    def name(self) -> str:
        """The name of the log in errors, with its stream or topics."""
        ...

    @property
    def largest(self) -> int:
        """The maximum size of a record in bytes."""
        ...

    async def open(self) -> None:
        """Connect, and create or check the log. Raises ``SchemaError`` for settings that lose records."""
        ...

    async def verify(self) -> None:
        """Check the settings that keep records, their order and their times. Raises ``SchemaError``."""
        ...

    async def close(self) -> None:
        """Disconnect. A repeat does nothing."""
        ...

    def refusal(self, record: PublicRecord) -> str | None:
        """Return why the broker would refuse this record; None if it would accept it."""
        ...

    async def publish(self, records: Sequence[PublicRecord]) -> None:
        """Append records to the public lane, in this order. Returns when the broker has them at their positions."""
        ...

    async def append(self, record: bytes, key: str, headers: Mapping[str, str]) -> None:
        """Append a record to the control lane. Returns when the broker has it. ``key`` is as in ``PublicRecord``."""
        ...

    async def head(self) -> Position:
        """Return the position of the newest record. No record acknowledged before the call comes after it."""
        ...

    def public_seen(self) -> int:
        """Return the public record that a control record written now comes after. On Kafka it orders the two lanes."""
        ...

    async def follow(self, after: Position, deliver: Callable[[Sequence[BrokerRecord]], None]) -> None:
        """Deliver every record after ``after``, in order, until cancelled. ``deliver`` runs in this loop.

        Each time reading starts, also after an interruption, it starts with the last record that was delivered (on
        Kafka the last one of each lane). So the replica notices if the log is no longer the one that it has read.
        Reading recovers from every temporary failure. Raises ``GapError`` if records after ``after``, or the record at
        it, are gone, and ``Damage`` if the log is not the one that was read.
        """
        ...

    @property
    def snapshots(self) -> Snapshots:
        """The snapshots of the log."""
        ...

    async def trim(self, control: Position, public: Position) -> None:
        """Delete the control records up to one position, and the public records up to another."""
        ...

"""A log in memory that behaves as a broker: it delays, repeats, loses replies, and gives every record one position."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import count

from durabus.clock import Clock, SystemClock
from durabus.stores.replicated_log.records import Damage
from durabus.stores.replicated_log.transport import (
    BrokerRecord,
    GapError,
    Manifest,
    Position,
    PublicRecord,
    SnapshotPart,
    UnknownOutcomeError,
)

POLL = 0.0005


class SimulatedLog:
    """What the broker holds. Nodes of several threads may share it, because appending to a list is one step."""

    def __init__(self, clock: Clock | None = None, *, largest: int = 2_000_000) -> None:
        self.clock = clock or SystemClock()
        self.largest = largest
        self.entries: list[BrokerRecord] = []
        self.first = 1
        self.trimmed: list[tuple[Position, Position]] = []
        self.snapshot: tuple[Manifest, list[SnapshotPart], int] | None = None
        self._sequence = count(1)

    def store(self, type_: str | None, headers: Mapping[str, str], body: bytes) -> None:
        self.entries.append(BrokerRecord((next(self._sequence),), self.clock.now(), type_, headers, body))

    def after(self, position: Position) -> list[BrokerRecord]:
        reached = position[0] if position else 0
        if reached + 1 < self.first:
            raise GapError(f"records from {reached + 1} to {self.first - 1} were trimmed")
        return self.entries[reached + 1 - self.first :]

    def at(self, position: Position) -> list[BrokerRecord]:
        """Return the record at ``position``, with which a reader after it begins."""
        if not position:
            return []
        if position[0] < self.first:
            raise GapError(f"the record {position[0]} was trimmed")
        if position > self.head:
            raise Damage(position, f"the log ends at {self.head[0]}")
        return [self.entries[position[0] - self.first]]

    def replace(self, number: int, **changes: object) -> None:
        """Damage the record of that number."""
        place = number - self.first
        self.entries[place] = self.entries[place]._replace(**changes)  # type: ignore[arg-type]

    @property
    def head(self) -> Position:
        entries = self.entries
        return entries[-1].position if entries else (self.first - 1,)

    @property
    def newest_snapshot(self) -> Manifest | None:
        return None if self.snapshot is None else self.snapshot[0]

    def parts(self, manifest: Manifest) -> list[SnapshotPart]:
        if self.snapshot is None or self.snapshot[0] != manifest:
            raise GapError("a newer snapshot replaced this one")
        return self.snapshot[1]

    def keep_snapshot(self, manifest: Manifest, parts: list[SnapshotPart], fence: int) -> bool:
        if self.snapshot is not None:
            before, _, newest = self.snapshot
            if newest > fence or before.position >= manifest.position:
                return False
        self.snapshot = (manifest, parts, fence)
        return True

    def trim(self, control: Position) -> None:
        keep = control[0] + 1
        if keep > self.first:
            self.entries, self.first = self.entries[keep - self.first :], keep


class Trouble:
    """How often things go wrong, of a hundred records, decided by a seed."""

    def __init__(
        self, seed: int = 0, *, lost: int = 0, repeated: int = 0, reply_lost: int = 0, delayed: int = 0
    ) -> None:
        self.chance = random.Random(seed)
        self.lost, self.repeated, self.reply_lost, self.delayed = lost, repeated, reply_lost, delayed

    def happens(self, percent: int) -> bool:
        return self.chance.randrange(100) < percent


class SimulatedSnapshots:
    def __init__(self, log: SimulatedLog) -> None:
        self.log = log

    async def newest(self) -> Manifest | None:
        return self.log.newest_snapshot

    async def read(self, manifest: Manifest) -> AsyncIterator[SnapshotPart]:
        for part in self.log.parts(manifest):
            yield part

    async def write(self, manifest: Manifest, parts: AsyncIterator[SnapshotPart], *, fence: int) -> bool:
        return self.log.keep_snapshot(manifest, [part async for part in parts], fence)


class SimulatedTransport:
    name = "the simulated log"

    def __init__(self, log: SimulatedLog, trouble: Trouble | None = None) -> None:
        self.log = log
        self.largest = log.largest
        self.trouble = trouble or Trouble()
        self.snapshots = SimulatedSnapshots(log)

    async def open(self) -> None:
        pass

    async def verify(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def refusal(self, record: PublicRecord) -> str | None:
        return f"{len(record.body)} bytes are too many" if len(record.body) > self.largest else None

    async def publish(self, records: Sequence[PublicRecord]) -> None:
        troubles = [await self._trouble_with(record) for record in records]
        if any(troubles):
            raise UnknownOutcomeError("no reply")

    async def append(self, record: bytes, key: str, headers: Mapping[str, str]) -> None:
        await self._store(None, headers, record)

    async def _trouble_with(self, record: PublicRecord) -> bool:
        try:
            await self._store(record.type, record.headers, record.body)
        except UnknownOutcomeError:
            return True
        return False

    async def _store(self, type_: str | None, headers: Mapping[str, str], body: bytes) -> None:
        if self.trouble.happens(self.trouble.delayed):
            await asyncio.sleep(self.trouble.chance.random() * 0.01)
        if self.trouble.happens(self.trouble.lost):
            raise UnknownOutcomeError("no reply")
        self.log.store(type_, headers, body)
        if self.trouble.happens(self.trouble.repeated):
            self.log.store(type_, headers, body)
        if self.trouble.happens(self.trouble.reply_lost):
            raise UnknownOutcomeError("no reply")

    async def head(self) -> Position:
        return self.log.head

    def public_seen(self) -> int:
        return 0

    async def follow(self, after: Position, deliver: Callable[[Sequence[BrokerRecord]], None]) -> None:
        if again := self.log.at(after):
            deliver(again)
        while True:
            new = self.log.after(after)
            if new:
                after = new[-1].position
                deliver(new)
            await asyncio.sleep(POLL)

    async def trim(self, control: Position, public: Position) -> None:
        self.log.trimmed.append((control, public))
        self.log.trim(control)

"""A log whose records carry the time of a clock that the store was given: for tests, which do not wait for leases.

Every record says what its sender's clock showed, so all replicas still decide by the log alone. The broker's own time
is not looked at; a store without such a clock never looks at theirs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial

import msgspec

from durabus.backends.fold.transport import Entry, Manifest, Part, Position, PublicRecord, Transport
from durabus.clock import Clock

HEADER = "durabus-told-time"


class ToldTime:
    """``Transport`` on another one."""

    def __init__(self, transport: Transport, clock: Clock) -> None:
        self._transport = transport
        self._clock = clock

    @property
    def name(self) -> str:
        return self._transport.name

    @property
    def largest(self) -> int:
        return self._transport.largest

    async def open(self) -> None:
        await self._transport.open()

    async def verify(self) -> None:
        await self._transport.verify()

    async def close(self) -> None:
        await self._transport.close()

    def refusal(self, record: PublicRecord) -> str | None:
        return self._transport.refusal(record)

    async def publish(self, records: Sequence[PublicRecord]) -> None:
        told = self._told()
        await self._transport.publish([one._replace(headers={**one.headers, **told}) for one in records])

    async def append(self, record: bytes, key: str, headers: Mapping[str, str]) -> None:
        await self._transport.append(record, key, {**headers, **self._told()})

    async def head(self) -> Position:
        return await self._transport.head()

    def public_seen(self) -> int:
        return self._transport.public_seen()

    async def follow(self, after: Position, deliver: Callable[[Sequence[Entry]], None]) -> None:
        await self._transport.follow(after, partial(_deliver_at_told_time, deliver))

    async def newest_snapshot(self) -> Manifest | None:
        return await self._transport.newest_snapshot()

    def read_snapshot(self, manifest: Manifest) -> AsyncIterator[Part]:
        return self._transport.read_snapshot(manifest)

    async def write_snapshot(self, manifest: Manifest, parts: AsyncIterator[Part], *, fence: int) -> bool:
        return await self._transport.write_snapshot(manifest, parts, fence=fence)

    async def trim(self, control: Position, public: Position) -> None:
        await self._transport.trim(control, public)

    def _told(self) -> dict[str, str]:
        return {HEADER: repr(self._clock.now())}


def _deliver_at_told_time(deliver: Callable[[Sequence[Entry]], None], entries: Sequence[Entry]) -> None:
    # A record that was told no time comes when the one before it did: the log's time never goes back.
    deliver([entry._replace(at_ts=msgspec.json.decode(entry.headers.get(HEADER, "0.0"))) for entry in entries])

"""Snapshots: writing a replica as tables of rows, loading it again, and the service that makes snapshots.

Rows are written in blocks. A block that did not change since the last snapshot need not be written again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from durabus.errors import DurabusError, LeaseLost, SchemaError, StoreError, StoreUnavailableError
from durabus.lifecycle.state import EventState
from durabus.model.claim import LockClaim, new_token
from durabus.stores.replicated_log.commands import ClaimLock, ReleaseLock, Snapshotted, Written
from durabus.stores.replicated_log.core import CoreTables
from durabus.stores.replicated_log.log_clock import LogClock
from durabus.stores.replicated_log.records import GONE, Damage
from durabus.stores.replicated_log.replica import Replica
from durabus.stores.replicated_log.snapshot_rows import (
    DECODERS,
    TABLES,
    EventBlock,
    ReplicaRow,
    SessionRow,
    bus_rows,
    event_block,
    handler_rows,
    log_rows,
    numbered_records,
    session_of,
    session_row,
)
from durabus.stores.replicated_log.transport import (
    BEGINNING,
    GapError,
    Manifest,
    Position,
    SnapshotPart,
    Snapshots,
    Transport,
)

T = TypeVar("T")

logger = logging.getLogger("durabus.replicated_log")

FORMAT = 3
BLOCK_BITS = 10
BUCKETS = 256
RESTORE_TRIES = 5
LEVEL = 1
"""The level of compression. Rows repeat their field names, so they compress well."""
_ENCODER = msgspec.msgpack.Encoder()


def dump(replica: Replica) -> AsyncIterator[SnapshotPart]:
    """Return the replica as it is now. Changes that come while the parts are read are not in them."""
    tables = replica.core.tables()
    sessions = [session_row(name, session) for name, session in replica.sessions.items()]
    replica_row = ReplicaRow(
        settings=replica.settings,
        applied=replica.applied,
        skipped=replica.skipped,
        marks=list(replica.marks),
        attached=list(replica.attached.values()),
        next_id=tables.next_id,
        last_fence=tables.last_fence,
        last_revision=tables.last_revision,
        last_number=tables.last_number,
        held=tables.held,
        event_locks=tables.event_locks,
        positions=tables.positions,
        processes=tables.processes,
        unpublished=tables.unpublished,
        fingerprints=replica.fingerprints(),
    )
    return _parts(tables, replica_row, sessions)


async def _parts(
    tables: CoreTables, replica_row: ReplicaRow, sessions: list[SessionRow]
) -> AsyncIterator[SnapshotPart]:
    known = {state.event.id: state.event for state in tables.states}
    rows: list[tuple[str, Iterable[tuple[int, list[Any]]]]] = [
        ("replica", [(0, [replica_row])]),
        ("sessions", [(0, list(sessions))]),
        ("event_buses", _bucketed(bus_rows(tables), lambda row: row.info.bus)),
        ("event_handlers", _bucketed(handler_rows(tables), lambda row: row.bus)),
        ("locks", _bucketed(tables.locks, lambda lock: lock.key)),
        ("events", _event_blocks(tables.states)),
        (
            "event_results",
            _blocks((state.event.id, (state.event.id, state.handlers)) for state in tables.states if state.handlers),
        ),
        ("event_log", _blocks((row.number, row) for row in log_rows(tables.log, known, BLOCK_BITS))),
    ]
    for table, blocks in rows:
        for key, block in blocks:
            yield SnapshotPart(table, str(key), zlib.compress(_ENCODER.encode(block), LEVEL))
            await asyncio.sleep(0)  # the node works between blocks


class SnapshotLoader:
    """Takes the parts of a snapshot in any order, and makes a replica of them."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Any]] = {table: [] for table in TABLES}

    def add(self, part: SnapshotPart) -> None:
        """Add one part. Raises ``SchemaError`` if it is damaged, or if this durabus does not know its table."""
        try:
            self._rows[part.table] += DECODERS[part.table].decode(zlib.decompress(part.rows))
        except (KeyError, zlib.error, msgspec.MsgspecError) as error:
            raise SchemaError(f"the snapshot's part {part.table}/{part.key} cannot be read: {error!r}") from error

    def replica(self, session: str, clock: LogClock, manifest: Manifest, *, skip: Position | None = None) -> Replica:
        """Return the replica. Raises ``SchemaError`` if the snapshot is incomplete or has another format."""
        rows = self._rows
        if manifest.format != FORMAT:
            raise SchemaError(f"a snapshot of format {manifest.format}, this durabus reads {FORMAT}: upgrade it")
        if len(rows["replica"]) != 1:
            raise SchemaError("the snapshot is not complete: its table replica is missing")
        replica_row: ReplicaRow = rows["replica"][0]
        handlers = dict(rows["event_results"])
        states = sorted((state for block in rows["events"] for state in block.states()), key=attrgetter("event.id"))
        if handlers:
            states = [
                state if state.event.id not in handlers else replace(state, handlers=handlers[state.event.id])
                for state in states
            ]
        events = {state.event.id: state.event for state in states}
        replica = Replica(session, clock, skip=skip)
        clock.restore(manifest.at_ts)
        replica.position = manifest.position
        replica.last = dict(replica_row.fingerprints)
        replica.settings, replica.applied, replica.skipped = (
            replica_row.settings,
            replica_row.applied,
            replica_row.skipped,
        )
        replica.marks = list(replica_row.marks)
        replica.attached = {one.event_id: one for one in replica_row.attached}
        replica.sessions = {row.name: session_of(row) for row in rows["sessions"]}
        buses = sorted(rows["event_buses"], key=attrgetter("place"))
        registered = sorted(rows["event_handlers"], key=attrgetter("place"))
        replica.core.restore(
            CoreTables(
                next_id=replica_row.next_id,
                last_fence=replica_row.last_fence,
                last_revision=replica_row.last_revision,
                last_number=replica_row.last_number,
                states=states,
                held=replica_row.held,
                locks=rows["locks"],
                event_locks=replica_row.event_locks,
                log=list(numbered_records(sorted(rows["event_log"], key=attrgetter("number")), events)),
                positions=replica_row.positions,
                processes=replica_row.processes,
                buses=[(row.info, row.revision) for row in buses],
                handlers=[(row.bus, row.info, row.kept_until) for row in registered],
                unpublished=replica_row.unpublished,
                max_history=0 if replica_row.settings is None else replica_row.settings.max_history,
            ),
            now=manifest.at_ts,
        )
        return replica


def _event_blocks(states: list[EventState]) -> Iterator[tuple[int, list[EventBlock]]]:
    for key, block in _blocks((state.event.id, state) for state in states):
        yield key, [event_block(block)]


def _blocks(rows: Iterable[tuple[int, T]]) -> Iterator[tuple[int, list[T]]]:
    """Group rows, sorted by number, into blocks whose numbers have the same high bits."""
    block, key = [], None
    for number, row in rows:
        if key is not None and number >> BLOCK_BITS != key:
            yield key, block
            block = []
        key = number >> BLOCK_BITS
        block.append(row)
    if key is not None:
        yield key, block


def _bucketed(rows: Iterable[T], name: Callable[[T], str]) -> Iterator[tuple[int, list[T]]]:
    buckets: dict[int, list[T]] = {}
    for row in rows:
        buckets.setdefault(zlib.crc32(name(row).encode()) % BUCKETS, []).append(row)
    yield from buckets.items()


async def load_newest(snapshots: Snapshots, session: str, behind: Replica, *, skip: Position | None) -> Replica | None:
    """Return the replica of the newest snapshot, or None if none is later than the position of ``behind``."""
    tried: list[Manifest] = []
    for _ in range(RESTORE_TRIES):
        manifest = await snapshots.newest()
        if manifest is None or manifest.position <= behind.position:
            return None
        tried.append(manifest)
        loader = SnapshotLoader()
        try:
            async for part in snapshots.read(manifest):
                loader.add(part)
        except GapError:
            continue  # a newer snapshot replaced it
        logger.info("started from the snapshot at %s", manifest.position)
        return loader.replica(session, behind.clock, manifest, skip=skip)
    if tried.count(tried[0]) == RESTORE_TRIES:
        raise Damage(tried[0].position, "the snapshot of this position is not complete, or not whole", GONE)
    raise StoreUnavailableError(f"{RESTORE_TRIES} snapshots in a row were replaced while they were read")


LOOK_EVERY = 1.0
LEASE = 600.0
KEY = "durabus:snapshot"


class Applier(Protocol):
    """What a snapshotter needs of a node."""

    replica: Replica
    session: str

    async def own_command(self, command: Written) -> Any:
        """Append a command, also while the node closes."""
        ...


class Snapshotter:
    """Makes snapshots and trims the log: ``run`` whenever one is due, ``snapshot`` once."""

    def __init__(self, node: Applier, transport: Transport, *, every: int, public_kept: float) -> None:
        self._node = node
        self._transport = transport
        self._every = every
        self._public_kept = public_kept

    async def run(self) -> None:
        """Make a snapshot whenever one is due, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY * (0.5 + random.random()))
            if self.is_due():
                try:
                    await self.snapshot()
                except StoreUnavailableError as error:
                    logger.warning("no snapshot: %s", error)
                    await asyncio.sleep(LOOK_EVERY)

    def is_due(self) -> bool:
        """Return whether a node that starts now would have to replay too many records."""
        replica = self._node.replica
        last = replica.marks[-1].applied if replica.marks else 0
        # At least as many records as there are events: so a snapshot costs only a share of what the records cost.
        return replica.applied - last >= max(self._every, replica.core.size)

    async def snapshot(self) -> bool:
        """Make a snapshot and trim the log. False if another node makes one, or was faster."""
        lock = await self._claim()
        if lock is None:
            return False
        try:
            return await self._write(lock.fence)
        finally:
            await self._release(lock)

    async def _claim(self) -> LockClaim | None:
        claiming = asyncio.create_task(self._node.own_command(ClaimLock(KEY, self._node.session, new_token(), LEASE)))
        try:
            lock: LockClaim | None = await asyncio.shield(claiming)
        except asyncio.CancelledError:
            # The node closes. It may hold the lock all the same, and then no other node could take it for long.
            try:
                lock = await claiming
            except DurabusError as error:
                logger.warning("another node may have to wait %g s for its snapshot: %s", LEASE, error)
            else:
                if lock is not None:
                    await self._release(lock)
            raise
        return lock

    async def _release(self, lock: LockClaim) -> None:
        try:
            await self._node.own_command(ReleaseLock(lock))
        except LeaseLost:
            logger.warning("the snapshot took longer than its lease of %g s", LEASE)
        except StoreError as error:
            logger.warning("no other node can make a snapshot for %g s: %s", LEASE, error)

    async def _write(self, fence: int) -> bool:
        replica = self._node.replica
        at_ts, applied, marks = replica.clock.log_ts, replica.applied, list(replica.marks)
        manifest = Manifest(format=FORMAT, position=replica.position, at_ts=at_ts)
        if not await self._transport.snapshots.write(manifest, dump(replica), fence=fence):
            return False
        await self._node.own_command(Snapshotted(manifest.position, applied, at_ts, self._public_kept))
        old = [mark.position for mark in marks if mark.at_ts <= at_ts - self._public_kept]
        try:
            if marks:
                # Trim up to the snapshot before this one: a node that is a little behind still finds its records.
                await self._transport.trim(marks[-1].position, old[-1] if old else BEGINNING)
        except DurabusError as error:
            logger.warning("the log was not trimmed, the next snapshot will trim it: %s", error)
        return True

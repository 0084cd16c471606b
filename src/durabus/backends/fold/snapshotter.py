"""Makes a snapshot when the log since the last one is long, and trims what it covers. One node at a time does it.

Who may is settled by a lock in the log itself, so its fence grows with the log; a node that lost it is refused by the
place where snapshots are kept.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any, Protocol

from durabus.backends.fold.commands import ClaimLock, ReleaseLock, Snapshotted, Written
from durabus.backends.fold.replica import Replica
from durabus.backends.fold.snapshot import FORMAT, dump
from durabus.backends.fold.transport import BEGINNING, Manifest, Transport
from durabus.errors import DurabusError, LeaseLost, StoreError, StoreUnavailableError
from durabus.model.claim import LockClaim, new_token

logger = logging.getLogger("durabus.fold")

LOOK_EVERY = 1.0
LEASE = 600.0
KEY = "durabus:snapshot"


class Applier(Protocol):
    """What it needs of a node."""

    replica: Replica
    session: str

    async def own_command(self, command: Written) -> Any:
        """Append a command, also while the node closes."""
        ...


class Snapshotter:
    """``run`` for ever, or one pass of it."""

    def __init__(self, node: Applier, transport: Transport, *, every: int, public_kept: float) -> None:
        self._node = node
        self._transport = transport
        self._every = every
        self._public_kept = public_kept

    async def run(self) -> None:
        """Look now and then."""
        while True:
            await asyncio.sleep(LOOK_EVERY * (0.5 + random.random()))
            if self.is_due():
                try:
                    await self.snapshot()
                except StoreUnavailableError as error:
                    logger.warning("no snapshot: %s", error)
                    await asyncio.sleep(LOOK_EVERY)

    def is_due(self) -> bool:
        """Whether a node that starts now would have to replay too much."""
        replica = self._node.replica
        last = replica.marks[-1].applied if replica.marks else 0
        # As many records as the state has events: so the cost of a snapshot is a share of that of the records.
        return replica.applied - last >= max(self._every, replica.core.size)

    async def snapshot(self) -> bool:
        """Make one and trim; False if another node does, or was faster."""
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
            # The node closes. The lock may be ours all the same, and then nobody else could have it for long.
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
        if not await self._transport.write_snapshot(manifest, dump(replica), fence=fence):
            return False
        await self._node.own_command(Snapshotted(manifest.position, applied, at_ts, self._public_kept))
        old = [mark.position for mark in marks if mark.at_ts <= at_ts - self._public_kept]
        try:
            if marks:
                # Not up to this one: a node that is a little behind shall find what it has not read yet.
                await self._transport.trim(marks[-1].position, old[-1] if old else BEGINNING)
        except DurabusError as error:
            logger.warning("the log was not trimmed, the next snapshot will: %s", error)
        return True

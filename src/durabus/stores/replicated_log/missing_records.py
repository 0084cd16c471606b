"""Public records that are missing: a settlement stored a child, and its node was killed before it wrote the record.

Every replica knows these children. A node that sees one of them for some seconds writes its record. All nodes
look, and a lock makes one of them write: a node that gets the lock has read whatever its last holder wrote.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from durabus.errors import StoreError
from durabus.model.claim import LockClaim, new_token
from durabus.model.event import NewEvent
from durabus.stores.replicated_log.commands import Attach, ClaimLock, ReleaseLock, Written
from durabus.stores.replicated_log.public_lane import travels_apart
from durabus.stores.replicated_log.replica import Replica

logger = logging.getLogger("durabus.replicated_log")

LOOK_EVERY = 3.0
"""Seconds between two looks. A record that is missing at two looks is written: its node writes it within
milliseconds if it lives."""
LEASE = 30.0
KEY = "durabus:public-records"


class RecordWriter(Protocol):
    """What this service needs of a node."""

    replica: Replica
    session: str

    async def own_command(self, command: Written) -> Any:
        """Append a command, also while the node closes."""
        ...

    async def publish(self, new: Sequence[NewEvent], *, own: bool) -> object:
        """Append events to the public lane, with ``own`` also while the node closes."""
        ...


class MissingRecords:
    """Writes missing public records: ``run`` again and again, ``write`` once."""

    def __init__(self, node: RecordWriter) -> None:
        self._node = node

    async def run(self) -> None:
        """Write the records that are missing at two looks, until cancelled."""
        before: list[str] = []
        while True:
            await asyncio.sleep(LOOK_EVERY)
            missing = list(self._node.replica.core.unpublished)
            if any(one in self._node.replica.core.unpublished for one in before):
                try:
                    await self.write(before)
                except StoreError as error:
                    logger.warning("public records are missing, trying again: %s", error)
            before = missing

    async def write(self, event_ids: Iterable[str]) -> None:
        """Write the records of these events in this order, unless another node does so, or has done so meanwhile."""
        node = self._node
        lock: LockClaim | None = await node.own_command(ClaimLock(KEY, node.session, new_token(), LEASE))
        if lock is None:
            return
        try:
            unpublished = node.replica.core.unpublished
            new = [unpublished[event_id] for event_id in event_ids if event_id in unpublished]
            # Each on its own: a record that the broker refuses must not keep the others away.
            outcomes = await asyncio.gather(*map(self._write_one, new), return_exceptions=True)
            for one, outcome in zip(new, outcomes, strict=True):
                if isinstance(outcome, BaseException):
                    logger.warning("the public record of event %s was not written: %s", one.event_id, outcome)
        finally:
            await node.own_command(ReleaseLock(lock))

    async def _write_one(self, new: NewEvent) -> None:
        if new.metadata_json is not None and travels_apart(new):
            await self._node.own_command(Attach(new.event_id, new.metadata_json))
        await self._node.publish([new], own=True)

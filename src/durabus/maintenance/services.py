"""Services that look after a store: orphans, the partitions and the horizon of the log, old handler states."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import ClassVar
from weakref import WeakKeyDictionary

from durabus.clock import monotonic
from durabus.errors import StoreClosedError, StoreError
from durabus.model.limits import Duration, seconds
from durabus.store.contract import EventStore
from durabus.store.outage import SELDOM, Outage

logger = logging.getLogger("durabus.maintenance")

EVERY = 10.0
"""Seconds between two passes, unless a server's settings say otherwise."""
PARTITIONS_EVERY = 1800.0
"""Seconds between two passes. This is half the interval after which a PostgreSQL store would make the partitions during
a call."""
STOP_WITHIN = 2.0
"""Seconds that ``stop`` waits for a pass that it cancelled: a store that is away may not let it end."""
TAKEN_AT_ONCE = 1_000
DELETED_AT_ONCE = 10_000
SHARED_WITHIN = 0.5
"""Part of the interval in which no second service of this process makes the same pass over the same store object."""


class MaintenanceService:
    """Makes one pass over a store every ``every`` seconds, from ``start`` to ``stop``, whatever a pass raises.

    Any number of processes may run the same service. Inside one process, those on one store object share the passes, so
    a thousand buses cost the store as much as one.
    """

    doing: ClassVar[str]
    """What a pass does, for the log."""
    _outages: ClassVar[WeakKeyDictionary[EventStore, Outage]] = WeakKeyDictionary()
    """The services of one store object share one outage: a store that is away must not fill the log."""
    _begun: ClassVar[WeakKeyDictionary[EventStore, dict[type[MaintenanceService], float]]] = WeakKeyDictionary()
    """When the last pass of each service began, by the local clock."""

    def __init__(self, store: EventStore, *, every: Duration = EVERY) -> None:
        self._store = store
        self._every = seconds(every, "every", allow_zero=False)
        self._outage = MaintenanceService._outages.setdefault(
            store, Outage(logger, "the maintenance of the store fails", second_line=SELDOM)
        )
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin. The first pass comes after the first interval."""
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self._keep_running())

    async def stop(self) -> None:
        """End the pass that runs, and make no more. Repeatable, also before ``start``."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait({self.task}, timeout=STOP_WITHIN)

    async def run_once(self) -> None:
        """Make one pass."""
        raise NotImplementedError

    async def _keep_running(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            if not self._is_due():
                continue
            try:
                await self.run_once()
                self._outage.answered(self.doing)
            except StoreClosedError:
                return
            except Exception as error:  # noqa: BLE001  (if this task ended, no other part of the process would notice)
                self._outage.failed(error, self.doing, unforeseen=not isinstance(error, StoreError))

    def _is_due(self) -> bool:
        begun = MaintenanceService._begun.setdefault(self._store, {})
        if monotonic() - begun.get(type(self), float("-inf")) < self._every * SHARED_WITHIN:
            return False
        begun[type(self)] = monotonic()
        return True


class Expiry(MaintenanceService):
    """Returns events of every bus whose lease is over to the queue, even while no worker claims.

    An event without an attempt limit gets none here, because it may belong to workers with another limit.
    """

    doing = "looking for orphans"

    async def run_once(self) -> None:
        """Take back what has expired."""
        taken = await self._store.expire_events(limit=TAKEN_AT_ONCE)
        if taken:
            logger.info("orphans returned to the queue: %d", taken)


class HorizonWatch(MaintenanceService):
    """Checks for an open transaction that holds back readers of the log. The store logs a warning for each one."""

    doing = "watching the log's horizon"

    async def run_once(self) -> None:
        """Check once."""
        await self._store.log_hold()


class Partitions(MaintenanceService):
    """Makes the log partitions of the next days, also while the whole fleet only reads. Users drop old ones."""

    doing = "making log partitions"

    def __init__(self, store: EventStore, *, every: Duration = PARTITIONS_EVERY) -> None:
        super().__init__(store, every=every)

    async def run_once(self) -> None:
        """Make those that are missing."""
        made = await self._store.make_log_partitions()
        if made:
            logger.info("log partitions made: %d", made)


class Retention(MaintenanceService):
    """Deletes the handler states of COMPLETED events of every bus, however young they are.

    Only ``EventManager`` runs it. ``durabus worker`` and a server do not, because results are read after the end: by a
    handle in another process, by ``durabus events show``, by the page of an event. They are deleted with their event.
    """

    doing = "deleting old handler states"

    async def run_once(self) -> None:
        """Delete all that are there now."""
        await delete_handler_states(self._store)


async def delete_handler_states(store: EventStore) -> int:
    """Delete the handler states of COMPLETED events. Returns how many it deleted."""
    removed = 0
    while True:
        gone = await store.cleanup_results(limit=DELETED_AT_ONCE)
        removed += gone
        if gone < DELETED_AT_ONCE:
            return removed


class Maintenance:
    """The services that ``durabus worker`` and a server run.

    A bus inside a program runs none: its claims take back the orphans of its own bus, and they know the limit of
    attempts of its handlers.
    """

    def __init__(self, store: EventStore, *, expire_every: float | None = None) -> None:
        self.services: Sequence[MaintenanceService] = (
            Expiry(store, every=expire_every or EVERY),
            HorizonWatch(store, every=EVERY),
            Partitions(store, every=PARTITIONS_EVERY),
        )

    def start(self) -> None:
        """Start the services."""
        for service in self.services:
            service.start()

    async def stop(self) -> None:
        """Stop the services. Repeatable."""
        await asyncio.gather(*(service.stop() for service in self.services))

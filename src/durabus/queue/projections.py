"""Projections over the event log: views that a process builds from finalized events and keeps up to date."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from durabus.errors import ConfigurationError, LeaseLost, LockHeld, StoreClosedError, StoreError
from durabus.model.claim import LockClaim
from durabus.model.limits import Duration, check_batch, check_name, seconds
from durabus.model.log_entry import LogEntry
from durabus.model.pattern import check_pattern, matches
from durabus.model.statuses import TERMINAL
from durabus.queue.locks import LockManager
from durabus.store.contract import EventStore

logger = logging.getLogger("durabus.projections")

Apply = Callable[[Sequence[LogEntry]], Awaitable[None] | None]


class ProjectionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a projection in the log. ``lag`` counts the log entries that it has not seen.

    ``lag`` is None while an open transaction hides entries from all readers: ``EventStore.log_hold`` names it.
    """

    name: str
    version: int
    position: str
    lag: int | None


class EventLogProjectionBuilder:
    """Passes the log of finalized events to ``apply``, batch by batch, in commit order.

    - Named and versioned: the position belongs to (name, version). A new version starts at the beginning of the log,
      beside the old one.
    - At least once: the builder saves the position after ``apply`` returned, so a crash repeats the last batch. Make
      ``apply`` idempotent, by the entry's ``position`` or the event's ``id``.
    - One runner at a time: the runner holds a leased lock. A second one waits, and takes over when the first is gone.
    """

    def __init__(
        self,
        store: EventStore,
        *,
        name: str,
        apply: Apply,
        version: int = 1,
        event_type: str = "*",
        batch: int = 500,
        lease: Duration = 30.0,
        poll_interval: Duration = 0.5,
    ) -> None:
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise ConfigurationError(f"version={version!r}: must be a whole number of 1 or more")
        self._store = store
        self.name = check_name(name, "projection name")
        self.version = version
        self._apply = apply
        self._pattern = check_pattern(event_type)
        self._batch = check_batch(batch, "batch")
        self._locks = LockManager(store, lease=lease)
        self._poll_interval = seconds(poll_interval, "poll_interval", allow_zero=False)
        self._stop = asyncio.Event()

    @property
    def _key(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def _lock_key(self) -> str:
        return f"projection:{self._key}"

    async def status(self) -> ProjectionStatus:
        """Return position and lag."""
        position = await self._store.read_position(self._key)
        lag = None if await self._store.log_hold() is not None else await self._store.log_lag(position)
        return ProjectionStatus(name=self.name, version=self.version, position=position, lag=lag)

    async def run_once(self) -> int | None:
        """Bring the projection up to date. Returns the number of entries applied, or None if another runner has it."""
        try:
            async with self._locks.hold(self._lock_key, wait=0) as lock:
                return await self._catch_up(lock)
        except LockHeld:
            return None

    async def run(self) -> None:
        """Follow the log until ``stop()``. If the store fails, it tries again; an error of ``apply`` ends it."""
        while not self._stop.is_set():
            try:
                async with self._locks.hold(self._lock_key, wait=0) as lock:
                    await self._follow(lock)
            except LeaseLost:
                continue
            except LockHeld:
                pass  # another runner has the lock
            except StoreClosedError:
                raise
            except StoreError as error:
                logger.warning("projection %s: store failed, trying again: %s", self._key, error)
            await self._pause()
        self._stop.clear()

    def stop(self) -> None:
        """Let ``run`` return after the present batch; a ``run`` that has not begun returns at once."""
        self._stop.set()

    async def _follow(self, lock: LockClaim) -> None:
        while not self._stop.is_set():
            await self._catch_up(lock)
            await self._pause()

    async def _catch_up(self, lock: LockClaim) -> int:
        position, applied = await self._store.read_position(self._key), 0
        while not self._stop.is_set():
            page = await self._store.read_log(after=position, limit=self._batch)
            if not page.entries:
                return applied
            wanted = [e for e in page.entries if e.status in TERMINAL and matches(self._pattern, e.type)]
            if wanted:
                done = self._apply(wanted)
                if inspect.isawaitable(done):
                    await done
            await self._store.save_position(self._key, page.next, lock=lock)
            position, applied = page.next, applied + len(wanted)
        return applied

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._poll_interval):
                await self._stop.wait()
        except TimeoutError:
            return

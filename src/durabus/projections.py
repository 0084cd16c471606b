"""Projections over the event log, in process (seed 001): read-optimised views that follow what happened."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from durabus.errors import ConfigurationError, LeaseLost, StoreClosedError, StoreError
from durabus.model.claim import LockClaim, default_worker_id, new_token
from durabus.model.limits import Duration, check_batch, check_name, seconds
from durabus.model.log_entry import LogEntry
from durabus.model.pattern import check_pattern, matches
from durabus.model.statuses import TERMINAL
from durabus.store.contract import EventStore

logger = logging.getLogger("durabus.projections")

Apply = Callable[[Sequence[LogEntry]], Awaitable[None] | None]


class ProjectionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far a projection has come. ``lag`` counts log entries it has not seen."""

    name: str
    version: int
    position: str
    lag: int


class EventLogProjectionBuilder:
    """Feeds the log of finalized events to ``apply``, batch by batch, in commit order.

    - Named and versioned: the position belongs to (name, version). A new version starts from the beginning of the log
      and builds beside the old one.
    - At least once: the position is saved after ``apply`` returned, so a crash repeats the last batch. Make ``apply``
      idempotent, by the entry's ``position`` or the event's ``id``.
    - One runner at a time: the runner holds a leased lock; a second one waits, and takes over when the first is gone.
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
        self._lease = seconds(lease, "lease", allow_zero=False)
        self._poll_interval = seconds(poll_interval, "poll_interval", allow_zero=False)
        self._stop = asyncio.Event()

    @property
    def _key(self) -> str:
        return f"{self.name}@{self.version}"

    async def status(self) -> ProjectionStatus:
        """Position and lag."""
        position = await self._store.read_position(self._key)
        lag = await self._store.log_lag(position)
        return ProjectionStatus(name=self.name, version=self.version, position=position, lag=lag)

    async def run_once(self) -> int | None:
        """Bring the projection up to date; answers how many entries were applied, or None if another runner has it."""
        lock = await self._claim()
        if lock is None:
            return None
        try:
            return await self._catch_up(lock)
        finally:
            await self._release(lock)

    async def run(self) -> None:
        """Follow the log until ``stop()``. A store that fails is asked again; what ``apply`` raises ends it."""
        while not self._stop.is_set():
            try:
                lock = await self._claim()
                if lock is not None:
                    try:
                        await self._follow(lock)
                    finally:
                        await self._release(lock)
            except LeaseLost:
                continue
            except StoreClosedError:
                raise
            except StoreError as error:
                logger.warning("projection %s: store failed, trying again: %s", self._key, error)
            await self._pause()
        self._stop.clear()

    def stop(self) -> None:
        """Let ``run`` return after the present batch; one that has not begun returns at once."""
        self._stop.set()

    async def _follow(self, lock: LockClaim) -> None:
        while not self._stop.is_set():
            await self._catch_up(lock)
            await self._pause()
            lock = await self._store.renew_lock(lock, lease=self._lease)

    async def _catch_up(self, lock: LockClaim) -> int:
        position, applied = await self._store.read_position(self._key), 0
        while not self._stop.is_set():
            page = await self._store.read_log(after=position, limit=self._batch)
            if not page.entries:
                return applied
            wanted = [e for e in page.entries if e.status in TERMINAL and matches(self._pattern, e.type)]
            if wanted:
                await self._apply_under(lock, wanted)
            lock = await self._store.renew_lock(lock, lease=self._lease)
            await self._store.save_position(self._key, page.next, lock=lock)
            position, applied = page.next, applied + len(wanted)
        return applied

    async def _apply_under(self, lock: LockClaim, entries: list[LogEntry]) -> None:
        """Apply a batch while the lock is kept alive, however long it takes. A lock that is lost cancels it."""
        done = self._apply(entries)
        if not inspect.isawaitable(done):
            return
        applying, keeping = asyncio.ensure_future(done), asyncio.create_task(self._keep(lock))
        try:
            await asyncio.wait({applying, keeping}, return_when=asyncio.FIRST_COMPLETED)
            if not applying.done():
                keeping.result()  # raises: it ends only when the lock is lost
            await applying
        finally:
            for task in (applying, keeping):
                task.cancel()
            await asyncio.gather(applying, keeping, return_exceptions=True)

    async def _keep(self, lock: LockClaim) -> None:
        while True:
            await asyncio.sleep(self._lease / 3)
            try:
                await self._store.renew_lock(lock, lease=self._lease)
            except StoreError as error:
                logger.warning("projection %s: lock not renewed, trying again: %s", self._key, error)

    async def _claim(self) -> LockClaim | None:
        return await self._store.claim_lock(
            f"projection:{self._key}", worker_id=default_worker_id(), token=new_token(), lease=self._lease
        )

    async def _release(self, lock: LockClaim) -> None:
        try:
            await self._store.release_lock(lock)
        except LeaseLost:
            return  # another runner took over, and the lock is its own now
        except StoreError as error:
            logger.warning("projection %s: its lock comes back only with its lease: %s", self._key, error)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._poll_interval):
                await self._stop.wait()
        except TimeoutError:
            return

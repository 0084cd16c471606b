"""Children whose parent waits for them under a lock, while only other nodes have their handlers.

The parent's node announces such a child by a lock, ``event:awaited:{bus}:{event_id}``, which ends before the parent's
own lock can. The node that runs the child checks this lock now and then, and stops the child when the lock is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from durabus.clock import monotonic
from durabus.errors import StoreClosedError, StoreError
from durabus.model.claim import new_token
from durabus.model.statuses import EventStatus
from durabus.store.contract import EventStore
from durabus.worker.children.run_now import ChildRunner
from durabus.worker.claimed_event import ClaimedEvent, EventLock
from durabus.worker.process_watch import ProcessWatch
from durabus.worker.serial import free_lock, keep_lock, take_lock

logger = logging.getLogger("durabus.worker")

SHORTER = 2 / 3
"""The lease of an announcement, as a part of a claim's lease."""
LOOK_AT = 20
"""How many announcements of one bus a worker reads in one call."""
LOOK_EVERY = 0.5
"""Longest pause in seconds between two checks of an announcement: a parent that gave up cannot end before that."""


def _prefix(bus: str) -> str:
    return f"event:awaited:{bus}:"


@asynccontextmanager
async def announced(store: EventStore, bus: str, event_id: str, worker_id: str, lease: float) -> AsyncIterator[None]:
    """Inside this block, nodes that have the handlers may run the event without the lock of its bus."""
    token, shorter, sent = new_token(ProcessWatch.of(store).incarnation), lease * SHORTER, monotonic()
    lock = await take_lock(store, _prefix(bus) + event_id, worker_id=worker_id, token=token, lease=shorter)
    if lock is None:
        yield  # another handler waits for the event too, and has announced it
        return
    renewing = asyncio.create_task(keep_lock(store, lock, shorter, sent))
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        await free_lock(store, lock)


async def awaited_events(store: EventStore, bus: str) -> list[str]:
    """The ids of the announced events of a bus."""
    prefix = _prefix(bus)
    locks = await store.list_locks(after=prefix, limit=LOOK_AT)
    return [lock.key.removeprefix(prefix) for lock in locks if lock.key.startswith(prefix)]


async def is_awaited(store: EventStore, bus: str, event_id: str) -> bool:
    """Whether the event is announced now. False if the store fails."""
    key = _prefix(bus) + event_id
    try:
        locks = await store.list_locks(after=key[:-1], limit=LOOK_AT)
    except Exception as error:  # noqa: BLE001  (after any error, the locks are not known)
        logger.warning("cannot tell whether event %s is still awaited: %s", event_id, error)
        return False
    return any(lock.key == key for lock in locks)


async def until_withdrawn(store: EventStore, bus: str, event_id: str, lease: float) -> None:
    """Return when the event is not announced any more, or the store fails."""
    while True:
        await asyncio.sleep(min(lease / 10, LOOK_EVERY))
        if not await is_awaited(store, bus, event_id):
            return


async def until_let_go(store: EventStore, event_id: str, lease: float) -> None:
    """Return when no node runs the event that was announced before: until then it uses its parent's lock.

    A node that claims the event checks the announcement before it runs it. So an event that does not run by then will
    not begin.
    """
    deadline = monotonic() + lease
    while monotonic() < deadline:
        try:
            event = await store.get_event(event_id)
        except StoreClosedError:
            return
        except StoreError as error:
            logger.warning("cannot tell whether event %s still runs, asking again: %s", event_id, error)
        else:
            if event is None or event.status is not EventStatus.PROCESSING:
                return
        await asyncio.sleep(min(lease / 100, LOOK_EVERY))


class AwaitedRuns:
    """Runs, on one worker, the announced events of a bus whose events hold ``lock``."""

    def __init__(
        self, runner: ChildRunner, store: EventStore, bus: str, *, lease: float, lock: EventLock | None
    ) -> None:
        self._runner = runner
        self._store = store
        self._bus = bus
        self._lease = lease
        self._lock = lock
        self.tasks: set[asyncio.Task[None]] = set()
        """A task for each running event. It stops the event when its announcement ends."""

    async def look(self) -> None:
        """Run the events that the holder of the lock waits for, on this node or another one."""
        try:
            await self._run_all()
        except StoreClosedError:
            raise
        except StoreError as error:
            logger.warning("cannot look for awaited events, trying again: %s", error)
        except Exception:
            logger.exception("worker of bus %r cannot look for awaited events, trying again", self._bus)

    async def _run_all(self) -> None:
        if not self._store.features.claims_by_event_id or self._lock is None:
            return
        for event_id in await awaited_events(self._store, self._bus):
            event = await self._store.get_event(event_id)
            if event is None or not self._runner.has_handlers(event.type):
                continue
            claimed = await self._runner.run_now(
                self._runner.request_for(event_id, with_lock=False),
                (self._lock,),
                partial(is_awaited, self._store, self._bus, event_id),
            )
            if claimed is not None:
                task = asyncio.create_task(self._watch(claimed))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)

    async def _watch(self, claimed: ClaimedEvent) -> None:
        """Stop the event when its announcement ends: it may not use its parent's lock any longer."""
        withdrawn = asyncio.create_task(
            until_withdrawn(self._store, self._bus, claimed.claim.event.event_id, self._lease)
        )
        try:
            while not withdrawn.done() and self._runner.holds(claimed):
                await asyncio.wait({withdrawn}, timeout=self._lease / 10)
            if withdrawn.done():
                await self._runner.take_back(claimed)
        finally:
            withdrawn.cancel()

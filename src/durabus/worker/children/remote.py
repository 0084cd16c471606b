"""Children whose parent waits for them under a lock, while only other nodes have their handlers.

The parent's node says so by a lock, ``event:awaited:{bus}:{event_id}``. It ends before the parent's own lock can: who
runs such a child looks at it now and then, and stops when it is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

from durabus.clock import monotonic
from durabus.errors import StoreClosedError, StoreError
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.statuses import EventStatus
from durabus.store.contract import EventStore
from durabus.worker.serial import free_lock, keep_lock, take_lock
from durabus.worker.slots import ClaimedEvent, EventLock

logger = logging.getLogger("durabus.worker")

SHORTER = 2 / 3
"""The part of a claim's lease that the word of a parent's node lasts."""
LOOK_AT = 20
"""How many children of one bus are looked at together."""
LOOK_EVERY = 0.5
"""How often who runs such a child looks, at most: so long its parent cannot end after it gave up."""


def _prefix(bus: str) -> str:
    return f"event:awaited:{bus}:"


@asynccontextmanager
async def announced(store: EventStore, bus: str, event_id: str, worker_id: str, lease: float) -> AsyncIterator[None]:
    """While this is open, nodes that have the handlers may run the event without its bus's lock."""
    token, shorter, sent = new_token(), lease * SHORTER, monotonic()
    lock = await take_lock(store, _prefix(bus) + event_id, worker_id=worker_id, token=token, lease=shorter)
    if lock is None:
        yield  # somebody else waits for it too
        return
    renewing = asyncio.create_task(keep_lock(store, lock, shorter, sent))
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        await free_lock(store, lock)


async def awaited_events(store: EventStore, bus: str) -> list[str]:
    """The ids of the events of a bus that are announced."""
    prefix = _prefix(bus)
    locks = await store.list_locks(after=prefix, limit=LOOK_AT)
    return [lock.key.removeprefix(prefix) for lock in locks if lock.key.startswith(prefix)]


async def is_awaited(store: EventStore, bus: str, event_id: str) -> bool:
    """Whether the event is announced now. False if nobody can tell."""
    key = _prefix(bus) + event_id
    try:
        locks = await store.list_locks(after=key[:-1], limit=LOOK_AT)
    except Exception as error:  # noqa: BLE001  (whatever it is, nobody can tell)
        logger.warning("cannot tell whether event %s is still awaited: %s", event_id, error)
        return False
    return any(lock.key == key for lock in locks)


async def until_withdrawn(store: EventStore, bus: str, event_id: str, lease: float) -> None:
    """Return when the event is not announced any more, or nobody can tell."""
    while True:
        await asyncio.sleep(min(lease / 10, LOOK_EVERY))
        if not await is_awaited(store, bus, event_id):
            return


async def until_let_go(store: EventStore, event_id: str, lease: float) -> None:
    """Return when nobody runs the event any more that was announced before: until then it uses its parent's lock.

    Who claimed it looks before it begins whether it is still announced, so a child seen at rest will not begin.
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


class Runner(Protocol):
    """What it needs of a worker."""

    def has_handlers(self, event_type: str) -> bool:
        """Whether events of this type have handlers here."""
        ...

    def request_for(self, event_id: str, *, with_lock: bool) -> ClaimRequest:
        """A claim on one event."""
        ...

    async def run_at_once(
        self, request: ClaimRequest, under: tuple[EventLock, ...], is_wanted: Callable[[], Awaitable[bool]]
    ) -> ClaimedEvent | None:
        """Claim it and run it before all others."""
        ...

    def holds(self, running: ClaimedEvent) -> bool:
        """Whether the claim is neither lost nor settled."""
        ...

    async def take_back(self, running: ClaimedEvent) -> None:
        """Put it back into the queue if it has not ended."""
        ...


class AwaitedRuns:
    """Of one worker, on a bus with ``lock``."""

    def __init__(self, runner: Runner, store: EventStore, bus: str, *, lease: float, lock: EventLock | None) -> None:
        self._runner = runner
        self._store = store
        self._bus = bus
        self._lease = lease
        self._lock = lock
        self.tasks: set[asyncio.Task[None]] = set()
        """They watch what runs."""

    async def look(self) -> None:
        """There may be work behind the lock, and part of it what the lock's own holder waits for, here or elsewhere."""
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
            running = await self._runner.run_at_once(
                self._runner.request_for(event_id, with_lock=False),
                (self._lock,),
                partial(is_awaited, self._store, self._bus, event_id),
            )
            if running is not None:
                task = asyncio.create_task(self._watch(running))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)

    async def _watch(self, running: ClaimedEvent) -> None:
        """Nobody may wait for it any more, and then its parent's lock is no excuse: stop."""
        withdrawn = asyncio.create_task(
            until_withdrawn(self._store, self._bus, running.claim.event.event_id, self._lease)
        )
        try:
            while not withdrawn.done() and self._runner.holds(running):
                await asyncio.wait({withdrawn}, timeout=self._lease / 10)
            if withdrawn.done():
                await self._runner.take_back(running)
        finally:
            withdrawn.cancel()

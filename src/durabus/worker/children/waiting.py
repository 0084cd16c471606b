"""Handlers that wait for the end of other events: they yield their slots, and awaited children run at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from typing import Protocol

from durabus.errors import ConfigurationError, StoreClosedError, StoreError
from durabus.model.claim import ClaimRequest, event_lock_key
from durabus.model.statuses import EventMode
from durabus.store.contract import EventStore
from durabus.worker.children.remote import announced, until_let_go
from durabus.worker.children.run_now import ChildRunner
from durabus.worker.claimed_event import ClaimedEvent, EventLock
from durabus.worker.slots import SLOT
from durabus.worker.threads import CALL

logger = logging.getLogger("durabus.bus")

ASK_SOON = 0.01
ASK_SELDOM = 0.5
"""Longest pause between two claims of a child that is delayed, waits for a retry, or runs on another node."""


def event_lock(store: EventStore, mode: EventMode, bus: str) -> EventLock | None:
    """The lock that an event of the bus holds while it runs; None in parallel mode."""
    key = event_lock_key(mode, bus)
    return None if key is None else (store, key)


def handled_here() -> ClaimedEvent | None:
    """The event whose handler calls this; None outside of handlers."""
    slot = SLOT.get()
    return None if slot is None or slot.claimed is None or slot.claimed.task is None else slot.claimed


def emits_here() -> bool:
    """Whether the handler that calls this runs on this event loop: only then can its success wait for what it emits."""
    slot = SLOT.get()
    return slot is not None and slot.slots.loop is asyncio.get_running_loop()


def refuse_endless_wait(lock: EventLock | None) -> None:
    """Raise if a handler would wait for an event that needs a lock which the handler's own event holds."""
    claimed = handled_here()
    if claimed is not None and lock is not None and lock in claimed.locks:
        raise ConfigurationError(
            f"a handler of {claimed.claim.event.type!r} waits for the end of another event, but in this mode one event "
            f"runs at a time ({lock[1]}), and {lock[0].features.scheme}:// cannot claim a child by its name: use emit "
            "there and do not await the handle, or mode='parallel'"
        )


@contextmanager
def waiting_for(event_id: str) -> Iterator[None]:
    """Yield the handler's slot, and its thread if it has one, while the block waits for the end of an event.

    So events that wait for each other cannot use up all slots. Outside of handlers this does nothing.
    """
    slot, claimed = SLOT.get(), handled_here()
    if slot is None or claimed is None:
        yield
        return
    if claimed.claim.event.event_id == event_id:
        raise ConfigurationError(f"the handler of event {event_id} waits for the end of this very event")
    slots, thread_call = slot.slots, CALL.get()
    with nullcontext() if thread_call is None else thread_call.waiting():
        _call(slots.loop, slots.yield_slot, claimed)
        try:
            yield
        finally:
            _call(slots.loop, slots.resume, claimed)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[ClaimedEvent], None], claimed: ClaimedEvent) -> None:
    """Call the function on the loop of the slots: a handler may wait for an event of a bus on another loop."""
    if loop is asyncio.get_running_loop():
        function(claimed)
        return
    with suppress(RuntimeError):  # that loop is closed, and its slots are gone
        loop.call_soon_threadsafe(function, claimed)


class AwaitedEvent(Protocol):
    """An event whose end a handler waits for."""

    @property
    def id(self) -> int | None:
        """The number that the store gave the event; None until it is stored."""
        ...

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        ...

    async def ended(self) -> None:
        """Wait for its end without running it."""
        ...


class AwaitedChildren:
    """Runs the awaited children of one bus.

    The wait of a parent may end before its child: the parent fails, times out, is cancelled or loses its claim, or its
    handler stops waiting. The rule is the same for all of these:

    - A child under the parent's lock goes back to the queue without losing an attempt, and the wait ends when its
      handler has stopped. If the child runs on another node, the parent withdraws its announcement, and that node gives
      the child back.
    - A child apart goes on. If it ran under locks of its parent too, it goes on without them; if it waits for another
      event at that moment, it goes back to the queue.
    """

    def __init__(
        self, store: EventStore, bus: str, lock: EventLock | None, *, lease: float, has_remote: Callable[[str], bool]
    ) -> None:
        self._store = store
        self._bus = bus
        self._lock = lock
        self._lease = lease
        self._has_remote = has_remote
        self.runner: ChildRunner | None = None

    async def wait(self, event_id: str, event_type: str, child: AwaitedEvent) -> None:
        """Run the event if this node can claim it, and wait for its end. Only a handler calls this."""
        parent = handled_here()
        if not self._store.features.claims_by_event_id:
            refuse_endless_wait(self._lock)
            await child.ended()
            return
        if parent is None or (self.runner is None and not self._shares(parent)):
            await child.ended()
            return
        if not self._shares(parent):
            await self._run_apart(event_id, event_type, child, parent)
            if child.done:
                return
        async with _turn(parent):
            if not parent.has_begun:
                await child.ended()  # the parent has ended meanwhile, and its lock is free
                return
            await self._run(event_id, event_type, child, parent, shares=True)
            if not child.done:
                await self._leave_to_others(event_id, child, parent.claim.event.worker_id or "")

    def _shares(self, parent: ClaimedEvent) -> bool:
        """Whether the parent runs under the lock that its child needs. It may get that lock while it waits."""
        return self._lock is not None and self._lock in parent.locks

    async def _run_apart(self, event_id: str, event_type: str, child: AwaitedEvent, parent: ClaimedEvent) -> None:
        """Run the child until it has ended, or the parent runs under the lock that the child needs.

        The child runs under the parent's locks, however it was claimed. Otherwise an event that the child waits for
        would wait for a lock that the parent holds.
        """
        runner = self.runner
        if runner is None or not parent.locks:
            await self._run(event_id, event_type, child, parent, shares=False)
            return
        with runner.share_locks(event_id, parent.locks):
            claimed = runner.claimed_event(child.id)
            if claimed is not None:
                claimed.add_locks(parent.locks)
            try:
                await self._run(event_id, event_type, child, parent, shares=False)
            finally:
                claimed = runner.claimed_event(child.id)
                if claimed is not None and not child.done:
                    # The parent continues or ends: what ran under its locks must not outlive the wait.
                    await runner.take_locks_back(claimed, parent.locks)

    async def _leave_to_others(self, event_id: str, child: AwaitedEvent, worker_id: str) -> None:
        try:
            async with announced(self._store, self._bus, event_id, worker_id, self._lease):
                await child.ended()
        finally:
            if not child.done:
                await until_let_go(self._store, event_id, self._lease)

    async def _run(
        self, event_id: str, event_type: str, child: AwaitedEvent, parent: ClaimedEvent, *, shares: bool
    ) -> None:
        """Run the child until it has ended, or only its handlers here if other nodes have handlers behind the lock."""
        runner, claimed, pause = self.runner, None, ASK_SOON
        if runner is None:
            return
        request = runner.request_for(event_id, with_lock=not shares)
        try:
            while not child.done and shares is self._shares(parent):
                others = shares and self._has_remote(event_type)
                if others and (claimed is not None or not runner.has_handlers(event_type)):
                    if claimed is None or not runner.is_running(claimed.ref.id):
                        return
                elif child.id is None or not runner.is_running(child.id):
                    claimed = await self._ask(runner, request, parent) or claimed
                await _ended_within(child, None if self._lock is None else pause)
                pause = min(pause * 2, ASK_SELDOM)
        finally:
            if shares and claimed is not None and not child.done:
                # The parent continues or ends: what ran under its lock must not outlive the wait.
                await runner.take_back(claimed)

    async def _ask(self, runner: ChildRunner, request: ClaimRequest, parent: ClaimedEvent) -> ClaimedEvent | None:
        try:
            return await runner.run_now(request, parent.locks)
        except StoreClosedError:
            raise
        except StoreError as error:
            logger.warning("child event %s cannot be claimed, trying again: %s", request.event_id, error)
            return None


async def _ended_within(child: AwaitedEvent, seconds: float | None) -> None:
    """Wait for the child's end. In parallel mode (None) a worker claims it, so the caller need not ask again."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await child.ended()


@asynccontextmanager
async def _turn(parent: ClaimedEvent) -> AsyncIterator[None]:
    """Make the children that run under their parent's lock run one at a time, as the mode demands."""
    if parent.child_turn is None:
        parent.child_turn, parent.children = asyncio.Lock(), parent.children or []
    async with parent.child_turn:
        yield

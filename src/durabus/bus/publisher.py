"""The publisher stores emitted events, and reports to their handles how the events end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

from durabus.bus.ends import EndWatch
from durabus.bus.finder import Finder
from durabus.bus.handle import BusLoop, Handle
from durabus.bus.history import HistoryLimit
from durabus.errors import (
    ConfigurationError,
    DurabusError,
    EventBusShutdownError,
    EventNotFound,
    StoreClosedError,
)
from durabus.model.event import Event
from durabus.model.limits import MAX_BATCH
from durabus.model.statuses import TERMINAL
from durabus.store.contract import EventStore
from durabus.worker.children.emissions import EmittingCall
from durabus.worker.children.waiting import AwaitedChildren, emits_here, handled_here

logger = logging.getLogger("durabus.bus")


class HeldEvent:
    """Holds an event of a publisher for the success of the handler that emitted it."""

    __slots__ = ("_publisher", "_run", "store")

    def __init__(self, publisher: Publisher, run: EmittingCall) -> None:
        self._publisher = publisher
        self._run = run
        self.store = publisher.store

    def let_go(self, handle: Handle) -> None:
        """Store the event now."""
        self._run.let_go(handle)
        self._publisher.send_now(handle)

    def added(self, handle: Handle) -> None:
        """The store has the event."""
        self._publisher.ends.stored(handle)
        self._publisher.ends.reader.look_from_now_on()
        if handle.new.idempotency_key is not None:
            task = asyncio.get_running_loop().create_task(self._learn(handle))
            self._publisher.sending.add(task)
            task.add_done_callback(self._publisher.sending.discard)

    def drop(self, handle: Handle) -> None:
        """Forget the handle."""
        self._publisher.drop(handle)

    async def stored_event(self, handle: Handle) -> Event | BaseException:
        """Return the event that the store has, or why it has none."""
        new = handle.new
        try:
            event = await self.store.get_event(new.event_id)
            if event is None and new.idempotency_key is not None:
                (event,) = await self.store.add_events([new])  # another event has the key: this returns it
        except DurabusError as error:
            return error
        return event or EventNotFound(new.event_id)

    async def _learn(self, handle: Handle) -> None:
        """Find the event with the key of this one: both handles wait for its end."""
        try:
            event = await handle.stored()
        except DurabusError as error:
            logger.warning("event %s is stored, and cannot be read: %s", handle.event_id, error)
            return
        if event.event_id != handle.event_id and not handle.done:
            self._publisher.rename(handle, event.event_id)
            self._publisher.ends.stored(handle)
            if event.status in TERMINAL:
                await self._publisher.ends.reader.look_at([event.event_id])


class Publisher:
    """Stores the events that were emitted in one turn of the loop as one batch, and completes their handles."""

    def __init__(
        self,
        store: EventStore,
        bus: str,
        *,
        ready: Callable[[], Awaitable[None]],
        children: AwaitedChildren,
        finder: Finder,
        history: HistoryLimit,
    ) -> None:
        self.store = store
        self._bus = bus
        self._ready = ready
        self._children = children
        self._finder = finder
        self._history = history
        self._bus_loop: BusLoop | None = None
        self._unsent: list[Handle] = []
        self._batches: list[list[Handle]] = []
        """The batches that are being stored."""
        self._watched: list[list[Handle]] = []
        self.by_event_id: dict[str, list[Handle]] = {}
        self.ends = EndWatch(store, self)
        history.node = self.ends.node
        self.sending: set[asyncio.Task[None]] = set()
        self._scheduled = self._claims_behind = False
        self._empty = asyncio.Event()
        self._empty.set()
        self._closed: DurabusError | None = None
        self._cut_off: DurabusError | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of the first call; None before it."""
        return None if self._bus_loop is None else self._bus_loop.loop

    def bind(self) -> BusLoop:
        """Belong to the event loop of the first call; raise on every other loop."""
        if self._bus_loop is None:
            self._bus_loop = BusLoop(self._bus, self._children, self.ends, asyncio.get_running_loop())
        self._bus_loop.refuse_other_loops()
        return self._bus_loop

    def send(self, handle: Handle, run: EmittingCall | None = None) -> None:
        """Store the event with everything else that is emitted in this turn of the loop.

        An event that a handler emits is held until the handler has succeeded, or waits for it.
        """
        bus_loop = self._bus_loop or self.bind()
        bus_loop.refuse_other_loops()
        if self._closed is not None:
            raise self._closed
        handle.bus_loop = bus_loop
        if not self.by_event_id:
            self._empty.clear()
        self.by_event_id.setdefault(handle.new.event_id, []).append(handle)
        if run is not None and emits_here():
            if handle.new.parent_id is not None:
                self.ends.address_one(handle)  # its parent will wait for it
            handle.holder = HeldEvent(self, run)
            handle.room = self._history if self._history.is_limited else None
            run.hold(handle)
        else:
            self.send_now(handle)

    def send_now(self, handle: Handle) -> None:
        """Store an event that was emitted in this turn of the loop, or was held."""
        self._unsent.append(handle)
        for watched in self._watched:
            watched.append(handle)
        if not self._scheduled:
            self._scheduled = True
            self._send_soon()
        if not (self._claims_behind or handle.new.delay):
            self._claims_behind = True
            runner = self._children.runner
            if runner is not None and self.store.features.calls_in_order:
                runner.nudge()  # its claim follows the event, in the same step if the store can do that

    def rename(self, handle: Handle, event_id: str) -> None:
        """Let the handle wait for the end of another event: that one was published before under the same key."""
        self.drop(handle)
        self.by_event_id.setdefault(event_id, []).append(handle)
        self._empty.clear()

    def runs_here(self, id_: int) -> bool:
        """Whether the worker of this bus holds the event: it reports the end itself."""
        runner = self._children.runner
        return runner is not None and runner.is_running(id_)

    def has_handlers(self, event_type: str) -> bool:
        """Whether the worker of this bus has handlers for the type."""
        runner = self._children.runner
        return runner is not None and runner.has_handlers(event_type)

    def take(self, event_id: str) -> Sequence[Handle]:
        """Remove and return the handles of an event that has ended, if this publisher sent it."""
        handles = self.by_event_id.pop(event_id, ())
        if handles and not self.by_event_id:
            self._empty.set()
        return handles

    def cancelled(self, event: Event, reason: str) -> None:
        """Report to its handles that a caller in this process cancelled the event."""
        self._history.one_ended()
        for handle in self.take(event.event_id):
            handle.finish(event, (), reason)

    @contextmanager
    def watch(self) -> Iterator[list[Handle]]:
        """The events that are not stored yet, oldest first; events sent meanwhile join the list."""
        watched = [*chain.from_iterable(self._batches), *self._unsent]
        self._watched.append(watched)
        try:
            yield watched
        finally:
            self._watched = [other for other in self._watched if other is not watched]

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  (a store that hangs is left behind)
        """Wait until every event emitted so far is stored or refused."""
        if self.sending:
            await asyncio.wait(self.sending, timeout=timeout)

    async def wait_until_empty(self, timeout: float | None) -> bool:  # noqa: ASYNC109  (returns, does not raise)
        """Wait until every event of this publisher has ended. Raises the error of ``close`` if some were cut off."""
        if self._bus_loop is not None:
            self._bus_loop.refuse_other_loops()
        running = handled_here()
        if running is not None and running.claim.event.event_id in self.by_event_id:
            raise ConfigurationError(
                f"a handler waits until bus {self._bus!r} is idle, but its own event is one of those it waits for"
            )
        try:
            with self.ends.waiting_for_all():
                async with asyncio.timeout(timeout):
                    await self._empty.wait()
        except TimeoutError:
            return False
        if self._cut_off is not None:
            raise self._cut_off
        return True

    def give_up_sending(self) -> set[asyncio.Task[None]]:
        """Refuse the events that the store has not confirmed. Returns the tasks that are ending."""
        for handle in [*chain.from_iterable(self._batches), *self._unsent]:
            self.drop(handle)
            handle.refuse(
                EventBusShutdownError(
                    f"bus {self._bus!r} was shut down before the store confirmed event {handle.event_id}: it may be "
                    "stored or not, and publishing it again with this event_id stores it once"
                )
            )
        self._unsent.clear()
        for task in self.sending:
            task.cancel()
        return set(self.sending)

    def close(self, error: DurabusError) -> set[asyncio.Task[None]]:
        """Take no further event; all waits for ends of events raise ``error``. Returns the tasks that are ending."""
        ending = self.ends.close()
        if self._closed is None:
            self._closed = error
        if self.by_event_id:
            self._cut_off = error
        for handles in self.by_event_id.values():
            for handle in handles:
                handle.refuse(error)
        self.by_event_id.clear()
        self._empty.set()
        return ending

    def store_closed(self, error: StoreClosedError) -> None:
        """Close: no end can be learned from this store any more."""
        self.close(StoreClosedError(f"the store was closed under bus {self._bus!r}: {error}"))

    def _send_soon(self) -> None:
        """Start the task that stores what is emitted until it begins, which is in the next turn of the loop."""
        task = asyncio.get_running_loop().create_task(self._send_unsent())
        self.sending.add(task)
        task.add_done_callback(self.sending.discard)

    async def _send_unsent(self) -> None:
        unsent, self._unsent = self._unsent, []
        self._scheduled = self._claims_behind = False
        batches = [unsent[first : first + MAX_BATCH] for first in range(0, len(unsent), MAX_BATCH)]
        self._batches += batches
        if len(batches) == 1:
            await self._store_batch(batches[0])
        else:
            await asyncio.gather(*map(self._store_batch, batches))

    async def _store_batch(self, batch: list[Handle]) -> None:
        try:
            await self._ready()
            await self._history.admit(len(batch))
            self.ends.address(batch)
            events = await self.store.add_events([handle.new for handle in batch])
        except Exception as error:  # noqa: BLE001  (the handles get it, whatever it is)
            logger.error("%s events were not stored, %s the first: %s", len(batch), batch[0].new.type, error)  # noqa: TRY400
            for handle in batch:
                self.drop(handle)
                handle.refuse(error)
            return
        finally:
            self._batches = [other for other in self._batches if other is not batch]
        ended: list[str] = []
        for handle, event in zip(batch, events, strict=True):
            handle.accept(event)
            if self._closed is not None:
                continue  # the handle has the error of ``close``
            if event.event_id != handle.new.event_id:
                # It was published before under the same idempotency key: both handles wait for the end of that event.
                self.rename(handle, event.event_id)
            self.ends.stored(handle)
            if event.status in TERMINAL:
                ended.append(event.event_id)  # it was published before
        if ended:
            await self.ends.reader.look_at(ended)
        if self._finder:
            await self._finder.stored(events)
        self.ends.reader.look_from_now_on()

    def drop(self, handle: Handle) -> None:
        """Forget one handle, but not others of the same event."""
        others = [other for other in self.by_event_id.get(handle.event_id, ()) if other is not handle]
        if others:
            self.by_event_id[handle.event_id] = others
        else:
            self.take(handle.event_id)

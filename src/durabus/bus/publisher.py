"""The publisher stores emitted events, and reports to their handles how the events end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice

from durabus.bus.finder import Finder
from durabus.bus.handle import BusLoop, Handle
from durabus.bus.history import HistoryLimit
from durabus.errors import ConfigurationError, DurabusError, EventNotFound, StoreClosedError
from durabus.model.limits import MAX_BATCH
from durabus.model.result import HandlerResult
from durabus.model.statuses import TERMINAL
from durabus.store.contract import EventStore
from durabus.worker.children.waiting import AwaitedChildren, handled_here

logger = logging.getLogger("durabus.bus")

LOOK_EVERY = 0.5
"""Seconds between two reads of events that other processes may have ended."""
LOOK_AT_ONCE = 200
LOOK_THROUGH = 10 * LOOK_AT_ONCE
"""Maximum number of entries to scan while looking for events that are not running in this process."""


class Publisher:
    """Stores the events that were emitted in one turn of the loop as one batch, and completes their handles."""

    def __init__(
        self,
        store: EventStore,
        bus: str,
        *,
        ready: Callable[[], Awaitable[None]],
        runs_here: Callable[[int], bool],
        children: AwaitedChildren,
        finder: Finder,
        history: HistoryLimit,
    ) -> None:
        self._store = store
        self._bus = bus
        self._ready = ready
        self._runs_here = runs_here
        self._children = children
        self._finder = finder
        self._history = history
        self._bus_loop: BusLoop | None = None
        self._unsent: list[Handle] = []
        self._batches: list[list[Handle]] = []
        """The batches that are being stored."""
        self._watched: list[list[Handle]] = []
        self._open: dict[str, list[Handle]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self._looking: asyncio.Task[None] | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._closed: DurabusError | None = None
        self._cut_off: DurabusError | None = None

    def bind(self) -> BusLoop:
        """Belong to the event loop of the first call; raise on every other loop."""
        if self._bus_loop is None:
            self._bus_loop = BusLoop(self._bus, self._children, asyncio.get_running_loop())
        self._bus_loop.refuse_other_loops()
        return self._bus_loop

    def send(self, handle: Handle) -> None:
        """Store the event with everything else that is emitted in this turn of the loop."""
        bus_loop = self._bus_loop or self.bind()
        bus_loop.refuse_other_loops()
        if self._closed is not None:
            raise self._closed
        handle.bus_loop = bus_loop
        self._unsent.append(handle)
        for watched in self._watched:
            watched.append(handle)
        if not self._open:
            self._empty.clear()
        self._open.setdefault(handle.new.event_id, []).append(handle)
        if not self._scheduled:
            self._scheduled = True
            bus_loop.loop.call_soon(self._send_unsent)

    def take(self, event_id: str) -> Sequence[Handle]:
        """Remove and return the handles of an event that has ended, if this publisher sent it."""
        handles = self._open.pop(event_id, ())
        if not self._open:
            self._empty.set()
        return handles

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
        self._send_unsent()
        if self._sending:
            await asyncio.wait(self._sending, timeout=timeout)

    async def wait_until_empty(self, timeout: float | None) -> bool:  # noqa: ASYNC109  (returns, does not raise)
        """Wait until every event of this publisher has ended. Raises the error of ``close`` if some were cut off."""
        if self._bus_loop is not None:
            self._bus_loop.refuse_other_loops()
        running = handled_here()
        if running is not None and running.claim.event.event_id in self._open:
            raise ConfigurationError(
                f"a handler waits until bus {self._bus!r} is idle, but its own event is one of those it waits for"
            )
        try:
            async with asyncio.timeout(timeout):
                await self._empty.wait()
        except TimeoutError:
            return False
        if self._cut_off is not None:
            raise self._cut_off
        return True

    def close(self, error: DurabusError) -> None:
        """Take no further event. All waits for the end of an event raise ``error``."""
        if self._looking is not None:
            self._looking.cancel()
        if self._closed is None:
            self._closed = error
        if self._open:
            self._cut_off = error
        for handles in self._open.values():
            for handle in handles:
                handle.refuse(error)
        self._open.clear()
        self._empty.set()

    def _send_unsent(self) -> None:
        self._scheduled = False
        while self._unsent:
            batch, self._unsent = self._unsent[:MAX_BATCH], self._unsent[MAX_BATCH:]
            self._batches.append(batch)
            task = asyncio.get_running_loop().create_task(self._store_batch(batch))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _store_batch(self, batch: list[Handle]) -> None:
        try:
            await self._ready()
            await self._history.admit(len(batch))
            events = await self._store.add_events([handle.new for handle in batch])
        except Exception as error:  # noqa: BLE001  (the handles get it, whatever it is)
            logger.error("%s events were not stored, %s the first: %s", len(batch), batch[0].new.type, error)  # noqa: TRY400
            for handle in batch:
                self.drop(handle)
                handle.refuse(error)
            return
        finally:
            self._batches = [other for other in self._batches if other is not batch]
        for handle, event in zip(batch, events, strict=True):
            handle.accept(event)
            if self._closed is not None:
                continue  # the handle has the error of ``close``
            if event.event_id != handle.new.event_id:
                # It was published before under the same idempotency key: both handles wait for the end of that event.
                self.drop(handle)
                self._open.setdefault(event.event_id, []).append(handle)
                self._empty.clear()
            if event.status in TERMINAL:
                for ended in self.take(event.event_id):
                    ended.finish(event, ())
        if self._finder:
            await self._finder.stored(events)
        if self._looking is None and self._closed is None:
            self._looking = asyncio.get_running_loop().create_task(self._look_for_ends())

    def drop(self, handle: Handle) -> None:
        """Forget one handle, but not others of the same event."""
        others = [other for other in self._open.get(handle.event_id, ()) if other is not handle]
        if others:
            self._open[handle.event_id] = others
        else:
            self.take(handle.event_id)

    async def _look_for_ends(self) -> None:
        """Read the events that run in other processes; the worker reports those that run here."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            while await self._most_had_ended():
                pass  # other processes end events faster than this reads them: catch up

    async def _most_had_ended(self) -> bool:
        """Read the events that were read longest ago. Returns whether to read the next ones at once."""
        asked = ended = 0
        for event_id in list(islice(self._open, LOOK_THROUGH)):
            handles = self._open.pop(event_id, None)
            if handles is None:
                continue  # the event ended meanwhile
            self._open[event_id] = handles  # to the end, also if it runs here: each event gets its turn
            if handles[0].id is not None and not self._runs_here(handles[0].id):
                asked += 1
                ended += await self._look_at(event_id)
                if asked == LOOK_AT_ONCE:
                    break
        return ended > LOOK_AT_ONCE / 2

    async def _look_at(self, event_id: str) -> bool:
        """Read one event. Returns whether it has ended or is gone."""
        results: tuple[HandlerResult, ...] = ()
        try:
            event = await self._store.get_event(event_id)
            if event is not None:
                if event.status not in TERMINAL:
                    return False
                results = tuple(await self._store.list_results(event.id))
        except StoreClosedError as error:
            self.close(error)
            return False
        except DurabusError as error:
            logger.warning("cannot read event %s, trying again: %s", event_id, error)
            return False
        except Exception:
            logger.exception("cannot read event %s, trying again", event_id)  # without this the task would end
            return False
        for handle in self.take(event_id):
            if event is None:
                handle.refuse(EventNotFound(event_id))
            else:
                handle.finish(event, results)
        return True

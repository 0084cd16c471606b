"""Events on their way from ``emit`` to the store, and the handles of those whose end somebody may wait for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from durabus.bus.handle import Handle
from durabus.clock import monotonic
from durabus.errors import DurabusError
from durabus.model.event import Event
from durabus.model.limits import MAX_BATCH
from durabus.model.result import HandlerResult
from durabus.model.statuses import TERMINAL
from durabus.store.contract import EventStore

logger = logging.getLogger("durabus.bus")

LOOK_EVERY = 0.5
"""How often the store is asked about events that other processes may have ended."""
LOOK_AT_ONCE = 200


class Outbox:
    """Stores what was emitted in one turn of the loop as one batch, and tells handles how their events end."""

    def __init__(self, store: EventStore, *, on_lost_sight: Callable[[int], bool]) -> None:
        self._store = store
        self._runs_here = on_lost_sight
        self._unsent: list[Handle] = []
        self._open: dict[str, Handle] = {}
        self._ids: dict[str, int] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self._looking: asyncio.Task[None] | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    def send(self, handle: Handle) -> None:
        """Store the event with everything else that is emitted in this turn of the loop."""
        self._unsent.append(handle)
        self._open[handle.new.event_id] = handle
        self._empty.clear()
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._send_unsent)

    def awaits(self, event_id: str) -> bool:
        """Whether the event was sent from here and has not ended."""
        return event_id in self._open

    def finish(self, event: Event, results: tuple[HandlerResult, ...]) -> None:
        """The event has ended."""
        handle = self._open.pop(event.event_id, None)
        self._ids.pop(event.event_id, None)
        if handle is not None:
            handle.finish(event, results)
        if not self._open:
            self._empty.set()

    async def flush(self) -> None:
        """Wait until everything emitted so far is stored or refused."""
        self._send_unsent()
        if self._sending:
            await asyncio.wait(self._sending)

    async def wait_until_empty(self, timeout: float | None) -> bool:  # noqa: ASYNC109  (answers, does not raise)
        """Wait until every event sent from here has ended."""
        try:
            async with asyncio.timeout(timeout):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def close(self, error: DurabusError) -> None:
        """Whoever still waits learns that the end will not be known here."""
        if self._looking is not None:
            self._looking.cancel()
        for handle in self._open.values():
            handle.refuse(error)
        self._open.clear()
        self._ids.clear()
        self._empty.set()

    def _send_unsent(self) -> None:
        self._scheduled = False
        while self._unsent:
            batch, self._unsent = self._unsent[:MAX_BATCH], self._unsent[MAX_BATCH:]
            task = asyncio.get_running_loop().create_task(self._store_batch(batch))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _store_batch(self, batch: list[Handle]) -> None:
        try:
            events = await self._store.add_events([handle.new for handle in batch])
        except DurabusError as error:
            for handle in batch:
                self._open.pop(handle.event_id, None)
                handle.refuse(error)
            if not self._open:
                self._empty.set()
            return
        for handle, event in zip(batch, events, strict=True):
            if handle.done:
                continue
            handle.accept(event)
            if event.event_id != handle.event_id:
                self._follow_original(handle, event)
            elif event.status in TERMINAL:
                self.finish(event, ())
            else:
                self._ids[event.event_id] = event.id
        if self._looking is None and self._store.features.shared_between_processes:
            self._looking = asyncio.get_running_loop().create_task(self._look_for_ends())

    def _follow_original(self, handle: Handle, original: Event) -> None:
        """An idempotency key was known: the handle speaks of an event that was published before."""
        self._open.pop(handle.event_id, None)
        handle.finish(original, ())
        if not self._open:
            self._empty.set()

    async def _look_for_ends(self) -> None:
        """Ask about events that run in other processes; those that run here report by themselves."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            if not self._ids:
                continue
            started = monotonic()
            unseen = [id_ for id_ in list(self._ids.values())[:LOOK_AT_ONCE] if not self._runs_here(id_)]
            try:
                for id_ in unseen:
                    event = await self._store.get_event(id_)
                    if event is not None and event.status in TERMINAL:
                        self.finish(event, tuple(await self._store.list_results(id_)))
            except DurabusError as error:
                logger.warning("cannot look after %s events: %s", len(unseen), error)
            if monotonic() - started > LOOK_EVERY:
                await asyncio.sleep(LOOK_EVERY)

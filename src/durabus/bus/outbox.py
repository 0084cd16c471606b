"""Events on their way from ``emit`` to the store, and the handles of those whose end somebody may wait for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from durabus.bus.handle import Handle
from durabus.errors import DurabusError, EventNotFound, StoreClosedError
from durabus.model.limits import MAX_BATCH
from durabus.model.statuses import TERMINAL
from durabus.store.contract import EventStore

logger = logging.getLogger("durabus.bus")

LOOK_EVERY = 0.5
"""How often the store is asked about events that other processes may have ended."""
LOOK_AT_ONCE = 200


class Outbox:
    """Stores what was emitted in one turn of the loop as one batch, and tells handles how their events end."""

    def __init__(
        self, store: EventStore, *, ready: Callable[[], Awaitable[None]], runs_here: Callable[[int], bool]
    ) -> None:
        self._store = store
        self._ready = ready
        self._runs_here = runs_here
        self._unsent: list[Handle] = []
        self._open: dict[str, list[Handle]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self._looking: asyncio.Task[None] | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    def send(self, handle: Handle) -> None:
        """Store the event with everything else that is emitted in this turn of the loop."""
        loop = asyncio.get_running_loop()  # raises in a thread without one, before anything is queued
        self._unsent.append(handle)
        if not self._open:
            self._empty.clear()
        self._open.setdefault(handle.new.event_id, []).append(handle)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._send_unsent)

    def take(self, event_id: str) -> Sequence[Handle]:
        """The handles of an event that has ended, if it was sent from here."""
        handles = self._open.pop(event_id, ())
        if not self._open:
            self._empty.set()
        return handles

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
        for handles in self._open.values():
            for handle in handles:
                handle.refuse(error)
        self._open.clear()
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
            await self._ready()
            events = await self._store.add_events([handle.new for handle in batch])
        except Exception as error:  # noqa: BLE001  (whatever it is, it is told to those who wait)
            logger.error("%s events were not stored, %s the first: %s", len(batch), batch[0].new.type, error)  # noqa: TRY400
            for handle in batch:
                self.drop(handle)
                handle.refuse(error)
            return
        for handle, event in zip(batch, events, strict=True):
            handle.accept(event)
            if event.event_id != handle.new.event_id:
                # Published before under the same idempotency key: the first one's end is this one's end too.
                self.drop(handle)
                self._open.setdefault(event.event_id, []).append(handle)
                self._empty.clear()
            if event.status in TERMINAL:
                for ended in self.take(event.event_id):
                    ended.finish(event, ())
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look_for_ends())

    def drop(self, handle: Handle) -> None:
        """Forget one handle, but not others of the same event."""
        others = [other for other in self._open.get(handle.event_id, ()) if other is not handle]
        if others:
            self._open[handle.event_id] = others
        else:
            self.take(handle.event_id)

    async def _look_for_ends(self) -> None:
        """Ask about events that run in other processes; those that run here report by themselves."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            for event_id in list(islice(self._open, LOOK_AT_ONCE)):
                handles = self._open.get(event_id)
                id_ = handles[0].id if handles else None
                if handles and id_ is not None and not self._runs_here(id_):
                    self._open[event_id] = self._open.pop(event_id)  # to the end, so that everyone's turn comes
                    await self._look_at(event_id)

    async def _look_at(self, event_id: str) -> None:
        try:
            event = await self._store.get_event(event_id)
            if event is None:
                for handle in self.take(event_id):
                    handle.refuse(EventNotFound(event_id))
                return
            if event.status not in TERMINAL:
                return
            results = tuple(await self._store.list_results(event.id))
        except StoreClosedError as error:
            self.close(error)
            return
        except DurabusError as error:
            logger.warning("cannot look after event %s, trying again: %s", event_id, error)
            return
        for handle in self.take(event_id):
            handle.finish(event, results)

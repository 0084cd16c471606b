"""``find``: events of the past come from the shared history, those of the future from any node that publishes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from durabus.bus.handle import Handle
from durabus.errors import StoreClosedError, StoreError
from durabus.model.event import Event
from durabus.model.limits import Duration, seconds
from durabus.model.pattern import matches
from durabus.model.query import EventQuery
from durabus.model.statuses import Action
from durabus.store.contract import EventStore

logger = logging.getLogger("durabus.bus")

LOOK_EVERY = 0.05
LOOK_SELDOM = 0.5
"""Seconds between two reads of the log while a search waits: short pauses at first, then long ones."""
PAGE = 100
MAX_DEPTH = 1_000
"""Generations that ``child_of`` goes back. It also ends a circle of parents that a user made by hand."""
MAX_ROUNDS = 1_000
"""Maximum number of rounds over events emitted during a search: other tasks may emit them without end."""

Where = Callable[[Event], bool]


class FindRequest:
    """The conditions of a search."""

    def __init__(
        self, pattern: str, where: Where | None, child_of: str | None, fields: Mapping[str, Any], bus: str
    ) -> None:
        self.pattern = pattern
        self.child_of = child_of
        self._where = where
        self._fields = fields
        self._bus = bus

    def may_be(self, bus: str, event_type: str) -> bool:
        """Whether an event of this bus and type may meet the conditions."""
        return bus == self._bus and matches(self.pattern, event_type)

    async def is_met(self, event: Event, store: EventStore) -> bool:
        """Whether the event meets the conditions."""
        if self._fields:
            payload = event.payload
            if not isinstance(payload, dict) or any(payload.get(k, ...) != v for k, v in self._fields.items()):
                return False
        if self._where is not None and not self._where(event):
            return False
        return self.child_of is None or await _descends(event, self.child_of, store)


class Finder:
    """The searches of one bus object. Those for the future share one reader of the log, which runs while they wait."""

    def __init__(self, store: EventStore, bus: str) -> None:
        self._store = store
        self._bus = bus
        self._waiting: dict[asyncio.Future[Event | None], FindRequest] = {}
        self._reading: asyncio.Task[None] | None = None
        self._position = ""
        self._closed = False
        self._turn = asyncio.Lock()

    def __bool__(self) -> bool:
        """Whether a search waits."""
        return bool(self._waiting)

    async def find(
        self,
        wanted: FindRequest,
        watch: Callable[[], AbstractContextManager[list[Handle]]],
        *,
        past: bool | Duration,
        future: bool | Duration,
    ) -> Event | None:
        """Search the past, then wait for the future, as ``EventBus.find`` does; ``watch`` gives the unstored events."""
        # It begins to listen before it searches the past, so that it misses nothing in between.
        next_one = await self.begin(wanted) if future is not False else None
        try:
            if past is not False:
                with watch() as sent:
                    found = await self.past(wanted, None if past is True else seconds(past, "past"), sent)
                if found is not None:
                    return found
            if next_one is None:
                return None
            scope = asyncio.timeout(None if future is True else seconds(future, "future"))
            try:
                async with scope:
                    return await next_one
            except TimeoutError:
                if not scope.expired():
                    raise  # a condition of the search raised it
                return None
        finally:
            if next_one is not None:
                next_one.cancel()

    async def past(self, wanted: FindRequest, within: float | None, sent: list[Handle]) -> Event | None:
        """The newest event that meets the conditions, whatever its status, published at most ``within`` seconds ago.

        ``sent`` has the events that were emitted here and are not stored yet; events emitted meanwhile join it.
        """
        found = await self._among(wanted, sent)
        if found is None:
            found = await self._in_store(wanted, within)
        rounds = 0
        # The last look at ``sent`` and the return are one step. So if several tasks emit an event because they do not
        # find it, the first one emits it, and the others find it.
        while found is None and sent and rounds < MAX_ROUNDS:
            found, rounds = await self._among(wanted, sent), rounds + 1
        return found

    async def _among(self, wanted: FindRequest, sent: list[Handle]) -> Event | None:
        """Return the newest of these events that meets the conditions, once it is stored, and empty the list."""
        handles = [handle for handle in sent if wanted.may_be(self._bus, handle.new.type)]
        sent.clear()
        for handle in reversed(handles):
            try:
                event = await handle.stored()
            except Exception:  # noqa: BLE001, S112  (it was not stored; its handle has the error)
                continue
            if await wanted.is_met(event, self._store):
                return await self._store.get_event(event.event_id) or event
        return None

    async def _in_store(self, wanted: FindRequest, within: float | None) -> Event | None:
        since = None if within is None else await self._store.now() - within
        before: int | None = None
        while True:
            query = EventQuery(bus=self._bus, type=wanted.pattern, created_from_ts=since, before_id=before, limit=PAGE)
            page = await self._store.find(query)
            for event in page.events:
                if await wanted.is_met(event, self._store):
                    return event
            before = page.next_before_id
            if before is None:
                return None

    async def begin(self, wanted: FindRequest) -> asyncio.Future[Event | None]:
        """Wait, from now on, for the first such event that is published. The future is None after a shutdown."""
        future: asyncio.Future[Event | None] = asyncio.get_running_loop().create_future()
        async with self._turn:
            if self._reading is not None:
                await self._catch_up()  # this search must not get what was published before
            elif not self._closed:
                self._position = await self._store.log_head()
            # A shutdown or another search may have come while this one waited for the store.
            if self._closed:
                future.set_result(None)
                return future
            if self._reading is None:
                self._reading = asyncio.create_task(self._read())
            self._waiting[future] = wanted
        future.add_done_callback(self._forget)
        return future

    async def stored(self, events: list[Event]) -> None:
        """Offer the events that this node published to the searches at once; the others come from the log."""
        for event in events:
            await self._offer(event)

    def close(self) -> set[asyncio.Task[None]]:
        """End all searches with None. Returns the tasks that are ending."""
        self._closed = True
        tasks = set() if self._reading is None else {self._reading}
        for task in tasks:
            task.cancel()
        for future in list(self._waiting):
            if not future.done():
                future.set_result(None)
        return tasks

    def _forget(self, future: asyncio.Future[Event | None]) -> None:
        self._waiting.pop(future, None)
        if not self._waiting and self._reading is not None:
            self._reading.cancel()
            self._reading = None

    async def _read(self) -> None:
        pause = LOOK_EVERY
        while True:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LOOK_SELDOM)
            try:
                async with self._turn:
                    if await self._catch_up():
                        pause = LOOK_EVERY
            except StoreClosedError:
                self.close()
                return
            except StoreError as error:
                logger.warning("find cannot read the log of bus %r, trying again: %s", self._bus, error)
            except Exception:
                logger.exception("find cannot read the log of bus %r, trying again", self._bus)

    async def _catch_up(self) -> bool:
        """Read the log to its end. Returns whether there was anything."""
        found = False
        while (page := await self._store.read_log(after=self._position)).entries:
            found = True
            for entry in page.entries:
                if entry.action is Action.PUBLISHED and self._is_wanted(entry.bus, entry.type):
                    event = await self._store.get_event(entry.event_id)
                    if event is not None:
                        await self._offer(event)
            self._position = page.next
        return found

    def _is_wanted(self, bus: str, event_type: str) -> bool:
        return any(wanted.may_be(bus, event_type) for wanted in self._waiting.values())

    async def _offer(self, event: Event) -> None:
        for future, wanted in list(self._waiting.items()):
            if future.done() or not wanted.may_be(event.bus, event.type):
                continue
            try:
                met = await wanted.is_met(event, self._store)
            except Exception as error:  # noqa: BLE001  (the search that has this condition gets its error)
                if not future.done():
                    future.set_exception(error)
                continue
            if met and not future.done():
                future.set_result(event)


async def _descends(event: Event, ancestor_id: str, store: EventStore) -> bool:
    parent_id = event.parent_id
    for _ in range(MAX_DEPTH):
        if parent_id is None or parent_id == ancestor_id:
            break
        parent = await store.get_event(parent_id)
        parent_id = None if parent is None else parent.parent_id
    return parent_id == ancestor_id

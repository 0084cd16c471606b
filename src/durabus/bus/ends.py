"""How a bus learns that events have ended on other nodes: by hints, and by a slow look in case a hint was lost.

An event that a caller waits for carries the address of its node. The worker that ends it tells that node
(``worker/replies.py``). The node then reads the events it waits for. A caller may begin to wait after the event was
stored without an address. Some stores wake a node at every end, also without an address. For the others, the node
reads such an event itself: soon at first, then every 150 ms.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Protocol

from msgspec.structs import replace

from durabus.bus.handle import Handle, awaited_event
from durabus.clock import monotonic
from durabus.errors import DurabusError, EventNotFound, StoreClosedError
from durabus.model.event import Event, has_reply_to, with_reply_to
from durabus.model.result import HandlerResult
from durabus.model.statuses import TERMINAL, EventStatus
from durabus.store.contract import EventStore

logger = logging.getLogger("durabus.bus")

LOOK_EVERY = 5.0
"""Seconds between two reads of events that other processes may have ended, in case hints were lost."""
LOOK_SOON = 0.02
LOOK_SELDOM = 0.15
"""Seconds between two reads of awaited events that have no address: short at first, then long."""
LONGER = 1.2
LOOK_AGAIN = 0.005
FOR_EACH = 0.0001
"""Minimum seconds between two reads, and how much longer for each event that was read: hints may come for nothing."""
MOSTLY_HERE = 0.05
"""Seconds after which a node that has handlers for an awaited event asks for hints: most such events end here."""
AWAITED_AT_ONCE = 1_000
LOOK_AT_ONCE = 200
LOOK_THROUGH = 10 * LOOK_AT_ONCE
"""Maximum number of entries to scan while looking for events that are not running in this process."""


class OpenHandles(Protocol):
    """The handles of one bus whose events have not ended, as far as this process knows."""

    @property
    def by_event_id(self) -> dict[str, list[Handle]]:
        """The handles, by the id of their event."""
        ...

    def take(self, event_id: str) -> Sequence[Handle]:
        """Remove and return the handles of an event that has ended."""
        ...

    def runs_here(self, id_: int) -> bool:
        """Whether the worker of this bus holds the event: it reports the end itself."""
        ...

    def has_handlers(self, event_type: str) -> bool:
        """Whether the worker of this bus has handlers for the type."""
        ...

    def store_closed(self, error: StoreClosedError) -> None:
        """The store is closed: no end can be learned any more."""
        ...


class EndReader:
    """Reads the events of the open handles, and reports to their handles those that have ended on other nodes."""

    def __init__(self, store: EventStore, handles: OpenHandles) -> None:
        self._store = store
        self._handles = handles
        self._looking: asyncio.Task[None] | None = None
        self._closed = False

    def look_from_now_on(self) -> None:
        """Read now and then which events have ended in other processes."""
        if self._looking is None and not self._closed:
            self._looking = asyncio.get_running_loop().create_task(self._look_seldom(), name="durabus-ends")

    def close(self) -> set[asyncio.Task[None]]:
        """Read nothing more. Returns the tasks that are ending."""
        self._closed = True
        tasks = set() if self._looking is None or self._looking.done() else {self._looking}
        for task in tasks:
            task.cancel()
        return tasks

    async def _look_seldom(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            await self.catch_up()

    async def catch_up(self) -> None:
        """Read the events that run in other processes; the worker reports those that run here."""
        while await self._most_had_ended():
            pass  # other processes end events faster than this reads them

    async def _most_had_ended(self) -> bool:
        """Read the events that were read longest ago. Returns whether to read the next ones at once."""
        opened, asked = self._handles.by_event_id, []
        for event_id in list(islice(opened, LOOK_THROUGH)):
            handles = opened.pop(event_id, None)
            if handles is None:
                continue  # the event ended meanwhile
            opened[event_id] = handles  # to the end, also if it runs here: each event gets its turn
            if self.may_end_elsewhere(handles[0]):
                asked.append(event_id)
                if len(asked) == LOOK_AT_ONCE:
                    break
        return bool(asked) and await self.look_at(asked) > LOOK_AT_ONCE / 2

    def may_end_elsewhere(self, handle: Handle) -> bool:
        """Whether the event is stored, and no worker of this bus will report its end."""
        id_ = handle.id
        return handle.is_stored and not handle.done and (id_ is None or not self._handles.runs_here(id_))

    async def look_at(self, event_ids: Sequence[str]) -> int:
        """Read stored events, and report to their handles those that have ended or are gone. Returns their number."""
        try:
            events = await self._store.get_events(event_ids)
            ends = {
                event_id: event
                for event_id, event in zip(event_ids, events, strict=True)
                if event is None or event.status in TERMINAL
            }
            ended = [event for event in ends.values() if event is not None]
            results, reasons = await _results_of(self._store, ended), await _reasons_of(self._store, ended)
        except StoreClosedError as error:
            self._handles.store_closed(error)
            return 0
        except DurabusError as error:
            logger.warning("cannot read %s events, trying again: %s", len(event_ids), error)
            return 0
        except Exception:
            logger.exception("cannot read %s events, trying again", len(event_ids))  # without this the task would end
            return 0
        for event_id, event in ends.items():
            for handle in self._handles.take(event_id):
                if event is None:
                    handle.refuse(EventNotFound(event_id))
                else:
                    handle.finish(event, results[event.id], reasons.get(event.id))
        return len(ends)


class EndWatch:
    """Lets the callers that wait for events of one bus learn the ends soon. All of them share one read."""

    def __init__(self, store: EventStore, handles: OpenHandles) -> None:
        self.node = secrets.token_hex(16)
        """The address under which workers of other nodes tell that an event has ended."""
        self._store = store
        self._handles = handles
        self.reader = EndReader(store, handles)
        self._waits: dict[Handle, tuple[int, float]] = {}
        """The awaited handles: how many callers wait for each, and since when."""
        self._unaddressed: set[Handle] = set()
        """The awaited handles of events that do not carry the address of this node."""
        self._waits_for_all = 0
        self._pause = 0.0
        self._hurry: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None
        self._closed = False

    def begin_wait(self, handle: Handle) -> None:
        """Watch for the end of the event on every node, until ``end_wait`` is called."""
        callers, since = self._waits.get(handle) or (0, monotonic())
        self._waits[handle] = callers + 1, since
        if not callers:
            if handle.is_stored:
                self.stored(handle)
            if self._watching is not None:
                return  # most waits begin here: no more for them
            if self._handles.has_handlers(handle.new.type):
                self._watch_soon()
            else:
                self._watch_now()

    def end_wait(self, handle: Handle) -> None:
        """A caller waits no longer."""
        callers, since = self._waits[handle]
        if callers > 1:
            self._waits[handle] = callers - 1, since
        else:
            del self._waits[handle]
            self._unaddressed.discard(handle)

    @contextmanager
    def waiting_for_all(self) -> Iterator[None]:
        """Watch for the ends of all events of the bus on every node, inside this block."""
        self._waits_for_all += 1
        self._look_sooner()
        self._watch_soon()
        try:
            yield
        finally:
            self._waits_for_all -= 1

    def address(self, handles: Iterable[Handle]) -> None:
        """Let those of the events that are awaited carry the address of this node. They are about to be stored."""
        for handle in handles:
            if handle in self._waits:
                self.address_one(handle)

    def address_one(self, handle: Handle) -> None:
        """Let the event carry the address of this node."""
        if not has_reply_to(handle.new.metadata_json, self.node):
            handle.new = replace(handle.new, metadata_json=with_reply_to(handle.new.metadata_json, self.node))

    def stored(self, handle: Handle) -> None:
        """The store has the event. It may be an older one, which another node published, or which no caller awaited."""
        if handle in self._waits and not has_reply_to(awaited_event(handle).metadata_json, self.node):
            self._unaddressed.add(handle)
            self._look_sooner()

    def close(self) -> set[asyncio.Task[None]]:
        """Learn nothing more. Returns the tasks that are ending."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        ending = self.reader.close()
        if self._watching is not None:
            self._watching.cancel()
            ending.add(self._watching)
        return ending

    def _look_sooner(self) -> None:
        self._pause = min(self._pause, LOOK_SOON)
        if self._hurry is not None and not self._hurry.done():
            self._hurry.set_result(None)

    def _watch_soon(self) -> None:
        if self._watching is None and self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(MOSTLY_HERE, self._watch_if_long)

    def _watch_if_long(self) -> None:
        """Ask for hints if a caller has waited for some time. If all have begun just now, look again later."""
        self._timer = None
        _, since = next(iter(self._waits.values()), (0, monotonic()))
        if self._waits_for_all or monotonic() - since >= MOSTLY_HERE:
            self._watch_now()
        elif self._waits:
            self._watch_soon()

    def _watch_now(self) -> None:
        if self._watching is None and not self._closed:
            self._pause = 0.0  # an end before the first wait for hints gave none
            self._watching = asyncio.get_running_loop().create_task(self._watch(), name="durabus-hints-of-ends")

    async def _watch(self) -> None:
        """Read the awaited events after each hint, and at the latest after a pause, while any are awaited."""
        loop = asyncio.get_running_loop()
        hint = loop.create_task(self._hint())
        try:
            while self._waits or self._waits_for_all:
                self._hurry = loop.create_future()
                await asyncio.wait({hint, self._hurry}, timeout=self._pause, return_when=asyncio.FIRST_COMPLETED)
                if hint.done():
                    hint.result()
                    # The next wait begins before the read, so that no hint is missed in between.
                    hint = loop.create_task(self._hint())
                elif self._hurry.done():
                    continue  # the pause is shorter now
                await asyncio.sleep(0)
                count = await self._look()
                self._pause = self._next_pause()
                await asyncio.sleep(LOOK_AGAIN + count * FOR_EACH)
        except StoreClosedError as error:
            self._handles.store_closed(error)
        finally:
            hint.cancel()
            self._hurry = self._watching = None

    async def _hint(self) -> None:
        try:
            await self._store.wait_for_ends(self.node, timeout=LOOK_EVERY)
        except StoreClosedError:
            raise
        except Exception as error:  # noqa: BLE001  (whatever it is, the events are read without a hint)
            logger.debug("the store gives no hints of ended events, they are read without: %s", error)
            await asyncio.sleep(LOOK_SELDOM)

    def _next_pause(self) -> float:
        longest = LOOK_SELDOM if self._unaddressed or self._waits_for_all else LOOK_EVERY
        return min(max(self._pause * LONGER, LOOK_SOON), longest)

    async def _look(self) -> int:
        """Read the awaited events that may have ended elsewhere. Returns their number."""
        if self._waits_for_all:
            await self.reader.catch_up()
        awaited = [awaited_event(handle).event_id for handle in self._waits if self.reader.may_end_elsewhere(handle)]
        for first in range(0, len(awaited), AWAITED_AT_ONCE):
            await self.reader.look_at(awaited[first : first + AWAITED_AT_ONCE])
        return len(awaited)


async def _reasons_of(store: EventStore, events: Sequence[Event]) -> dict[int, str | None]:
    """Return why events were cancelled, by their id."""
    cancelled = [event.id for event in events if event.status is EventStatus.CANCELLED]
    logs = await asyncio.gather(*(store.read_event_log(id_) for id_ in cancelled))
    return {id_: entries[-1].reason for id_, entries in zip(cancelled, logs, strict=True) if entries}


async def _results_of(store: EventStore, events: Sequence[Event]) -> dict[int, tuple[HandlerResult, ...]]:
    if not events:
        return {}
    found = await store.read_results([event.id for event in events])
    return {event.id: results for event, results in zip(events, found, strict=True)}

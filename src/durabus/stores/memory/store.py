"""The memory store: events, log, dead letters and wake-ups, with the parts of the other modules as one class."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from durabus.clock import Clock
from durabus.errors import LeaseLost
from durabus.lifecycle.state import Refused, Requeue
from durabus.lifecycle.transition import check_requeue, transition
from durabus.model.claim import LockClaim
from durabus.model.event import Event, NewEvent
from durabus.model.log_entry import LogArchives, LogEntry, LogHold, LogPage, LogRows, row_of
from durabus.model.pattern import matches
from durabus.model.query import Counts, DeadLetterPage, EventPage, EventQuery
from durabus.model.statuses import HISTORY, LIVE, EventStatus
from durabus.store.events import EventRef
from durabus.store.features import require
from durabus.store.log import ARCHIVE, START
from durabus.stores.memory.claims import MemoryClaims
from durabus.stores.memory.core import MemoryCore, MemoryPublishing, archives_in
from durabus.stores.memory.registrations import MemoryProcesses, MemoryRegistrations
from durabus.stores.memory.results import MemoryResults
from durabus.stores.wakeups import ENDS


class MemoryEvents(MemoryPublishing):
    """Implements ``store.events.Events`` in memory."""

    async def add_events(self, new: Sequence[NewEvent], *, connection: object | None = None) -> list[Event]:
        if connection is not None:
            require(self.features, "caller_transactions", "add_events(connection=…)")
        with self._lock:
            self._check_open()
            now = self._clock.now()
            ids = [self._add(one, now) for one in new]
            # Only now: a later event of the batch may have met the wait of a known one.
            return [self._states[id_].event for id_ in ids]

    async def get_event(self, ref: EventRef) -> Event | None:
        return (await self.get_events([ref]))[0]

    async def get_events(self, refs: Sequence[EventRef]) -> list[Event | None]:
        with self._lock:
            self._check_open()
            return [None if state is None else state.event for state in map(self._state, refs)]

    async def has_event(self, ref: EventRef) -> bool:
        return await self.get_event(ref) is not None

    async def remove_event(self, ref: EventRef) -> bool:
        with self._lock:
            self._check_open()
            state = self._state(ref)
            if state is None:
                return False
            self._forget(state)
            return True

    async def find(self, query: EventQuery) -> EventPage:
        with self._lock:
            self._check_open()
            found, parents = list[Event](), frozenset(query.parent_ids)
            for id_ in self._newest_first(query):
                event = self._states[id_].event
                if _meets(event, query, parents):
                    found.append(event)
                    if len(found) > query.limit:
                        return EventPage(events=found[:-1], next_before_id=found[-2].id)
            return EventPage(events=found)

    def _newest_first(self, query: EventQuery) -> Iterable[int]:
        """Return the ids to look at, newest first. A query for live events only skips the history."""
        if not query.statuses or not LIVE.issuperset(query.statuses):
            return reversed(self._states)
        queues = self._bus_queues.values() if query.bus is None else [self._bus_queue(query.bus)]
        return sorted((id_ for queue in queues for id_ in queue.live), reverse=True)

    async def trim_event_history(self, bus: str, *, older_than: float, limit: int = 10_000) -> int:
        with self._lock:
            self._check_open()
            cutoff = self._clock.now() - older_than
            old = [id_ for id_ in sorted(self._bus_queue(bus).history) if self._states[id_].event.updated_ts <= cutoff]
            going = self._archived(old)[:limit]
            self._forget_history(self._bus_queue(bus), going)
            return len(going)

    async def cleanup_excess_events(self, bus: str, *, keep: int, limit: int = 10_000, node: str | None = None) -> int:
        with self._lock:
            self._check_open()
            return self._forget_excess(self._bus_queue(bus), keep, limit, node)

    async def counts(self, bus: str | None = None) -> Counts:
        with self._lock:
            self._check_open()
            queues = [queue for name, queue in self._bus_queues.items() if bus in (None, name)]
            held = [self._states[id_].event.bus for ids in self._held.values() for id_ in ids]
            processing = sum(bus is None or one == bus for one in held)
            dead = [self._states[id_].event for id_ in self._dead]
            failed = [event.status is EventStatus.FAILED for event in dead if bus is None or event.bus == bus]
            cancelled = sum(len(queue.cancelled) for queue in queues)
            return Counts(
                pending=sum(len(queue.live) for queue in queues) - processing,
                processing=processing,
                completed=sum(len(queue.history) for queue in queues) - cancelled,
                completed_with_errors=len(failed) - sum(failed),
                failed=sum(failed),
                cancelled=cancelled,
            )


def _meets(event: Event, query: EventQuery, parents: frozenset[str]) -> bool:
    return (
        (query.bus is None or event.bus == query.bus)
        and (not query.statuses or event.status in query.statuses)
        and (query.type is None or matches(query.type, event.type))
        and (not query.tags or not set(query.tags).isdisjoint(event.tags))
        and (not query.parent_ids or event.parent_id in parents)
        and (query.created_from_ts is None or event.created_ts >= query.created_from_ts)
        and (query.created_until_ts is None or event.created_ts <= query.created_until_ts)
        and (query.before_id is None or event.id < query.before_id)
    )


class MemoryLogVerbs(MemoryCore):
    """Implements ``store.log.Log`` in memory."""

    async def read_log(self, *, after: str = START, until: str | None = None, limit: int = 1000) -> LogPage:
        with self._lock:
            self._check_open()
            return self._log.page(after, until, limit)

    async def read_log_rows(self, *, after: str = START, until: str | None = None, limit: int = 1000) -> LogRows:
        page = await self.read_log(after=after, until=until, limit=limit)
        return LogRows([row_of(entry) for entry in page.entries], page.next)

    async def cut_log(self, *, after: str = START, until: str, rows: int, limit: int = 1000) -> list[str]:
        with self._lock:
            self._check_open()
            return self._log.cut(after, until, rows, limit)

    async def trim_log(self, *, until: str, older_than: float = 0.0, limit: int = 10_000, ignoring: str = "") -> int:
        with self._lock:
            self._check_open()
            before_ts, entries = self._clock.now() - older_than, self._log.count_after(START)
            archives = (position for name, position in archives_in(self._positions).items() if name != ignoring)
            until = min((until, *archives), key=self._log.number)
            ended: dict[int, str] = {}
            unknown: dict[int, None] = {}
            for record in self._log.records(until):
                if record.at_ts > before_ts:
                    continue
                if record.event.id not in self._states:
                    unknown[record.event.id] = None
                elif record.event.status in HISTORY:
                    ended[record.event.id] = record.event.bus
            for id_, bus in list(ended.items())[: max(limit, 0)]:
                self._forget_history(self._bus_queue(bus), [id_])
            self._log.drop(set(list(unknown)[: max(limit, 0)]), until=until, before_ts=before_ts)
            return entries - self._log.count_after(START)

    async def log_head(self) -> str:
        with self._lock:
            self._check_open()
            return self._log.head

    async def log_lag(self, after: str) -> int:
        with self._lock:
            self._check_open()
            return self._log.count_after(after)

    async def log_hold(self) -> LogHold | None:
        self._check_open()
        return None

    async def make_log_partitions(self) -> int:
        self._check_open()
        return 0

    async def read_event_log(self, ref: EventRef) -> list[LogEntry]:
        with self._lock:
            self._check_open()
            state = self._state(ref)
            return [] if state is None else self._log.trail(state.event.id)

    async def save_position(self, name: str, position: str | None, *, lock: LockClaim) -> None:
        with self._lock:
            self._check_open()
            held = self._locks.get(lock.key)
            if held is None or held.token != lock.token or held.fence != lock.fence:
                raise LeaseLost(lock.key, "the lock is not held by this claim")
            if position is None:
                self._positions.pop(name, None)
                return
            if name.startswith(ARCHIVE):
                self._log.number(position)
            self._positions[name] = position

    async def read_position(self, name: str) -> str:
        with self._lock:
            self._check_open()
            return self._positions.get(name, START)

    async def read_archives(self) -> LogArchives:
        with self._lock:
            self._check_open()
            return LogArchives(positions=archives_in(self._positions), trimmed=self._log.is_trimmed)


class MemoryDeadLetters(MemoryCore):
    """Implements ``store.dead_letters.DeadLetters`` in memory."""

    async def list_dead_letters(self, *, bus: str | None = None, limit: int = 100, offset: int = 0) -> DeadLetterPage:
        with self._lock:
            self._check_open()
            dead = [self._states[id_].event for id_ in self._dead]
            chosen = [event for event in dead if bus is None or event.bus == bus]
            chosen.sort(key=lambda event: (event.created_ts, event.id), reverse=True)
            return DeadLetterPage(events=chosen[offset : offset + limit], total=len(chosen))

    async def requeue_dead_letters(self, refs: Sequence[EventRef]) -> list[Event]:
        with self._lock:
            self._check_open()
            now, states = self._clock.now(), [self._known(ref) for ref in refs]
            for ref, state in zip(refs, states, strict=True):
                check_requeue(ref, state.event)
            applied = [transition(state, Requeue(), now) for state in states]
            answer: list[Event] = []
            for state, done in zip(states, applied, strict=True):
                if isinstance(done, Refused) or state.event.id not in self._dead:
                    answer.append(self._states[state.event.id].event)
                    continue
                self._apply(state, done, now)
                answer.append(done.state.event)
            return answer

    async def purge_dead_letters(self, *, created_until_ts: float, bus: str | None = None, limit: int = 10_000) -> int:
        with self._lock:
            self._check_open()
            dead = sorted((self._states[id_].event.created_ts, id_) for id_ in self._dead)
            old = [
                id_
                for created, id_ in dead
                if created <= created_until_ts and (bus is None or self._states[id_].event.bus == bus)
            ][:limit]
            for id_ in old:
                self._forget(self._states[id_])
            return len(old)

    async def purge_dead_letters_by_id(self, ids: Sequence[int]) -> list[int]:
        with self._lock:
            self._check_open()
            gone = [id_ for id_ in dict.fromkeys(ids) if id_ in self._dead]
            for id_ in gone:
                self._forget(self._states[id_])
            return gone


class MemoryStore(
    MemoryRegistrations, MemoryProcesses, MemoryEvents, MemoryClaims, MemoryResults, MemoryLogVerbs, MemoryDeadLetters
):
    """A store in the memory of this process. Its events are gone when the process ends."""

    @classmethod
    def from_url(cls, url: str, clock: Clock | None = None) -> MemoryStore:
        """Return the store of ``memory://``."""
        return cls(clock, **cls.options_from_url(url))

    async def open(self) -> None:
        self._check_open()

    async def close(self) -> None:
        with self._lock:
            self._closed = True
            self._waiting.wake(None)

    async def verify(self) -> None:
        """See ``EventStore``: there is no schema to differ from."""
        self._check_open()

    async def now(self) -> float:
        self._check_open()
        return self._clock.now()

    async def wait_for_work(self, bus: str, *, timeout: float) -> bool:  # noqa: ASYNC109  (the contract's name)
        with self._lock:
            self._check_open()
            now, queue = self._clock.now(), self._bus_queue(bus)
            hint = self._waiting.add(bus)
            instant = queue.next_instant()
        due_in = timeout if instant is None else max(instant - now, 0.0)
        if instant is not None and due_in == 0:
            hint.set_result(None)
        try:
            async with asyncio.timeout(min(timeout, due_in)):
                await hint
        except TimeoutError:
            return due_in < timeout
        finally:
            self._waiting.remove(bus, hint)
        return True

    async def wait_for_ends(self, node: str, *, timeout: float) -> bool:  # noqa: ARG002, ASYNC109  (the contract's names)
        """See ``EventStore``: every end wakes all nodes, because all of them are in this process."""
        with self._lock:
            self._check_open()
            hint = self._waiting.add(ENDS)
        try:
            async with asyncio.timeout(timeout):
                await hint
        except TimeoutError:
            return False
        finally:
            self._waiting.remove(ENDS, hint)
        return True

    async def tell_ends(self, nodes: Sequence[str]) -> None:  # noqa: ARG002  (the contract's name)
        """See ``EventStore``: the end itself has woken them."""
        self._check_open()

"""``durabus.store.events.Events``."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from durabus.errors import InvalidPayloadError
from durabus.lifecycle.transition import publish
from durabus.model.event import ADDRESSED, UNREAD_FOR, Event, NewEvent, ordering_key_of
from durabus.model.query import Counts, EventPage, EventQuery
from durabus.store.events import EventRef
from durabus.store.features import require
from durabus.stores.redis.core import RedisCore
from durabus.stores.redis.records import data_of, events_of

MAX_BATCH_BYTES = 256 * 1024 * 1024
"""Maximum size of one call. The server closes a connection that sends much more."""
LARGEST_ID = 2**53
"""Above this number Lua's numbers are not exact. No counter reaches it."""
FIRST_BLOB = 3
"""The number of the first blob among the arguments of a function, which count from 1."""
FORGET_AT_ONCE = 500
"""Maximum number of events that one step deletes, so that calls of workers run in between."""

_stored = msgspec.msgpack.Decoder(tuple[float, list[int]]).decode
_known = msgspec.msgpack.Decoder(list[bool]).decode


def known_ref(ref: EventRef) -> EventRef:
    """Return a reference as the functions take it. An id that no counter can reach becomes 0, which is unknown."""
    return ref if isinstance(ref, str) or 0 < ref < LARGEST_ID else 0


class RedisEvents(RedisCore):
    """Implements ``store.events.Events`` on Redis."""

    async def add_events(self, new: Sequence[NewEvent], *, connection: object | None = None) -> list[Event]:
        if connection is not None:
            require(self.features, "caller_transactions", "add_events(connection=…)")
        if not new:
            self._check_open()
            return []
        blobs = [data_of(one) for one in new]
        size = sum(len(blob) for blob in blobs)
        if size > MAX_BATCH_BYTES:
            raise InvalidPayloadError(
                f"{len(new)} events of {size} bytes in one call: the limit is {MAX_BATCH_BYTES}, publish fewer events"
            )
        delays = [one.delay for one in new] if any(one.delay for one in new) else False
        packed, *records = await self._call("add_events", delays, _ordering_keys(new), blobs=blobs)
        now, ids = _stored(packed)
        known = {event.id: event for event in events_of(records)}
        events: list[Event] = []
        for one, id_ in zip(new, ids, strict=True):
            if id_ not in known:
                known[id_] = publish(one, id_, now).state.event
            events.append(known[id_])
        return events

    async def get_event(self, ref: EventRef) -> Event | None:
        return (await self.get_events([ref]))[0]

    async def get_events(self, refs: Sequence[EventRef]) -> list[Event | None]:
        if not refs:
            self._check_open()
            return []
        return known_events(await self._call("get_events", *(known_ref(ref) for ref in refs)))

    async def has_event(self, ref: EventRef) -> bool:
        return await self.get_event(ref) is not None

    async def remove_event(self, ref: EventRef) -> bool:
        return bool(await self._call("remove_event", known_ref(ref)))

    async def find(self, query: EventQuery) -> EventPage:
        """Find events. Each call looks at a range of ids. One event beyond the page tells whether another follows."""
        self._check_open()
        before, found = query.before_id, list[Event]()
        if before is not None and before <= 0:
            return EventPage(events=[])
        if before is not None and before > LARGEST_ID:
            before = None
        while len(found) <= query.limit:
            go_on, *records = await self._call(
                "find_events",
                query.bus,
                [status.value for status in query.statuses],
                query.type,
                query.tags,
                query.parent_ids,
                query.created_from_ts,
                query.created_until_ts,
                before,
                query.limit + 1 - len(found),
            )
            found += events_of(records)
            if not go_on:
                break
            before = int(go_on)
        if len(found) > query.limit:
            return EventPage(events=found[: query.limit], next_before_id=found[query.limit - 1].id)
        return EventPage(events=found)

    async def trim_event_history(self, bus: str, *, older_than: float, limit: int = 10_000) -> int:
        return await self._forget("trim_event_history", bus, older_than, limit)

    async def cleanup_excess_events(self, bus: str, *, keep: int, limit: int = 10_000, node: str | None = None) -> int:
        return await self._forget("cleanup_excess_events", bus, keep, limit, node or False, UNREAD_FOR, ADDRESSED)

    async def counts(self, bus: str | None = None) -> Counts:
        pending, processing, completed, with_errors, failed, cancelled = await self._call("counts", bus)
        return Counts(
            pending=pending,
            processing=processing,
            completed=completed,
            completed_with_errors=with_errors,
            failed=failed,
            cancelled=cancelled,
        )

    async def _forget(self, verb: str, bus: str, bound: float, limit: int, *unread: str | float | bool) -> int:
        self._check_open()
        gone, after, left = 0, 0, 0
        while gone < limit:
            at_once = min(limit - gone, FORGET_AT_ONCE)
            count, go_on, passed = await self._call(verb, bus, bound, at_once, after, left, *unread)
            gone += count
            if go_on:
                after, left = int(go_on), left + passed
            elif count < at_once:
                break
        return gone


def known_events(answer: list[bytes]) -> list[Event | None]:
    """Return the events of a reply that says first which of them are known."""
    known, *records = answer
    events = iter(events_of(records))
    return [next(events) if one else None for one in _known(known)]


def children_to(children: Sequence[NewEvent], blobs: list[bytes]) -> list[tuple[float, str | bool, int]]:
    """Return the children of a settlement as ``adding.add_children`` takes them. Their data join ``blobs``."""
    if not children:
        return []
    keys = _ordering_keys(children)
    first = FIRST_BLOB + len(blobs)
    blobs += [data_of(one) for one in children]
    return [
        (one.delay, keys[number] if isinstance(keys, list) else False, first + number)
        for number, one in enumerate(children)
    ]


def _ordering_keys(new: Sequence[NewEvent]) -> list[str | bool] | bool:
    """Return what ``add_events.lua`` takes: the ordering key of each event, or ``False`` if it has none."""
    keys: list[str | bool] = [
        one.metadata_json is not None and (ordering_key_of(one.metadata_json) or False) for one in new
    ]
    return keys if any(keys) else False

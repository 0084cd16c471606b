"""``durabus.store.events.Events`` and ``durabus.store.dead_letters.DeadLetters`` of all shards."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from durabus.errors import EventNotFound
from durabus.lifecycle.transition import check_requeue
from durabus.model.event import Event, NewEvent
from durabus.model.query import Counts, DeadLetterPage, EventPage, EventQuery
from durabus.store.contract import EventStore
from durabus.store.events import EventRef
from durabus.store.features import refuse_unordered, require
from durabus.stores.sharded.core import ShardedCore


class ShardedEvents(ShardedCore):
    """Implements ``store.events.Events`` and ``store.dead_letters.DeadLetters`` on several shards.

    The ``event_id`` gives the shard of an event. Calls that list events merge the lists of all shards.
    """

    async def add_events(self, new: Sequence[NewEvent], *, connection: object | None = None) -> list[Event]:
        if connection is not None:
            require(self.features, "caller_transactions", "add_events(connection=…)")
        refuse_unordered(self.features, (one.metadata_json for one in new))
        if any(one.idempotency_key is not None for one in new):
            require(
                self.features,
                "idempotency_keys",
                "an idempotency_key (its event could be on any shard; give an event_id made from the key, as by uuid5)",
            )
        if not new:
            await self._shards[0].add_events([])
            return []
        return await self._each(
            new, lambda one: self._numbers.of_event_id(one.event_id), lambda shard, mine: shard.add_events(mine)
        )

    async def get_event(self, ref: EventRef) -> Event | None:
        number = self._numbers.of_ref(ref)
        found = await self._shards[number].get_event(self._numbers.inner_ref(ref))
        return None if found is None else self._numbers.event(found, number)

    async def get_events(self, refs: Sequence[EventRef]) -> list[Event | None]:
        if not refs:
            return await self._shards[0].get_events([])
        return await self._each(
            refs,
            self._numbers.of_ref,
            lambda shard, mine: shard.get_events([self._numbers.inner_ref(ref) for ref in mine]),
        )

    async def has_event(self, ref: EventRef) -> bool:
        return await self._shards[self._numbers.of_ref(ref)].has_event(self._numbers.inner_ref(ref))

    async def remove_event(self, ref: EventRef) -> bool:
        return await self._shards[self._numbers.of_ref(ref)].remove_event(self._numbers.inner_ref(ref))

    async def find(self, query: EventQuery) -> EventPage:
        async def ask(shard: EventStore, number: int) -> EventPage:
            before = None if query.before_id is None else self._numbers.inner_before(query.before_id, number)
            page = await shard.find(msgspec.structs.replace(query, before_id=before))
            return msgspec.structs.replace(page, events=[self._numbers.event(event, number) for event in page.events])

        pages = await self._all(ask)
        found = sorted((event for page in pages for event in page.events), key=lambda event: -event.id)
        more = len(found) > query.limit or any(page.next_before_id is not None for page in pages)
        found = found[: query.limit]
        return EventPage(events=found, next_before_id=found[-1].id if more and found else None)

    async def trim_event_history(self, bus: str, *, older_than: float, limit: int = 10_000) -> int:
        return await self._up_to(
            limit, lambda shard, left: shard.trim_event_history(bus, older_than=older_than, limit=left)
        )

    async def cleanup_excess_events(self, bus: str, *, keep: int, limit: int = 10_000, node: str | None = None) -> int:
        """See ``Events``, but each shard keeps its share of ``keep``, rounded up."""
        share = -(-keep // self._numbers.count)
        return await self._up_to(
            limit, lambda shard, left: shard.cleanup_excess_events(bus, keep=share, limit=left, node=node)
        )

    async def counts(self, bus: str | None = None) -> Counts:
        found = await self._all(lambda shard, _: shard.counts(bus))
        fields = Counts.__struct_fields__
        return Counts(**{field: sum(getattr(one, field) for one in found) for field in fields})

    async def list_dead_letters(self, *, bus: str | None = None, limit: int = 100, offset: int = 0) -> DeadLetterPage:
        async def ask(shard: EventStore, number: int) -> DeadLetterPage:
            page = await shard.list_dead_letters(bus=bus, limit=offset + max(limit, 0))
            return msgspec.structs.replace(page, events=[self._numbers.event(event, number) for event in page.events])

        pages = await self._all(ask)
        found = sorted(
            (event for page in pages for event in page.events), key=lambda event: (-event.created_ts, -event.id)
        )
        return DeadLetterPage(events=found[offset : offset + limit], total=sum(page.total for page in pages))

    async def requeue_dead_letters(self, refs: Sequence[EventRef]) -> list[Event]:
        """See ``DeadLetters``. Raises for a wrong reference before it changes any shard."""
        for ref, event in zip(refs, await self.get_events(refs), strict=True):
            if event is None:
                raise EventNotFound(ref)
            check_requeue(ref, event)
        return await self._each(
            refs,
            self._numbers.of_ref,
            lambda shard, mine: shard.requeue_dead_letters([self._numbers.inner_ref(ref) for ref in mine]),
        )

    async def purge_dead_letters(self, *, created_until_ts: float, bus: str | None = None, limit: int = 10_000) -> int:
        return await self._up_to(
            limit, lambda shard, left: shard.purge_dead_letters(created_until_ts=created_until_ts, bus=bus, limit=left)
        )

    async def purge_dead_letters_by_id(self, ids: Sequence[int]) -> list[int]:
        async def purge(shard: EventStore, number: int) -> list[int]:
            gone = await shard.purge_dead_letters_by_id([self._numbers.inner(id_) for id_ in mine[number]])
            return [self._numbers.outer(id_, number) for id_ in gone]

        mine: dict[int, list[int]] = {}
        for id_ in ids:
            mine.setdefault(self._numbers.of_ref(id_), []).append(id_)
        purged: list[int] = []
        for number in mine:
            purged += await self._ask(purge, number)
        return purged

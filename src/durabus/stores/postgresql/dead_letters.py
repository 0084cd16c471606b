"""``durabus.store.dead_letters.DeadLetters``: lists, requeues and purges dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from durabus.errors import EventNotFound
from durabus.lifecycle.state import EventState, Refused, Requeue
from durabus.lifecycle.transition import check_requeue, transition
from durabus.model.event import Event
from durabus.model.query import DeadLetterPage
from durabus.store.events import EventRef
from durabus.stores.postgresql.connection import PostgreSQLSession
from durabus.stores.postgresql.core import PostgreSQLCore
from durabus.stores.postgresql.events import forget_dead
from durabus.stores.postgresql.publishing import get_events, ids_of
from durabus.stores.postgresql.settlements import Changes, load_handlers
from durabus.stores.sql.changes import StoredEvent, purge_ids_in_parts, purge_in_parts
from durabus.stores.sql.rows import event_of


class PostgreSQLDeadLetters(PostgreSQLCore):
    """Implements ``store.dead_letters.DeadLetters`` on PostgreSQL."""

    async def list_dead_letters(self, *, bus: str | None = None, limit: int = 100, offset: int = 0) -> DeadLetterPage:
        async def read(session: PostgreSQLSession) -> DeadLetterPage:
            span = (max(limit, 0), max(offset, 0))
            if bus is None:
                rows = await session.all("list_dead_letters", *span)
            else:
                rows = await session.all("list_dead_letters_of_bus", *span, bus)
            total: int = await session.value("count_dead", bus)
            return DeadLetterPage(events=[event_of(row) for row in rows], total=total)

        return await self._look(read)

    async def requeue_dead_letters(self, refs: Sequence[EventRef]) -> list[Event]:
        if not refs:
            self._check_open()
            return []
        return await self._write(lambda session: _requeue(session, refs))

    async def purge_dead_letters(self, *, created_until_ts: float, bus: str | None = None, limit: int = 10_000) -> int:
        async def purge(session: PostgreSQLSession, at_once: int) -> int:
            gone = await session.all("purge_dead_letters", created_until_ts, at_once, bus)
            await forget_dead(session, gone)
            return len(gone)

        self._check_open()
        return await purge_in_parts(lambda at_once: self._write(partial(purge, at_once=at_once)), limit)

    async def purge_dead_letters_by_id(self, ids: Sequence[int]) -> list[int]:
        self._check_open()
        return await purge_ids_in_parts(lambda part: self._write(partial(_purge, ids=part)), ids)


async def _purge(session: PostgreSQLSession, ids: Sequence[int]) -> list[int]:
    gone = await session.all("purge_dead_letters_by_id", list(ids))
    await forget_dead(session, gone)
    return [row[0] for row in gone]


async def _requeue(session: PostgreSQLSession, refs: Sequence[EventRef]) -> list[Event]:
    known = await ids_of(session, [ref for ref in refs if isinstance(ref, str)])
    ids = [ref if isinstance(ref, int) else known.get(ref, 0) for ref in refs]
    dead = {row[0]: event_of(row) for row in await session.all("lock_dead_letters", [i for i in ids if 0 < i < 2**63])}
    events = await get_events(session, [id_ for id_ in ids if id_ not in dead]) | dead
    for ref, id_ in zip(refs, ids, strict=True):
        event = events.get(id_)
        if event is None:
            raise EventNotFound(ref)
        check_requeue(ref, event)
    handlers = await load_handlers(session, list(dead))
    now, changes = await session.now(), Changes()
    for id_, event in dead.items():
        stored = StoredEvent(EventState(event, None, handlers.get(id_, ())), None, has_results=True, live=False)
        applied = transition(stored.state, Requeue(), now)
        if not isinstance(applied, Refused):
            events[id_] = changes.apply(stored, applied).state.event
    if dead:
        await session.all("requeue_dead_letters", list(dead), now)
        await session.all("forget_dead_letters", list(dead))
    await changes.write(session)
    return [events[id_] for id_ in ids]

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
from durabus.stores.sql.changes import StoredEvent, purge_ids_in_parts, purge_in_parts
from durabus.stores.sql.rows import event_of, to_json
from durabus.stores.sqlite.connection import Transaction
from durabus.stores.sqlite.core import SQLiteCore
from durabus.stores.sqlite.events import forget_names
from durabus.stores.sqlite.layout import SQL
from durabus.stores.sqlite.publishing import counts, forget_dead_letters, get_event, note_live
from durabus.stores.sqlite.settlements import append, load_handlers, store_handlers


class SQLiteDeadLetters(SQLiteCore):
    """Implements ``store.dead_letters.DeadLetters`` on SQLite."""

    async def list_dead_letters(self, *, bus: str | None = None, limit: int = 100, offset: int = 0) -> DeadLetterPage:
        def read(tx: Transaction) -> DeadLetterPage:
            span = {"bus": bus, "limit": max(limit, 0), "offset": offset}
            rows = tx.all(SQL["list_dead_letters"] if bus is None else SQL["list_dead_letters_of_bus"], span)
            numbers = counts(tx, bus)
            total = numbers.failed + numbers.completed_with_errors
            return DeadLetterPage(events=[event_of(row) for row in rows], total=total)

        return await self._read(read)

    async def requeue_dead_letters(self, refs: Sequence[EventRef]) -> list[Event]:
        if not refs:
            return []
        return await self._write(lambda tx: _requeue(tx, refs))

    async def purge_dead_letters(self, *, created_until_ts: float, bus: str | None = None, limit: int = 10_000) -> int:
        def purge(tx: Transaction, at_once: int) -> int:
            span = {"until": created_until_ts, "bus": bus, "limit": at_once}
            gone = tx.all(SQL["old_dead_letters"] if bus is None else SQL["old_dead_letters_of_bus"], span)
            forget_dead_letters(tx, [row[0] for row in gone])
            forget_names(tx, gone)
            return len(gone)

        return await purge_in_parts(lambda at_once: self._write(partial(purge, at_once=at_once)), limit)

    async def purge_dead_letters_by_id(self, ids: Sequence[int]) -> list[int]:
        self._check_open()
        return await purge_ids_in_parts(lambda part: self._write(partial(_purge, ids=part)), ids)


def _purge(tx: Transaction, ids: Sequence[int]) -> list[int]:
    gone = tx.all(SQL["dead_letters_by_id"], {"ids": to_json(ids)})
    found = [row[0] for row in gone]
    forget_dead_letters(tx, found)
    forget_names(tx, gone)
    return found


def _requeue(tx: Transaction, refs: Sequence[EventRef]) -> list[Event]:
    ids: list[int] = []
    for ref in refs:
        event = get_event(tx, ref)
        if event is None:
            raise EventNotFound(ref)
        check_requeue(ref, event)
        ids.append(event.id)
    return [_requeue_one(tx, id_) for id_ in ids]


def _requeue_one(tx: Transaction, id_: int) -> Event:
    event = get_event(tx, id_)
    if event is None:
        raise EventNotFound(id_)
    before = EventState(event, None, load_handlers(tx, id_))
    applied = transition(before, Requeue(), tx.now)
    if isinstance(applied, Refused):
        return event
    after = applied.state
    tx.run(
        SQL["requeue_dead_letter"],
        {
            "id": id_,
            "generation": after.event.generation,
            "has_results": bool(after.handlers),
            "now": tx.now,
            "due_at": after.event.due_ts,
        },
    )
    forget_dead_letters(tx, [id_])
    note_live(tx, {event.bus: 1})
    store_handlers(tx, StoredEvent(before, None, has_results=True), after)
    if after.event.tags and after.event.due_ts <= tx.now:
        tx.run(SQL["ready_event_tags"], {"ids": to_json([id_])})
    append(tx, applied.entries, after.event)
    tx.woken.add(after.event.bus)
    return after.event

"""Deletes events with their ids, keys, results and tags. A trim also deletes their log entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from durabus.store.events import EventRef
from durabus.stores.sql.rows import Row, to_json
from durabus.stores.sqlite.connection import Transaction
from durabus.stores.sqlite.publishing import forget_dead_letters, get_event, note_forgotten, note_live
from durabus.stores.sqlite.settlements import free_lock, load
from durabus.stores.sqlite.sql import statement

_STILL_COMPLETED = statement("still_completed")
_NOTE_ID = statement("note_forgotten_id")
_FORGET_IDS = statement("forget_event_ids")
_FORGET_KEYS = statement("forget_keys")
_FORGET_RESULTS = statement("forget_results")
_FORGET_ENTRIES = statement("forget_entries")
_FORGET_PUBLISHED = statement("forget_published_entries")
_FORGET_LIVE = statement("forget_live_event")
_FORGET_COMPLETED = statement("forget_completed")
_FORGET_TAGS = statement("forget_event_tags")


def remove_event(tx: Transaction, ref: EventRef) -> bool:
    """Delete an event in any status. Its log entries stay."""
    event = get_event(tx, ref)
    if event is None:
        return False
    stored = load(tx, event.id)
    if stored is not None:
        free_lock(tx, stored)
        tx.many(_FORGET_TAGS, [(event.bus, tag, event.priority, event.id) for tag in event.tags])
        tx.run(_FORGET_LIVE, (event.id,))
        note_live(tx, {event.bus: -1})
    forget_dead_letters(tx, [event.id])
    if tx.run(_FORGET_COMPLETED, (event.id,)):
        note_forgotten(tx, {event.bus: 1})
    forget_names(tx, [(event.id, event.event_id, event.bus, event.idempotency_key)])
    return True


def forget_completed(tx: Transaction, ids: Sequence[int]) -> tuple[int, int]:
    """Trim COMPLETED events with their log entries. Returns how many events and entries it deleted."""
    gone = tx.all(_STILL_COMPLETED, {"ids": to_json(ids)})
    entries = tx.run(_FORGET_ENTRIES, {"ids": to_json([row[0] for row in gone])})
    entries += tx.run(_FORGET_PUBLISHED, {"event_ids": to_json([row[1] for row in gone])})
    note_forgotten(tx, Counter([row[2] for row in gone]))
    forget_names(tx, gone)
    return len(gone), entries


def forget_names(tx: Transaction, gone: Sequence[Row]) -> None:
    """Free the event_ids and keys of deleted events (id, event_id, bus, idempotency_key), and delete their results."""
    if gone:
        tx.run(_NOTE_ID, {"id": max(row[0] for row in gone)})
    tx.run(_FORGET_IDS, {"event_ids": to_json([row[1] for row in gone])})
    tx.many(_FORGET_KEYS, [(bus, key, id_) for id_, _, bus, key in gone if key is not None])
    tx.run(_FORGET_RESULTS, {"ids": to_json([row[0] for row in gone])})

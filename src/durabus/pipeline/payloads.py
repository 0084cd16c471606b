"""Adds the payload of live events to their PUBLISHED entries.

In the log, only the last entry of an event has the payload: if SQLite also wrote it to the first one, publishing would
take 6 % (150 bytes) to 60 % (8 kB) more time. So the reader of the log asks the store for the events that it has not
seen end. An event that has ended meanwhile has its payload in a later entry, and no trim deletes that entry before it
was archived.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from durabus.errors import SchemaError
from durabus.model.event import Event
from durabus.model.log_entry import LOG_COLUMNS
from durabus.model.statuses import TERMINAL, Action
from durabus.store.contract import EventStore

_ACTION, _ID, _EVENT_ID, _STATUS, _PAYLOAD = (
    LOG_COLUMNS.index(name) for name in ("action", "id", "event_id", "status", "payload_json")
)
_ENDS = frozenset(status.value for status in TERMINAL)


async def with_payloads(store: EventStore, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return rows of ``LogRows``, in which PUBLISHED entries of live events have the payload."""
    ended = {row[_ID] for row in rows if row[_STATUS] in _ENDS}
    asked = [n for n, row in enumerate(rows) if row[_ACTION] == Action.PUBLISHED and row[_ID] not in ended]
    if not asked:
        return rows
    made = list(rows)
    for n, event in zip(asked, await _events(store, [rows[n][_ID] for n in asked]), strict=True):
        row = rows[n]
        # The id of a removed event may belong to another event by now.
        if event is not None and event.status not in TERMINAL and event.event_id == row[_EVENT_ID]:
            made[n] = (*row[:_PAYLOAD], event.payload_json, *row[_PAYLOAD + 1 :])
    return made


async def _events(store: EventStore, ids: Sequence[int]) -> list[Event | None]:
    """Return the events with these ids; None for one that is unknown or does not decode."""
    try:
        return await store.get_events(ids)
    except SchemaError:
        if len(ids) == 1:
            return [None]
        middle = len(ids) // 2
        return [*await _events(store, ids[:middle]), *await _events(store, ids[middle:])]

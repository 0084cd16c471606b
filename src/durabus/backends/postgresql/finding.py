"""``find``: one question to each place an event can be, merged by id. Conditions are fixed texts, values are bound."""

from __future__ import annotations

from typing import Any

from durabus.backends.postgresql.rows import event_of
from durabus.backends.postgresql.session import Session
from durabus.model.event import Event
from durabus.model.pattern import ANY, matches
from durabus.model.query import EventPage, EventQuery
from durabus.model.statuses import DEAD_LETTER, LIVE, EventStatus

_NO_BOUND = 2**63 - 1
_LOOK_AT = 10
"""With a glob the database can only narrow the search: so many times the limit are read at once and matched here."""

_CONDITIONS = {
    "bus": "bus = {}",
    "statuses": "status = ANY ({}::text[])",
    "type": "type = {}",
    "like": "type LIKE {}",
    "parent_id": "parent_id = {}::text::uuid",
    "created_from": "created_at >= to_timestamp({})",
    "created_until": "created_at <= to_timestamp({})",
}
_TAGS = "tags && {}::text[]"
_JSON_TAGS = "tags IS NOT NULL AND ARRAY(SELECT json_array_elements_text(tags::json)) && {}::text[]"


async def find(session: Session, query: EventQuery) -> EventPage:
    """One page, newest id first."""
    if query.limit < 1:
        return EventPage(events=[])
    wanted = frozenset(query.statuses or EventStatus)
    found: list[Event] = []
    if wanted & LIVE:
        found += await _ask(session, query, "find_live", _TAGS)
    if wanted & DEAD_LETTER:
        found += await _ask(session, query, "find_dead", _TAGS)
    if EventStatus.COMPLETED in wanted:
        found += await _ask(session, query, "find_completed", _JSON_TAGS)
    found.sort(key=lambda event: event.id, reverse=True)
    if len(found) <= query.limit:
        return EventPage(events=found)
    page = found[: query.limit]
    return EventPage(events=page, next_before_id=page[-1].id)


async def _ask(session: Session, query: EventQuery, name: str, tags: str) -> list[Event]:
    """The newest ``limit + 1`` of one place."""
    globbed = query.type is not None and ANY in query.type and query.type != ANY
    before = _NO_BOUND if query.before_id is None else min(query.before_id, _NO_BOUND)
    wanted = query.limit + 1
    read = wanted * (_LOOK_AT if globbed else 1)
    found: list[Event] = []
    while True:
        where, values = _conditions(query, tags, before, read)
        rows = await session.text(f"{session.sql[name]}{where} ORDER BY id DESC LIMIT $2", *values)
        events = [event_of(row) for row in rows]
        found += [event for event in events if not globbed or matches(query.type or ANY, event.type)]
        if len(rows) < read or len(found) >= wanted:
            return found[:wanted]
        before = events[-1].id


def _conditions(query: EventQuery, tags: str, before: int, limit: int) -> tuple[str, list[Any]]:
    globbed = query.type is not None and ANY in query.type
    conditions = {
        "bus": query.bus,
        "statuses": [status.value for status in query.statuses] or None,
        "type": None if globbed else query.type,
        "like": _like(query.type) if query.type is not None and globbed and query.type != ANY else None,
        "parent_id": query.parent_id,
        "created_from": query.created_from_ts,
        "created_until": query.created_until_ts,
    }
    values: list[Any] = [before, limit]
    texts = []
    for condition, value in conditions.items():
        if value is not None:
            values.append(value)
            texts.append(_CONDITIONS[condition].format(f"${len(values)}"))
    if query.tags:
        values.append(list(query.tags))
        texts.append(tags.format(f"${len(values)}"))
    return "".join(f" AND {text}" for text in texts), values


def _like(pattern: str) -> str:
    """What every type that the glob covers is like; not the other way round, a star is no dot."""
    escaped = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace(ANY, "%")

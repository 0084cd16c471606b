"""``find``: one question to each place an event can be, merged by id. Conditions are fixed texts, values are bound."""

from __future__ import annotations

from typing import Any

from durabus.backends.sqlite.rows import event_of, to_json
from durabus.backends.sqlite.sql import statement
from durabus.backends.sqlite.transaction import Transaction
from durabus.model.event import Event
from durabus.model.pattern import ANY, matches
from durabus.model.query import EventPage, EventQuery
from durabus.model.statuses import DEAD_LETTER, LIVE, EventStatus

_FEW = 1_000
_NO_BOUND = 2**63 - 1

_LIVE = statement("find_live")
_DEAD = statement("find_dead")
_COMPLETED = statement("find_completed")
_FEW_IDS = statement("few_live_ids")

_NEWEST_FIRST = " ORDER BY id DESC LIMIT :limit"
_CONDITIONS = {
    "bus": " AND bus = :bus",
    "statuses": " AND status IN (SELECT value FROM json_each(:statuses))",
    "type": " AND type = :type",
    "pattern": " AND durabus_matches(:pattern, type)",
    "tags": " AND tags IS NOT NULL AND EXISTS (SELECT 1 FROM json_each(iif(json_valid(tags), tags, '[]')) AS tag "
    "WHERE tag.value IN (SELECT value FROM json_each(:tags)))",
    "parent_id": " AND parent_id = :parent_id",
    "created_from": " AND created_at >= :created_from",
    "created_until": " AND created_at <= :created_until",
}


def find(tx: Transaction, query: EventQuery) -> EventPage:
    """One page, newest id first."""
    if query.limit < 1:
        return EventPage(events=[])
    values = _values(query)
    where = "".join(text for name, text in _CONDITIONS.items() if name in values)
    if "parent_id" in values:
        where = where.replace(" bus =", " +bus =")  # a parent has fewer events than a bus: the plus says so
    values["before_id"] = _NO_BOUND if query.before_id is None else query.before_id
    values["limit"] = query.limit + 1
    wanted = frozenset(query.statuses or EventStatus)
    found: list[Event] = []
    if wanted & LIVE:
        found += _ask(tx, _LIVE + _narrow(tx, query, values) + where, values)
    if wanted & DEAD_LETTER:
        found += _ask(tx, _DEAD + where, values)
    if EventStatus.COMPLETED in wanted:
        # Without a bus or parent the plus keeps the planner from collecting and sorting every completed event.
        one = " AND completed = 1" if "bus" in values or "parent_id" in values else " AND +completed = 1"
        # what is older than a whole page of others cannot be on this page
        values["above_id"] = sorted(event.id for event in found)[-query.limit - 1] if len(found) > query.limit else 0
        found += _ask(tx, _COMPLETED + one + " AND id > :above_id" + where, values)
    found.sort(key=lambda event: event.id, reverse=True)
    if len(found) <= query.limit:
        return EventPage(events=found)
    page = found[: query.limit]
    return EventPage(events=page, next_before_id=page[-1].id)


def _values(query: EventQuery) -> dict[str, Any]:
    globbed = query.type is not None and ANY in query.type
    values = {
        "bus": query.bus,
        "statuses": to_json([status.value for status in query.statuses]) if query.statuses else None,
        "type": None if globbed else query.type,
        "pattern": query.type if globbed and query.type != ANY else None,
        "tags": to_json(query.tags) if query.tags else None,
        "parent_id": query.parent_id,
        "created_from": query.created_from_ts,
        "created_until": query.created_until_ts,
    }
    return {name: value for name, value in values.items() if value is not None}


def _narrow(tx: Transaction, query: EventQuery, values: dict[str, Any]) -> str:
    """A bus with few live events is asked by its own ids; a large one is met soon enough on the way down."""
    if query.bus is None or query.parent_id is not None:
        return ""
    ids = [row[0] for row in tx.all(_FEW_IDS, {"bus": query.bus, "limit": _FEW})]
    if len(ids) == _FEW:
        return ""
    values["ids"] = to_json(ids)
    return " AND id IN (SELECT value FROM json_each(:ids))"


def _ask(tx: Transaction, sql: str, values: dict[str, Any]) -> list[Event]:
    if "pattern" in values:
        tx.connection.create_function("durabus_matches", 2, matches, deterministic=True)
    return [event_of(row) for row in tx.all(sql + _NEWEST_FIRST, values)]

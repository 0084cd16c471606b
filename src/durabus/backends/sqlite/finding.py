"""``find``: one question to each place an event can be, merged by id. Conditions are fixed texts, values are bound."""

from __future__ import annotations

from typing import Any, NamedTuple

from durabus.backends.sqlite.rows import event_of, to_json
from durabus.backends.sqlite.sql import statement
from durabus.backends.sqlite.transaction import Transaction
from durabus.model.event import Event
from durabus.model.pattern import ANY, matches
from durabus.model.query import EventQuery
from durabus.model.statuses import DEAD_LETTER, LIVE, EventStatus

_FEW = 1_000
_NO_BOUND = 2**63 - 1
LOOKED_AT = 5_000
"""Ids that one read looks at, some ten milliseconds: everybody else who reads waits for it."""

_LIVE = statement("find_live")
_DEAD = statement("find_dead")
_COMPLETED = statement("find_completed")
_FEW_IDS = statement("few_live_ids")
_NEWEST_LIVE = statement("newest_live")
_NEWEST_DEAD = statement("newest_dead")
_NEWEST_COMPLETED = statement("newest_completed")
_NEWEST_OF_BUS = statement("newest_completed_of_bus")

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


class Stretch(NamedTuple):
    """Events of a stretch of ids, newest first, and below which id the search goes on; None: that was all."""

    events: list[Event]
    go_on: int | None


def find(tx: Transaction, query: EventQuery) -> Stretch:
    """Up to ``limit`` events. Where conditions may leave most of them out, a few thousand ids are looked at."""
    values = _values(query)
    where = "".join(text for name, text in _CONDITIONS.items() if name in values) + " AND id > :above_id"
    if "parent_id" in values:
        where = where.replace(" bus =", " +bus =")  # a parent has fewer events than a bus: the plus says so
    wanted = frozenset(query.statuses or EventStatus)
    few = _few_live(tx, query) if wanted & LIVE else None
    above = _bound(tx, query, wanted, values, few)
    found: list[Event] = []
    if wanted & LIVE:
        narrow = "" if few is None else " AND id IN (SELECT value FROM json_each(:ids))"
        found += _ask(tx, _LIVE + narrow + where, values | {"ids": to_json(few)})
    if wanted & DEAD_LETTER:
        found += _ask(tx, _DEAD + where, values)
    if EventStatus.COMPLETED in wanted:
        # Without a bus or parent the plus keeps the planner from collecting and sorting every completed event.
        one = " AND completed = 1" if "bus" in values or "parent_id" in values else " AND +completed = 1"
        if len(found) >= query.limit:  # what is older than a whole page of others cannot be on this page
            values["above_id"] = sorted(event.id for event in found)[-query.limit]
        found += _ask(tx, _COMPLETED + one + where, values)
    found.sort(key=lambda event: event.id, reverse=True)
    if len(found) >= query.limit:
        return Stretch(found[: query.limit], found[query.limit - 1].id)
    return Stretch(found, above + 1 if above else None)


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


def _few_live(tx: Transaction, query: EventQuery) -> list[int] | None:
    """The live events of a bus that has few: it is asked by its own ids. A large one is met soon enough on the way."""
    if query.bus is None or query.parent_id is not None:
        return None
    ids = [row[0] for row in tx.all(_FEW_IDS, {"bus": query.bus, "limit": _FEW})]
    return ids if len(ids) < _FEW else None


def _bound(
    tx: Transaction, query: EventQuery, wanted: frozenset[EventStatus], values: dict[str, Any], few: list[int] | None
) -> int:
    """Give ``values`` their bounds; answers the lower one. A bus or a parent alone is found without looking far."""
    before = _NO_BOUND if query.before_id is None else query.before_id
    far = "parent_id" not in values and not values.keys() <= {"bus"}
    values |= {"before_id": before, "above_id": 0, "limit": query.limit}
    if far:
        newest = _newest(tx, wanted, values, few)
        values |= {"before_id": newest + 1, "above_id": max(newest - LOOKED_AT, 0)}
    above: int = values["above_id"]
    return above


def _newest(tx: Transaction, wanted: frozenset[EventStatus], values: dict[str, Any], few: list[int] | None) -> int:
    """All that is wanted has at most this id: no stretch is spent on ids that are gone."""
    found: list[int | None] = [0]
    if wanted & LIVE and few is not None:
        found += [id_ for id_ in few if id_ < values["before_id"]]
    elif wanted & LIVE:
        found.append(tx.value(_NEWEST_LIVE, values))
    if wanted & DEAD_LETTER:
        found.append(tx.value(_NEWEST_DEAD, values))
    if EventStatus.COMPLETED in wanted:
        found.append(tx.value(_NEWEST_OF_BUS if "bus" in values else _NEWEST_COMPLETED, values))
    return max(id_ for id_ in found if id_ is not None)


def _ask(tx: Transaction, sql: str, values: dict[str, Any]) -> list[Event]:
    if "pattern" in values:
        tx.connection.create_function("durabus_matches", 2, matches, deterministic=True)
    return [event_of(row) for row in tx.all(sql + _NEWEST_FIRST, values)]

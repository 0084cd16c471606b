"""Events of one ordering key, one behind the other: who may be claimed, and who is put aside."""

from __future__ import annotations

from durabus.backends.sqlite.rows import Row, strings_of, to_json
from durabus.backends.sqlite.sql import statement
from durabus.backends.sqlite.transaction import Transaction
from durabus.model.event import ordering_key_of

_BEHIND = statement("behind_others")
_PUT_ASIDE = statement("put_aside")
_FORGET_TAGS = statement("forget_event_tags")


def first_in_line(tx: Transaction, bus: str, rows: list[Row]) -> list[Row]:
    """The rows of ``next_events.sql`` that may be claimed. Others are put aside until it is their turn."""
    keyed = [row[0] for row in rows if row[4] is not None and ordering_key_of(row[4]) is not None]
    if not keyed:
        return rows
    behind = {id_ for (id_,) in tx.all(_BEHIND, {"ids": to_json(keyed)})}
    if not behind:
        return rows
    tx.run(_PUT_ASIDE, {"ids": to_json(sorted(behind))})
    tagged = [(bus, tag, row[6], row[0]) for row in rows if row[0] in behind for tag in strings_of(row[5])]
    tx.many(_FORGET_TAGS, tagged)
    return [row for row in rows if row[0] not in behind]

"""How many events of each status a bus has: noted by whatever changes it, in its own transaction, never counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from durabus.backends.sqlite.rows import to_json
from durabus.backends.sqlite.sql import statement
from durabus.backends.sqlite.transaction import Transaction
from durabus.model.event import Event
from durabus.model.query import Counts
from durabus.model.statuses import EventStatus

_COUNTS = statement("counts")
_COUNTS_OF_BUS = statement("counts_of_bus")
_NOTE = statement("note_counts")
_NOTE_COMPLETED = statement("note_completed")
_NOTE_DEAD_GONE = statement("note_dead_gone")
_FORGET_DEAD = statement("forget_dead_letters")


def counts(tx: Transaction, bus: str | None) -> Counts:
    """Of one bus, or of all."""
    row = tx.all(_COUNTS if bus is None else _COUNTS_OF_BUS, {"bus": bus})[0]
    live, processing, completed, completed_with_errors, failed = row
    return Counts(
        pending=live - processing,
        processing=processing,
        completed=completed,
        completed_with_errors=completed_with_errors,
        failed=failed,
    )


def note_live(tx: Transaction, numbers: Mapping[str, int]) -> None:
    """So many more events are in the queue of each bus."""
    tx.many(_NOTE, [(bus, number, 0, 0, 0) for bus, number in numbers.items()])


def note_ended(tx: Transaction, event: Event) -> None:
    """One event left the queue for good, with the status it has."""
    ended = (EventStatus.COMPLETED, EventStatus.COMPLETED_WITH_ERRORS, EventStatus.FAILED)
    tx.run(_NOTE, (event.bus, -1, *(int(event.status is one) for one in ended)))


def note_completed(tx: Transaction, count: int) -> None:
    """As many events as ``complete_events.sql`` has just written entries left the queue COMPLETED."""
    tx.run(_NOTE_COMPLETED, {"last": tx.cursor.lastrowid, "count": count})


def note_forgotten(tx: Transaction, numbers: Mapping[str, int]) -> None:
    """So many COMPLETED events of each bus are no events any more."""
    tx.many(_NOTE, [(bus, 0, -number, 0, 0) for bus, number in numbers.items()])


def forget_dead_letters(tx: Transaction, ids: Sequence[int]) -> None:
    """Delete dead letters that were purged, removed or requeued."""
    given = {"ids": to_json(ids)}
    tx.run(_NOTE_DEAD_GONE, given)
    tx.run(_FORGET_DEAD, given)

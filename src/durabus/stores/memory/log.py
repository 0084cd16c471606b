"""The event log as a list in commit order. An entry's position is its number; deleted entries leave gaps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from durabus.errors import InvalidEventError
from durabus.lifecycle.state import Record
from durabus.model.log_entry import LogEntry, LogPage
from durabus.store.log import START

SWEEP_AFTER = 1000


class MemoryLog:
    """Appends records in order, and deletes all records of an event.

    New records go to a tail without gaps, where the index gives the number. A sweep deletes forgotten records in bulk
    and moves the tail to the older records, which store their numbers. So both appending and deleting are cheap.
    """

    def __init__(self) -> None:
        self._old: list[Record] = []
        self._old_numbers: list[int] = []
        self._tail: list[Record] = []
        self._before_tail = 0
        self._forgotten: set[int] = set()
        self.append = self._tail.extend

    def forget(self, ids: Iterable[int]) -> None:
        """Delete all entries of these events."""
        self._forgotten.update(ids)
        if len(self._forgotten) > max(SWEEP_AFTER, (len(self._old) + len(self._tail)) // 8):
            self._sweep()

    def page(self, after: str, until: str | None, limit: int) -> LogPage:
        """Return the entries after one position and up to another."""
        self._sweep()
        first = bisect_right(self._old_numbers, self.number(after))
        last = len(self._old) if until is None else bisect_right(self._old_numbers, self.number(until))
        entries = [self._entry(index) for index in range(first, min(last, first + limit))]
        return LogPage(entries, entries[-1].position if entries else after)

    def cut(self, after: str, until: str, rows: int, limit: int) -> list[str]:
        """Return the ends of the pieces of ``rows`` entries between two positions."""
        self._sweep()
        first = bisect_right(self._old_numbers, self.number(after))
        last = bisect_right(self._old_numbers, self.number(until))
        starts = range(first, last, max(rows, 1))[: max(limit, 0)]
        return [str(self._old_numbers[min(start + max(rows, 1), last) - 1]) for start in starts]

    def records(self, until: str) -> list[Record]:
        """Return all records up to a position."""
        self._sweep()
        return self._old[: bisect_right(self._old_numbers, self.number(until))]

    def after(self, number: int) -> set[int]:
        """Return the ids of the events that have a record after this number."""
        self._sweep()
        return {record.event.id for record in self._old[bisect_right(self._old_numbers, number) :]}

    def drop(self, ids: set[int], *, until: str, before_ts: float) -> None:
        """Delete the entries of these events that lie at or before both a position and an instant."""
        last = len(self.records(until))
        kept = [
            index
            for index, record in enumerate(self._old)
            if index >= last or record.event.id not in ids or record.at_ts > before_ts
        ]
        self._keep(kept)

    def numbered(self) -> tuple[list[tuple[int, Record]], int]:
        """Return every record with its number, and the last number that was given."""
        self._sweep()
        return list(zip(self._old_numbers, self._old, strict=True)), self._before_tail

    def restore(self, numbered: Iterable[tuple[int, Record]], last: int) -> None:
        """Continue a log that ``numbered`` described."""
        pairs = list(numbered)
        self._old = [record for _, record in pairs]
        self._old_numbers = [number for number, _ in pairs]
        self._before_tail = last

    def trail(self, id_: int) -> list[LogEntry]:
        """Return all entries of one event."""
        self._sweep()
        return [self._entry(index) for index, record in enumerate(self._old) if record.event.id == id_]

    def count_after(self, after: str) -> int:
        """Return how many entries follow a position."""
        self._sweep()
        return len(self._old_numbers) - bisect_right(self._old_numbers, self.number(after))

    @property
    def head(self) -> str:
        """The position of the newest entry."""
        self._sweep()
        return str(self._old_numbers[-1]) if self._old_numbers else START

    @property
    def is_trimmed(self) -> bool:
        """Whether any record was ever deleted."""
        self._sweep()
        return len(self._old) < self._before_tail

    @property
    def last_given(self) -> str:
        """The position of the record that was appended last, even if it was deleted since."""
        return str(self._before_tail + len(self._tail))

    def _entry(self, index: int) -> LogEntry:
        return self._old[index].entry(str(self._old_numbers[index]))

    def number(self, position: str) -> int:
        """Return the number of a position. Raises ``InvalidEventError`` for a position that this log did not give."""
        if position == START:
            return 0
        if not (position.isascii() and position.isdigit()) or int(position) > self._before_tail + len(self._tail):
            raise InvalidEventError(f"position={position!r}: not one that this log gave; begin with the empty string")
        return int(position)

    def _sweep(self) -> None:
        self._old.extend(self._tail)
        self._old_numbers.extend(range(self._before_tail + 1, self._before_tail + len(self._tail) + 1))
        self._before_tail += len(self._tail)
        self._tail.clear()
        if self._forgotten:
            self._keep([n for n, record in enumerate(self._old) if record.event.id not in self._forgotten])
            self._forgotten.clear()

    def _keep(self, kept: list[int]) -> None:
        self._old = [self._old[index] for index in kept]
        self._old_numbers = [self._old_numbers[index] for index in kept]

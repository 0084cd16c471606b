"""The event log as a list in commit order. An entry's position is its number; forgotten entries leave gaps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from durabus.errors import InvalidEventError
from durabus.kernel.state import Record
from durabus.model.log_entry import LogEntry, LogPage
from durabus.store.log import START

SWEEP_AFTER = 1000


class MemoryLog:
    """Appends in order; forgets whole events. Forgotten entries are swept out in bulk, so that both cost little."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._numbers: list[int] = []
        self._last = 0
        self._forgotten: set[int] = set()

    def append(self, records: Iterable[Record]) -> None:
        """Add entries at the end."""
        for record in records:
            self._last += 1
            self._numbers.append(self._last)
            self._records.append(record)

    def forget(self, ids: Iterable[int]) -> None:
        """Drop all entries of these events."""
        self._forgotten.update(ids)
        if len(self._forgotten) > SWEEP_AFTER and len(self._forgotten) > len(self._records) // 8:
            self._sweep()

    def page(self, after: str, until: str | None, limit: int) -> LogPage:
        """Entries after one position and up to another."""
        self._sweep()
        first = bisect_right(self._numbers, self._number(after))
        last = len(self._numbers) if until is None else bisect_right(self._numbers, self._number(until))
        entries = [self._numbered(index) for index in range(first, min(last, first + limit))]
        return LogPage(entries, entries[-1].position if entries else after)

    def trail(self, id_: int) -> list[LogEntry]:
        """All entries of one event."""
        self._sweep()
        return [self._numbered(index) for index, record in enumerate(self._records) if record.event.id == id_]

    def count_after(self, after: str) -> int:
        """How many entries follow a position."""
        self._sweep()
        return len(self._numbers) - bisect_right(self._numbers, self._number(after))

    @property
    def head(self) -> str:
        """Position of the newest entry."""
        self._sweep()
        return str(self._numbers[-1]) if self._numbers else START

    def _numbered(self, index: int) -> LogEntry:
        return self._records[index].entry(str(self._numbers[index]))

    def _number(self, position: str) -> int:
        if position == START:
            return 0
        if not (position.isascii() and position.isdigit()) or int(position) > self._last:
            raise InvalidEventError(f"position={position!r}: not one that this log gave; begin with the empty string")
        return int(position)

    def _sweep(self) -> None:
        if self._forgotten:
            kept = [index for index, record in enumerate(self._records) if record.event.id not in self._forgotten]
            self._records = [self._records[index] for index in kept]
            self._numbers = [self._numbers[index] for index in kept]
            self._forgotten.clear()

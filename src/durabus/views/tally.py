"""Counts the entries of the event log for the demo, by type and by worker."""

from __future__ import annotations

from collections import Counter, defaultdict

from durabus.model.log_entry import LogEntry
from durabus.model.statuses import DEAD_LETTER, TERMINAL, Action
from durabus.store.contract import EventStore
from durabus.store.log import START

PAGE = 2000


class Tally:
    """Counters of log entries, which must be added in commit order."""

    def __init__(self) -> None:
        self.published: Counter[str] = Counter()
        self.completed: Counter[str] = Counter()
        self.dead: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        """Failed attempts that were followed by another. Attempts lost with a worker are in ``abandoned``."""
        self.abandoned: list[float] = []
        """When each event was taken from the killed worker."""
        self.recovered = 0
        """Events that completed after at least one failed or lost attempt."""
        self.done_by: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        """The last error of each dead letter."""
        self.latencies: defaultdict[str, list[float]] = defaultdict(list)
        self.ended_twice = 0
        self.first_ts: float | None = None
        self.last_end_ts: float | None = None
        self.children: Counter[str] = Counter()
        """Number of children by the event_id of the parent."""
        self.completed_ids: defaultdict[str, list[str]] = defaultdict(list)
        self._position = START
        self._ended: set[int] = set()
        self._holder: dict[int, str | None] = {}

    async def follow(self, store: EventStore) -> bool:
        """Read new entries. Returns False if there were none."""
        moved = False
        while True:
            page = await store.read_log(after=self._position, limit=PAGE)
            for entry in page.entries:
                self._add(entry)
            self._position = page.next
            moved = moved or bool(page.entries)
            if len(page.entries) < PAGE:
                return moved

    @property
    def ended(self) -> int:
        """Number of events that are completed or dead letters."""
        return len(self._ended)

    def held_by(self, worker_id: str) -> int:
        """Number of events that a worker has claimed and not given back."""
        return sum(holder == worker_id for holder in self._holder.values())

    def _add(self, entry: LogEntry) -> None:
        if entry.action is Action.PUBLISHED:
            self.published[entry.type] += 1
            self.first_ts = self.first_ts or entry.at_ts
            self.children[entry.parent_id or ""] += 1
        elif entry.action is Action.PICKED:
            self._holder[entry.id] = entry.worker_id
        elif entry.action is not Action.STARTED:
            self._holder.pop(entry.id, None)
            if entry.action is Action.ABANDONED:
                self.abandoned.append(entry.at_ts)
            elif entry.status in TERMINAL:
                self._end(entry)
            elif entry.action is Action.FAILED:
                self.retries[entry.type] += 1

    def _end(self, entry: LogEntry) -> None:
        if entry.id in self._ended:
            self.ended_twice += 1
            return
        self._ended.add(entry.id)
        self.last_end_ts = entry.at_ts
        self.latencies[entry.type].append(entry.at_ts - entry.created_ts)
        self.done_by[entry.worker_id or ""] += 1
        if entry.status in DEAD_LETTER:
            self.dead[entry.type] += 1
            self.errors[entry.errors[-1] if entry.errors else "no error recorded"] += 1
            return
        self.completed[entry.type] += 1
        self.recovered += entry.attempt > 1
        self.completed_ids[entry.type].append(entry.event_id)

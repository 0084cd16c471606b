"""Counts of a store: at one moment, as metrics, as rates of what happens, and as a tally of the log for the demo."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence

import msgspec

from durabus.clock import monotonic
from durabus.model.handler import HandlerInfo
from durabus.model.log_entry import LOG_COLUMNS, LogEntry, LogHold
from durabus.model.query import Counts
from durabus.model.statuses import DEAD_LETTER, TERMINAL, Action, EventStatus
from durabus.store.contract import EventStore
from durabus.store.log import START
from durabus.views.workers import registered_handlers
from durabus.worker.children.children import WAITS

BUSES_SHOWN = 20
LOG_PAGE = 1_000
TALLY_PAGE = 2_000
LOG_PAGES = 50
"""Maximum number of log pages to read between two updates. If there are more, a rate is a lower bound."""
ACTION, BUS = LOG_COLUMNS.index("action"), LOG_COLUMNS.index("bus")
RATES = {
    "published": (Action.PUBLISHED,),
    "picked": (Action.PICKED,),
    "done": (Action.COMPLETED,),
    "failed": (Action.FAILED, Action.COMPLETED_WITH_ERRORS, Action.ABANDONED),
    "cancelled": (Action.CANCELLED,),
}


class StoreStats(msgspec.Struct, frozen=True, kw_only=True):
    """The events of one bus or of all buses, the whole log, and the handlers of the buses, at one moment."""

    at_ts: float
    counts: Counts
    log_entries: int
    handlers: dict[str, list[HandlerInfo]]
    """The handlers of each bus, by its name; at most ``BUSES_SHOWN`` buses."""
    more_buses: bool


class StatsUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The queue at one moment, and rates per second since the previous update."""

    at_ts: float
    counts: Counts
    rates: dict[str, float]
    capped: bool
    """Whether the log had more entries than were read, so that the rates are lower bounds."""


class StoreMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """What ``/metrics`` shows of one bus, and of the log of all buses."""

    bus: str
    counts: Counts
    log_hold: LogHold | None
    missing_handlers: int
    """Registered handlers that no live node has."""


async def read_metrics(store: EventStore, bus: str) -> StoreMetrics:
    """Read the values of the gauges of one bus."""
    return StoreMetrics(
        bus=bus,
        counts=await store.counts(bus),
        log_hold=await store.log_hold(),
        missing_handlers=sum(line.missing for line in await registered_handlers(store, bus)),
    )


async def read_stats(store: EventStore, bus: str | None) -> StoreStats:
    """Read the counts of one bus, or of all buses."""
    counts, log_entries, now = await store.counts(bus), await store.log_lag(START), await store.now()
    known = [info.bus for info in await store.list_buses(limit=BUSES_SHOWN + 1)] if bus is None else [bus]
    return StoreStats(
        at_ts=now,
        counts=counts,
        log_entries=log_entries,
        handlers={name: (await store.list_handlers(name)).handlers for name in known[:BUSES_SHOWN]},
        more_buses=len(known) > BUSES_SHOWN,
    )


async def follow_stats(store: EventStore, bus: str | None, every: float) -> AsyncIterator[StatsUpdate]:
    """Yield an update every ``every`` seconds, without end. Counting begins at the end of the log."""
    position, begun = await store.log_head(), monotonic()
    while True:
        await asyncio.sleep(every)
        counts, at_ts = await store.counts(bus), await store.now()
        position, happened, capped = await _read_on(store, position, bus)
        spent, begun = monotonic() - begun, monotonic()
        rates = {name: round(sum(happened[one] for one in of) / spent, 1) for name, of in RATES.items()}
        yield StatsUpdate(at_ts=at_ts, counts=counts, rates=rates, capped=capped)


async def _read_on(store: EventStore, position: str, bus: str | None) -> tuple[str, Counter[str], bool]:
    """The new end of the log, the number of new entries by action, and whether some were skipped."""
    happened: Counter[str] = Counter()
    for _ in range(LOG_PAGES):
        page = await store.read_log_rows(after=position, limit=LOG_PAGE)
        happened.update(str(row[ACTION]) for row in page.rows if bus in (None, row[BUS]))
        position = page.next
        if len(page.rows) < LOG_PAGE:
            return position, happened, False
    return await store.log_head(), happened, True


class TypeTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one event type, or of all. Latency is from publish to the end, with retries and takeovers."""

    type: str
    published: int
    completed: int
    dead_letters: int
    retries: int
    p50_ms: float | None
    p99_ms: float | None


class RunTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What the whole log says of all events, compared with what the store holds."""

    types: list[TypeTotals]
    total: TypeTotals
    in_store: Counts
    lost: int
    """Events that the log shows as published, but that the store does not have."""
    left: int
    """Events that are still pending or processing."""
    ended_twice: int
    broken_chains: int
    """Completed events whose follow-up was not published exactly once."""
    takeovers: int
    takeover_seconds: float | None
    """Seconds from the kill of a worker to the last takeover; None if none was killed or none of its events taken."""
    retries: int
    """Failed attempts that were followed by another. Attempts lost with a worker are takeovers."""
    parents_returned: int
    """How often a parent went back to the queue because its children had not ended."""
    completed_after_retry: int
    """Events that completed after at least one failed or lost attempt."""
    seconds: float
    events_per_second: float
    dead_letters_by_error: dict[str, int]
    problems: list[str]
    """What does not add up; empty if everything does."""


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
        self.parents_returned = 0
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
            page = await store.read_log(after=self._position, limit=TALLY_PAGE)
            for entry in page.entries:
                self._add(entry)
            self._position = page.next
            moved = moved or bool(page.entries)
            if len(page.entries) < TALLY_PAGE:
                return moved

    @property
    def ended(self) -> int:
        """Number of events that have ended."""
        return len(self._ended)

    def held_by(self, worker_id: str) -> int:
        """Number of events that a worker has claimed and not given back."""
        return sum(holder == worker_id for holder in self._holder.values())

    def totals(self, held: Counts, types: Sequence[str], killed_ts: float | None = None) -> RunTotals:
        """Compare the log with what the store holds. Events of each type but the last must have one follow-up."""
        total, dead = self._type_totals("all", types), held.failed + held.completed_with_errors
        left = held.pending + held.processing
        lost = self.published.total() - held.completed - held.cancelled - dead - left
        followed = (event_id for one in types[:-1] for event_id in self.completed_ids[one])
        broken = sum(self.children[event_id] != 1 for event_id in followed)
        checks = (
            (lost, f"{lost} events were published but are not in the store"),
            (left, f"{left} events are still pending or processing"),
            (
                held.completed != total.completed,
                f"the store holds {held.completed} completed events, the log {total.completed}",
            ),
            (dead != total.dead_letters, f"the store holds {dead} dead letters, the log {total.dead_letters}"),
            (self.ended_twice, f"{self.ended_twice} events ended twice"),
            (broken, f"{broken} completed events lack their one follow-up event"),
        )
        seconds = max(0.0, (self.last_end_ts or 0.0) - (self.first_ts or 0.0))
        return RunTotals(
            types=[self._type_totals(one, [one]) for one in types],
            total=total,
            in_store=held,
            lost=lost,
            left=left,
            ended_twice=self.ended_twice,
            broken_chains=broken,
            takeovers=len(self.abandoned),
            takeover_seconds=max(self.abandoned) - killed_ts if self.abandoned and killed_ts else None,
            retries=self.retries.total(),
            parents_returned=self.parents_returned,
            completed_after_retry=self.recovered,
            seconds=seconds,
            events_per_second=self.ended / seconds if seconds > 0 else 0.0,
            dead_letters_by_error=dict(self.errors.most_common()),
            problems=[text for wrong, text in checks if wrong],
        )

    def _type_totals(self, title: str, types: Sequence[str]) -> TypeTotals:
        latencies = sorted(one for type_ in types for one in self.latencies[type_])
        p50, p99 = (
            1000 * latencies[math.ceil(share * len(latencies)) - 1] if latencies else None for share in (0.50, 0.99)
        )
        return TypeTotals(
            type=title,
            published=sum(self.published[one] for one in types),
            completed=sum(self.completed[one] for one in types),
            dead_letters=sum(self.dead[one] for one in types),
            retries=sum(self.retries[one] for one in types),
            p50_ms=p50,
            p99_ms=p99,
        )

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
            elif entry.action is Action.RELEASED and entry.reason == WAITS:
                self.parents_returned += 1

    def _end(self, entry: LogEntry) -> None:
        if entry.id in self._ended:
            self.ended_twice += 1
            return
        self._ended.add(entry.id)
        self.last_end_ts = entry.at_ts
        if entry.status is EventStatus.CANCELLED:
            return
        self.latencies[entry.type].append(entry.at_ts - entry.created_ts)
        self.done_by[entry.worker_id or ""] += 1
        if entry.status in DEAD_LETTER:
            self.dead[entry.type] += 1
            self.errors[entry.errors[-1] if entry.errors else "no error recorded"] += 1
            return
        self.completed[entry.type] += 1
        self.recovered += entry.attempt > 1
        self.completed_ids[entry.type].append(entry.event_id)

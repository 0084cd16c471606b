"""Follows the log of a bus while a browser shows the dashboard, and counts what happens in each few seconds.

The counts are kept apart by tags, because a token may see only some tags. They are not stored: a restarted server reads
them from the log again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable

import msgspec

from durabus.clock import monotonic
from durabus.errors import StoreClosedError, StoreError
from durabus.model.log_entry import LOG_COLUMNS
from durabus.model.query import EventQuery
from durabus.model.settlement import NO_HANDLER
from durabus.model.statuses import DEAD_LETTER, Action
from durabus.store.contract import EventStore
from durabus.store.log import START

logger = logging.getLogger("durabus.server")

PAGE = 500
LOOK_EVERY = 0.5
BETWEEN_PAGES = 0.01
"""Pause in seconds between two pages of the log, so that requests are served first."""
LOOK_BACK = 30_000
"""How many events to go back in the log when following begins. The charts begin there."""
UNWATCHED = 120.0
"""Seconds after the last page view at which following ends: it costs the server work."""
MAX_LIVE = 50_000
MAX_WORKERS = 1_000
RECENT = 2_000
MAX_BUSES = 8
NOTHING_READ = math.inf

ACTION, ID, BUS, TYPE, STATUS, AT, CREATED, ATTEMPT, GENERATION, WORKER, TOOK, TAGS, REASON = (
    LOG_COLUMNS.index(name)
    for name in (
        "action",
        "id",
        "bus",
        "type",
        "status",
        "at_ts",
        "created_ts",
        "attempt",
        "generation",
        "worker_id",
        "execution_time_ms",
        "tags",
        "reason",
    )
)
ENDS = frozenset({Action.COMPLETED, Action.COMPLETED_WITH_ERRORS, Action.FAILED, Action.ABANDONED})
"""How an attempt succeeds or fails. A cancelled one does neither."""
HISTORY_ACTIONS = frozenset({Action.COMPLETED, Action.CANCELLED})

SLOT = 5.0
"""Seconds that one slot covers."""
KEPT = 3600.0
MAX_TAG_SETS = 200
"""Maximum number of tag sets in one slot. Further sets are counted only for tokens that may see all tags."""
GROWTH = 1.1
"""Each step of a histogram is a tenth larger than the one before, so a percentile is accurate to 5 %."""
FLOOR = 1e-4

TagSet = tuple[str, ...]
REST: TagSet = ("",)
"""Where sets beyond the limit are counted. No tag is empty, so no limited token sees them."""
_TAGS = msgspec.json.Decoder(TagSet)


class ActivityCounts:
    """What happened in a period of time."""

    def __init__(self) -> None:
        self.published = 0
        self.completed = 0
        self.dead = 0
        self.failed_attempts = 0
        """Attempts that failed or were lost, including those that ended their event."""
        self.waiting: Counter[int] = Counter()
        self.running: Counter[int] = Counter()
        self.whole: Counter[int] = Counter()

    @property
    def attempts(self) -> int:
        """Attempts that ended."""
        return self.completed + self.failed_attempts

    @property
    def failure_share(self) -> float | None:
        """The share of attempts that failed; None if there were no attempts."""
        return self.failed_attempts / self.attempts if self.attempts else None

    def add(self, other: ActivityCounts) -> None:
        """Add the counts of ``other``."""
        self.published += other.published
        self.completed += other.completed
        self.dead += other.dead
        self.failed_attempts += other.failed_attempts
        self.waiting.update(other.waiting)
        self.running.update(other.running)
        self.whole.update(other.whole)


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles of durations, in seconds."""

    p50: float | None
    p95: float | None
    p99: float | None


def step_of(seconds: float) -> int:
    """The step of a histogram to which a duration belongs."""
    return round(math.log(max(seconds, FLOOR) / FLOOR, GROWTH))


def percentiles(histogram: Counter[int]) -> Percentiles:
    """The percentiles of a histogram; None if nothing was measured."""
    return Percentiles(*(_quantile(histogram, share) for share in (0.50, 0.95, 0.99)))


def _quantile(histogram: Counter[int], share: float) -> float | None:
    rest = math.ceil(histogram.total() * share)
    if rest == 0:
        return None
    for step in sorted(histogram):
        rest -= histogram[step]
        if rest <= 0:
            return float(FLOOR * GROWTH**step)
    raise AssertionError("a share of the total is not beyond the total")


class SlotCounts:
    """The last hour, in slots of a few seconds."""

    def __init__(self) -> None:
        self._slots: defaultdict[int, dict[TagSet, ActivityCounts]] = defaultdict(dict)

    def at(self, instant: float, tags: TagSet) -> ActivityCounts:
        """The counts to add to for an event with these tags at ``instant``."""
        slot = self._slots[int(instant // SLOT)]
        if tags not in slot and len(slot) >= MAX_TAG_SETS:
            tags = REST
        return slot.setdefault(tags, ActivityCounts())

    def forget(self, now: float) -> None:
        """Drop counts that are older than an hour."""
        oldest = int((now - KEPT) // SLOT)
        for number in [number for number in self._slots if number < oldest]:
            del self._slots[number]

    def between(self, begin: float, end: float, seen: frozenset[str]) -> ActivityCounts:
        """The sum from ``begin`` to ``end`` of events with one of the tags ``seen``; of all events if it is empty."""
        total = ActivityCounts()
        for number in range(int(begin // SLOT), int(end // SLOT)):
            for tags, counts in self._slots.get(number, {}).items():
                if not seen or not seen.isdisjoint(tags):
                    total.add(counts)
        return total

    def series(self, begin: float, step: float, count: int, seen: frozenset[str]) -> list[ActivityCounts]:
        """``count`` sums of ``step`` seconds each, from ``begin`` on."""
        return [self.between(begin + step * n, begin + step * (n + 1), seen) for n in range(count)]


def whole(series: Iterable[ActivityCounts]) -> ActivityCounts:
    """The sum of a series."""
    total = ActivityCounts()
    for counts in series:
        total.add(counts)
    return total


class Live(msgspec.Struct):
    """What is remembered about an event from one log entry to the next."""

    tags: TagSet = ()
    picked_ts: float | None = None


class WorkerSeen(msgspec.Struct):
    """The events of a worker that the log shows."""

    last_ts: float
    done: int = 0
    failed: int = 0
    lost: int = 0


class AttemptEnd(msgspec.Struct, frozen=True):
    """How an attempt ended."""

    at_ts: float
    id: int
    type: str
    failed: bool


class BusActivity:
    """The activity of one bus: what its log says about the last hour."""

    def __init__(self, store: EventStore, bus: str, stopping: asyncio.Event) -> None:
        self.slots = SlotCounts()
        self.recent: deque[AttemptEnd] = deque(maxlen=RECENT)
        self.unhandled: deque[AttemptEnd] = deque(maxlen=RECENT)
        """Events that completed without work because no process had a handler."""
        self.workers: dict[str, WorkerSeen] = {}
        self.caught_up = asyncio.Event()
        """Set while the counts include all but the newest entries."""
        self.since_ts = NOTHING_READ
        """When the oldest entry that was read was written; 0 if the whole log was read."""
        self._store = store
        self._bus = bus
        self._stopping = stopping
        self._live: dict[int, Live] = {}
        self._position = START
        self._asked = monotonic()
        self._task: asyncio.Task[None] | None = None

    async def watched(self, patience: float) -> None:
        """Record a page view: follow the log from now on, and wait up to ``patience`` seconds for new entries."""
        self._asked = monotonic()
        if self._task is None or self._task.done():
            self.caught_up.clear()
            self._task = asyncio.create_task(self._follow())
        try:
            async with asyncio.timeout(patience):
                await self.caught_up.wait()
        except TimeoutError:
            return

    async def stop(self) -> None:
        """Stop following the log."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        try:
            self._begin(await self._start_position())
            while monotonic() - self._asked < UNWATCHED and not self._stopping.is_set():
                more = await self._read_on()
                await asyncio.sleep(BETWEEN_PAGES if more else LOOK_EVERY)
        except StoreClosedError:
            return
        except StoreError as error:
            logger.warning("the dashboard cannot follow the log of bus %r: %s", self._bus, error)

    async def _start_position(self) -> str:
        """The position some thousand events back. Ids grow with time, so no entries need to be counted.

        On a sharded store ids do not grow with time, and an event's position is valid on its shard only. There
        following begins at the end of the log.
        """
        store = self._store
        if not store.features.one_order:
            return await store.log_head()
        newest = (await store.find(EventQuery(limit=1))).events
        if not newest:
            return START
        older = (await store.find(EventQuery(limit=1, before_id=max(newest[0].id - LOOK_BACK, 0) + 1))).events
        if not older:
            return START
        trail = await store.read_event_log(older[0].id)
        return trail[0].position if trail else await store.log_head()  # it was deleted just now

    def _begin(self, position: str) -> None:
        """Begin at ``position``. Older counts are dropped, because what happened since then was not counted."""
        self.slots, self._position = SlotCounts(), position
        self.since_ts = 0.0 if position == START else NOTHING_READ
        self.recent.clear()
        self.unhandled.clear()
        self.workers.clear()
        self._live.clear()

    async def _read_on(self) -> bool:
        """Read one page of new entries. Returns False if there are no more."""
        found = await self._store.read_log_rows(after=self._position, limit=PAGE)
        now = await self._store.now()
        if self.since_ts == NOTHING_READ and found.rows:
            self.since_ts = _float(found.rows[0][AT])
        self._position = found.next
        for row in found.rows:
            if row[BUS] == self._bus and _float(row[AT]) > now - KEPT:
                self._count(row)
        if len(found.rows) == PAGE:
            return True
        self.slots.forget(now)
        self.caught_up.set()
        return False

    def _count(self, row: tuple[object, ...]) -> None:
        at, action, id_ = _float(row[AT]), str(row[ACTION]), int(str(row[ID]))
        live = self._live.get(id_) or self._remember(id_)
        if row[TAGS] is not None:
            live.tags = _tags_of(row[TAGS])
        counts = self.slots.at(at, live.tags)
        worker = self._worker(row[WORKER], at)
        if action == Action.PUBLISHED:
            counts.published += 1
        elif action == Action.PICKED:
            live.picked_ts = at
            if row[ATTEMPT] == 1 and row[GENERATION] == 0:
                counts.waiting[step_of(at - _float(row[CREATED]))] += 1
        elif action in ENDS:
            self._count_end(row, counts, live, worker)
        if action in HISTORY_ACTIONS:
            self._live.pop(id_, None)

    def _count_end(
        self, row: tuple[object, ...], counts: ActivityCounts, live: Live, worker: WorkerSeen | None
    ) -> None:
        at, lost, failed = _float(row[AT]), row[ACTION] == Action.ABANDONED, row[ACTION] != Action.COMPLETED
        ended = AttemptEnd(at, int(str(row[ID])), str(row[TYPE]), failed)
        self.recent.append(ended)
        if not failed and row[REASON] == NO_HANDLER:
            self.unhandled.append(ended)
        counts.failed_attempts += failed
        counts.completed += not failed
        counts.dead += row[STATUS] in DEAD_LETTER
        if worker is not None:
            worker.done += not failed
            worker.failed += failed and not lost
            worker.lost += lost
        took = None if row[TOOK] is None else _float(row[TOOK]) / 1000
        if took is None and live.picked_ts is not None:
            took = at - live.picked_ts
        if took is not None and not lost:
            counts.running[step_of(took)] += 1
        # The time a requeued event spent as a dead letter says nothing about the speed of the workers.
        if not failed and row[GENERATION] == 0:
            counts.whole[step_of(at - _float(row[CREATED]))] += 1

    def _remember(self, id_: int) -> Live:
        if len(self._live) >= MAX_LIVE:
            del self._live[next(iter(self._live))]
        live = self._live[id_] = Live()
        return live

    def _worker(self, name: object, at: float) -> WorkerSeen | None:
        if name is None:
            return None
        found = self.workers.pop(str(name), None) or WorkerSeen(at)
        found.last_ts = at
        self.workers[str(name)] = found  # goes last: the first is the one seen longest ago
        if len(self.workers) > MAX_WORKERS:
            del self.workers[next(iter(self.workers))]
        return found


class ActivityByBus:
    """The activity of the buses that browsers show. The bus viewed longest ago is dropped first."""

    def __init__(self, store: EventStore, stopping: asyncio.Event) -> None:
        self._store = store
        self._stopping = stopping
        self._by_bus: dict[str, BusActivity] = {}

    async def of(self, bus: str, patience: float) -> BusActivity:
        """The activity of a bus, including new entries."""
        activity = self._by_bus.pop(bus, None) or BusActivity(self._store, bus, self._stopping)
        self._by_bus[bus] = activity
        if len(self._by_bus) > MAX_BUSES:
            oldest = next(iter(self._by_bus))
            await self._by_bus.pop(oldest).stop()
        await activity.watched(patience)
        return activity

    async def stop(self) -> None:
        """Stop following all buses. Call it before the store is closed."""
        while self._by_bus:  # a page view may add a bus even now
            await self._by_bus.popitem()[1].stop()


def _tags_of(text: object) -> TagSet:
    if not isinstance(text, str):
        return ()
    try:
        return _TAGS.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return ()  # damaged by hand


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0

"""Follows the log while somebody looks, and counts what happens. All of it can be read from the log again."""

from __future__ import annotations

import asyncio
import math
from collections import deque

import msgspec

from durabus.clock import monotonic
from durabus.errors import StoreClosedError, StoreError
from durabus.http.api import Api, logger
from durabus.http.dashboard.figures import KEPT, Figures, SlotFigures, Tags, step_of
from durabus.model.log_entry import LOG_COLUMNS
from durabus.model.query import EventQuery
from durabus.model.settlement import NO_HANDLER
from durabus.model.statuses import DEAD_LETTER, Action
from durabus.store.log import START
from durabus.views.workers import WorkerSeen

PAGE = 500
LOOK_EVERY = 0.5
BETWEEN_PAGES = 0.01
"""Whoever waits for an answer goes first."""
LOOK_BACK = 30_000
"""Events that are read back when somebody comes to look; charts begin with them."""
UNWATCHED = 120.0
"""So long after the last page the log is left alone: following it is work for the server."""
MAX_LIVE = 50_000
MAX_WORKERS = 1_000
RECENT = 2_000
MAX_PULSES = 8
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
_TAGS = msgspec.json.Decoder(Tags)


class Live(msgspec.Struct):
    """What is remembered of an event between its entries."""

    tags: Tags = ()
    picked_ts: float | None = None


class AttemptEnd(msgspec.Struct, frozen=True):
    """How an attempt ended."""

    at_ts: float
    id: int
    type: str
    failed: bool


class Pulse:
    """Of one bus."""

    def __init__(self, api: Api, bus: str) -> None:
        self.slots = SlotFigures()
        self.recent: deque[AttemptEnd] = deque(maxlen=RECENT)
        self.unhandled: deque[AttemptEnd] = deque(maxlen=RECENT)
        """Events that completed because no process had a handler."""
        self.workers: dict[str, WorkerSeen] = {}
        self.caught_up = asyncio.Event()
        """Set while nothing but the newest is missing."""
        self.since_ts = NOTHING_READ
        """From when on everything is known: when the oldest entry was written that was read; 0 if all were."""
        self._api = api
        self._bus = bus
        self._live: dict[int, Live] = {}
        self._position = START
        self._asked = monotonic()
        self._task: asyncio.Task[None] | None = None

    async def watched(self, patience: float) -> None:
        """Somebody looks: follow from now on, and wait a moment for what is new."""
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
        """Leave the log alone."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        try:
            self._begin(await self._start_position())
            while monotonic() - self._asked < UNWATCHED and not self._api.stopping.is_set():
                more = await self._read_on()
                await asyncio.sleep(BETWEEN_PAGES if more else LOOK_EVERY)
        except StoreClosedError:
            return
        except StoreError as error:
            logger.warning("the dashboard cannot follow the log of bus %r: %s", self._bus, error)

    async def _start_position(self) -> str:
        """Some thousand events back: ids grow with the queue, so no entry has to be counted for it.

        Across shards they do not, and an event tells a position on its own shard only: there it begins now.
        """
        store = self._api.store
        if not store.features.one_order:
            return await store.log_head()
        newest = (await store.find(EventQuery(limit=1))).events
        if not newest:
            return START
        older = (await store.find(EventQuery(limit=1, before_id=max(newest[0].id - LOOK_BACK, 0) + 1))).events
        if not older:
            return START
        trail = await store.read_event_log(older[0].id)
        return trail[0].position if trail else await store.log_head()  # it went away in this very moment

    def _begin(self, position: str) -> None:
        """Also when somebody comes back after a while: what was counted before would have a hole after it."""
        self.slots, self._position = SlotFigures(), position
        self.since_ts = 0.0 if position == START else NOTHING_READ
        self.recent.clear()
        self.unhandled.clear()
        self.workers.clear()
        self._live.clear()

    async def _read_on(self) -> bool:
        """Read what is new, some of it; False if there is no more."""
        found = await self._api.store.read_log_rows(after=self._position, limit=PAGE)
        now = await self._api.store.now()
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
        figures = self.slots.at(at, live.tags)
        worker = self._worker(row[WORKER], at)
        if action == Action.PUBLISHED:
            figures.published += 1
        elif action == Action.PICKED:
            live.picked_ts = at
            if row[ATTEMPT] == 1 and row[GENERATION] == 0:
                figures.waiting[step_of(at - _float(row[CREATED]))] += 1
        elif action in ENDS:
            self._count_end(row, figures, live, worker)
            if action == Action.COMPLETED:
                self._live.pop(id_, None)

    def _count_end(self, row: tuple[object, ...], figures: Figures, live: Live, worker: WorkerSeen | None) -> None:
        at, lost, failed = _float(row[AT]), row[ACTION] == Action.ABANDONED, row[ACTION] != Action.COMPLETED
        ended = AttemptEnd(at, int(str(row[ID])), str(row[TYPE]), failed)
        self.recent.append(ended)
        if not failed and row[REASON] == NO_HANDLER:
            self.unhandled.append(ended)
        figures.failed_attempts += failed
        figures.completed += not failed
        figures.dead += row[STATUS] in DEAD_LETTER
        if worker is not None:
            worker.done += not failed
            worker.failed += failed and not lost
            worker.lost += lost
        took = None if row[TOOK] is None else _float(row[TOOK]) / 1000
        if took is None and live.picked_ts is not None:
            took = at - live.picked_ts
        if took is not None and not lost:
            figures.running[step_of(took)] += 1
        # One that lay among the dead letters for days tells nothing of how fast the workers are.
        if not failed and row[GENERATION] == 0:
            figures.whole[step_of(at - _float(row[CREATED]))] += 1

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
        self.workers[str(name)] = found  # last in the dict: the first is the one not heard of for longest
        if len(self.workers) > MAX_WORKERS:
            del self.workers[next(iter(self.workers))]
        return found


class Pulses:
    """Those that somebody looks at; the one not asked for longest gives way."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._pulses: dict[str, Pulse] = {}

    async def of(self, bus: str, patience: float) -> Pulse:
        """The pulse of a bus, with what is new."""
        pulse = self._pulses.pop(bus, None) or Pulse(self._api, bus)
        self._pulses[bus] = pulse
        if len(self._pulses) > MAX_PULSES:
            oldest = next(iter(self._pulses))
            await self._pulses.pop(oldest).stop()
        await pulse.watched(patience)
        return pulse

    async def stop(self) -> None:
        """Before the store is closed."""
        while self._pulses:  # somebody may come to look even now
            await self._pulses.popitem()[1].stop()


def _tags_of(text: object) -> Tags:
    if not isinstance(text, str):
        return ()
    try:
        return _TAGS.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return ()  # damaged by hand


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0

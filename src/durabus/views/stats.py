"""The counts of a store at one moment, and rates of what happens in it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import msgspec

from durabus.clock import monotonic
from durabus.model.handler import HandlerInfo
from durabus.model.log_entry import LOG_COLUMNS
from durabus.model.query import Counts
from durabus.model.statuses import Action
from durabus.store.contract import EventStore
from durabus.store.log import START

BUSES_SHOWN = 20
LOG_PAGE = 1_000
LOG_PAGES = 50
"""Maximum number of log pages to read between two updates. If there are more, a rate is a lower bound."""
ACTION, BUS = LOG_COLUMNS.index("action"), LOG_COLUMNS.index("bus")
RATES = {
    "published": (Action.PUBLISHED,),
    "picked": (Action.PICKED,),
    "done": (Action.COMPLETED,),
    "failed": (Action.FAILED, Action.COMPLETED_WITH_ERRORS, Action.ABANDONED),
}


class StoreStats(msgspec.Struct, frozen=True, kw_only=True):
    """The events of one bus or of all buses, the whole log, and the handlers of the buses, at one moment."""

    at_ts: float
    counts: Counts
    log_entries: int
    handlers: dict[str, list[HandlerInfo]]
    """By the name of the bus, at most ``BUSES_SHOWN`` buses."""
    more_buses: bool


class StatsUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The queue at one moment, and rates per second since the previous update."""

    at_ts: float
    counts: Counts
    rates: dict[str, float]
    capped: bool
    """Whether the log had more entries than were read, so that the rates are lower bounds."""


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


async def follow_stats(store: EventStore, bus: str | None, every: float, position: str) -> AsyncIterator[StatsUpdate]:
    """Yield an update every ``every`` seconds, without end. Counting begins after ``position`` in the log."""
    begun = monotonic()
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

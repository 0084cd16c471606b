"""``durabus stats``: counts events by status, once or repeatedly."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from durabus.cli.options import DEFAULTS, Common, opened_store
from durabus.cli.output import (
    age,
    clock_time,
    console,
    handler_table,
    iso,
    pairs,
    plain,
    print_json,
    print_json_line,
    print_whole,
    say,
    table,
)
from durabus.clock import monotonic
from durabus.errors import ConfigurationError
from durabus.model.handler import HandlerInfo
from durabus.model.log_entry import LOG_COLUMNS
from durabus.model.query import Counts
from durabus.model.statuses import Action
from durabus.store.log import START

if TYPE_CHECKING:
    from rich.table import Table

    from durabus.store.contract import EventStore

BUSES_SHOWN = 20
LOG_PAGE = 1_000
LOG_PAGES = 50
"""Maximum number of log pages to read between two updates. If there are more, a rate is a lower bound."""
SHORTEST = 0.1
ACTION, BUS = LOG_COLUMNS.index("action"), LOG_COLUMNS.index("bus")
RATES = {
    "published": (Action.PUBLISHED,),
    "picked": (Action.PICKED,),
    "done": (Action.COMPLETED,),
    "failed": (Action.FAILED, Action.COMPLETED_WITH_ERRORS, Action.ABANDONED),
}


class StatsUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The queue at one moment, and rates per second since the previous update."""

    at_ts: float
    counts: Counts
    rates: dict[str, float]
    capped: bool
    """Whether the log had more entries than were read, so that the rates are lower bounds."""


async def stats(
    *,
    bus: Annotated[str | None, Parameter(help="Only this bus. Default: all buses.")] = None,
    watch: Annotated[
        bool, Parameter(help="Update repeatedly, with rates, until Ctrl-C.", negative="", show_default=False)
    ] = False,
    every: Annotated[float, Parameter(help="With --watch: seconds between two updates.")] = 1.0,
    common: Common = DEFAULTS,
) -> None:
    """Count events by status, and list the handlers of the buses. --watch --json prints one document per line.

    Example: durabus stats
    Example: durabus stats --watch
    """
    if not every >= SHORTEST:
        raise ConfigurationError(f"every={every!r}: must be {SHORTEST} seconds or more")
    async with opened_store(common) as store:
        if watch:
            await _watch(store, bus, every, as_json=common.json)
        else:
            await _once(store, bus, as_json=common.json)


async def _once(store: EventStore, bus: str | None, *, as_json: bool) -> None:
    counts, log_entries, now = await store.counts(bus), await store.log_lag(START), await store.now()
    known = [info.bus for info in await store.list_buses(limit=BUSES_SHOWN + 1)] if bus is None else [bus]
    handlers = {name: (await store.list_handlers(name)).handlers for name in known[:BUSES_SHOWN]}
    if as_json:
        print_json(
            {
                "counts": counts,
                "dead_letters": counts.failed + counts.completed_with_errors,
                "log_entries": log_entries,
                "buses": [{"bus": name, "handlers": _documents(found)} for name, found in handlers.items()],
            }
        )
        return
    out = console()
    out.print(pairs(_rows(counts, log_entries)))
    if any(handlers.values()):
        made = handler_table("bus", "handler", "pattern", "node", ("last seen", {"justify": "right"}))
        for name, found in handlers.items():
            for handler in found:
                seen = f"{age(now - handler.last_seen_ts)} ago"
                made.add_row(plain(name), plain(handler.handler_id), plain(handler.pattern), plain(handler.node), seen)
        out.print()
        print_whole(made)
    if len(known) > BUSES_SHOWN:
        say(f"showing the first {BUSES_SHOWN} buses; --bus NAME shows another one")


async def _watch(store: EventStore, bus: str | None, every: float, *, as_json: bool) -> None:
    position, begun = await store.log_head(), monotonic()
    with _shown(as_json=as_json) as show:
        while True:
            await asyncio.sleep(every)
            counts, at_ts = await store.counts(bus), await store.now()
            position, happened, capped = await _read_on(store, position, bus)
            spent, begun = monotonic() - begun, monotonic()
            rates = {name: round(sum(happened[one] for one in of) / spent, 1) for name, of in RATES.items()}
            show(StatsUpdate(at_ts=at_ts, counts=counts, rates=rates, capped=capped))


@contextmanager
def _shown(*, as_json: bool) -> Iterator[Callable[[StatsUpdate], None]]:
    """Yields a function that shows one update: as a live table on a terminal, elsewhere as a line."""
    if as_json:
        yield _print_document
    elif sys.stdout.isatty():
        from rich.live import Live

        with Live(console=console(), auto_refresh=False) as live:
            yield lambda update: live.update(_table(update), refresh=True)
    else:
        heads = ("pending", "in flight", "dead", *(f"{name}/s" for name in RATES))
        print("time          " + "".join(f"{head:>12}" for head in heads), flush=True)
        yield _print_line


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


def _print_document(update: StatsUpdate) -> None:
    print_json_line(
        {"at": iso(update.at_ts), "counts": update.counts, "per_second": update.rates, "capped": update.capped}
    )


def _print_line(update: StatsUpdate) -> None:
    counts = update.counts
    numbers = (counts.pending, counts.processing, counts.failed + counts.completed_with_errors)
    rates = (_rate(update, name) for name in RATES)
    line = "".join(f"{number:>12,}" for number in numbers) + "".join(f"{rate:>12}" for rate in rates)
    print(f"{clock_time(update.at_ts):<14}{line}", flush=True)


def _rate(update: StatsUpdate, name: str) -> str:
    return f"{'>' if update.capped else ''}{update.rates[name]:,.1f}"


def _table(update: StatsUpdate) -> Table:
    right = {"justify": "right"}
    made = table("status", ("events", right), "", ("per second", right))
    sides = zip(_rows(update.counts, None), [*RATES, ""], strict=True)
    for (name, number), rate in sides:
        made.add_row(name, number, rate, _rate(update, rate) if rate else "")
    made.caption = f"{clock_time(update.at_ts)}, Ctrl-C stops it"
    return made


def _rows(counts: Counts, log_entries: int | None) -> list[tuple[str, str]]:
    numbers = {
        "pending": counts.pending,
        "processing": counts.processing,
        "completed": counts.completed,
        "completed with errors": counts.completed_with_errors,
        "failed": counts.failed,
        **({} if log_entries is None else {"log entries": log_entries}),
    }
    return [(name, f"{number:>9,}") for name, number in numbers.items()]


def _documents(handlers: list[HandlerInfo]) -> list[dict[str, object]]:
    return [
        {
            "handler_id": one.handler_id,
            "pattern": one.pattern,
            "node": one.node,
            "last_seen_at": iso(one.last_seen_ts),
        }
        for one in handlers
    ]

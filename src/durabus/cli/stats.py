"""``durabus stats``: counts events by status, once or repeatedly."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from durabus.cli.options import DEFAULTS, BusOption, Common, opened_store
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
from durabus.errors import ConfigurationError
from durabus.model.handler import HandlerInfo
from durabus.model.query import Counts
from durabus.views.stats import BUSES_SHOWN, RATES, StatsUpdate, StoreStats, follow_stats, read_stats

if TYPE_CHECKING:
    from rich.table import Table

SHORTEST = 0.1


async def stats(
    *,
    bus: BusOption = None,
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
            with _shown(as_json=common.json) as show:
                async for update in follow_stats(store, bus, every):
                    show(update)
        else:
            _print_stats(await read_stats(store, bus), as_json=common.json)


def _print_stats(found: StoreStats, *, as_json: bool) -> None:
    counts = found.counts
    if as_json:
        print_json(
            {
                "counts": counts,
                "dead_letters": counts.failed + counts.completed_with_errors,
                "log_entries": found.log_entries,
                "buses": [{"bus": name, "handlers": _documents(infos)} for name, infos in found.handlers.items()],
            }
        )
        return
    out = console()
    out.print(pairs(_rows(counts, found.log_entries)))
    if any(found.handlers.values()):
        made = handler_table("bus", "handler", "pattern", "node", ("last seen", {"justify": "right"}))
        for name, infos in found.handlers.items():
            for handler in infos:
                seen = f"{age(found.at_ts - handler.last_seen_ts)} ago"
                made.add_row(plain(name), plain(handler.handler_id), plain(handler.pattern), plain(handler.node), seen)
        out.print()
        print_whole(made)
    if found.more_buses:
        say(f"showing the first {BUSES_SHOWN} buses; --bus NAME shows another one")


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
        "cancelled": counts.cancelled,
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

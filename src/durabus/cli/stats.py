"""``durabus stats``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from durabus.cli.options import DEFAULTS, Common, opened_store
from durabus.cli.output import age, console, iso, pairs, plain, print_json, say, table
from durabus.model.handler import HandlerInfo
from durabus.model.query import Counts
from durabus.store.log import START

BUSES_SHOWN = 20


async def stats(
    *,
    bus: Annotated[str | None, Parameter(help="Only this bus; without it all.")] = None,
    common: Common = DEFAULTS,
) -> None:
    """Count events by status, and show who serves the buses.

    Example: durabus stats
    """
    async with opened_store(common) as store:
        counts, log_entries, now = await store.counts(bus), await store.log_lag(START), await store.now()
        known = [info.bus for info in await store.list_buses(limit=BUSES_SHOWN + 1)] if bus is None else [bus]
        handlers = {name: (await store.list_handlers(name)).handlers for name in known[:BUSES_SHOWN]}
    if common.json:
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
        made = table("bus", "handler", "pattern", "node", ("last seen", {"justify": "right"}))
        for name, found in handlers.items():
            for handler in found:
                seen = f"{age(now - handler.last_seen_ts)} ago"
                made.add_row(plain(name), plain(handler.handler_id), plain(handler.pattern), plain(handler.node), seen)
        out.print()
        out.print(made)
    if len(known) > BUSES_SHOWN:
        say(f"the first {BUSES_SHOWN} buses are shown; --bus NAME shows one")


def _rows(counts: Counts, log_entries: int) -> list[tuple[str, str]]:
    numbers = {
        "pending": counts.pending,
        "processing": counts.processing,
        "completed": counts.completed,
        "completed with errors": counts.completed_with_errors,
        "failed": counts.failed,
        "log entries": log_entries,
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

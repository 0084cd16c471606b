"""``durabus pipeline``: turns the event log into tables, and reads them."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from durabus.cli.failures import CommandFailed, Exit
from durabus.cli.lake import LAKE_DEFAULTS, LakeOptions, opened_lake, refuse_without_spark
from durabus.cli.options import DEFAULTS, Common, opened_store, refuse_absent_file, store_url
from durabus.cli.output import age, console, pairs, plain, print_json, progress_bars, say, table
from durabus.errors import EventNotFound
from durabus.model.event import new_event_id
from durabus.model.statuses import EventStatus
from durabus.store.events import EventRef

if TYPE_CHECKING:
    from durabus.pipeline.lake import QueryResult
    from durabus.pipeline.projections import Projection
    from durabus.pipeline.replay import Replayed

FOLLOW_EVERY = 10.0
COMPACT_WAITS = 600.0
"""Seconds to wait for the lake if another process uses it. ``run --follow`` frees it between its runs."""

pipeline = App(
    name="pipeline", help="The event log as tables, on Spark: run, status, tables, sql, report, replay, trim, compact."
)


@pipeline.command
def run(
    part: Annotated[
        Literal["archive", "project", "analyze", "all"], Parameter(name="PART", help="The part to run.")
    ] = "all",
    /,
    *,
    follow: Annotated[bool, Parameter(help="Repeat until Ctrl-C, or stop after one run.", negative="--once")] = False,
    entity: Annotated[
        str | None, Parameter(help="Payload field that identifies an entity. Adds two projections by this field.")
    ] = None,
    projections: Annotated[
        str | None, Parameter(name="--projections", help="MODULE:LIST with your own projections.")
    ] = None,
    stale_after: Annotated[
        float, Parameter(help="Seconds after which a claim without an end counts as stale.")
    ] = 300.0,
    options: LakeOptions = LAKE_DEFAULTS,
    common: Common = DEFAULTS,
) -> None:
    """Archive the log, verify the archive, update tables and projections, and analyze.

    Example: durabus pipeline run --store sqlite:///bus.db --lake lake
    """
    url = store_url(common)
    refuse_absent_file(url)
    with opened_lake(options, create=True) as lake:
        from durabus.pipeline.run import Pipeline, PipelinePart
        from durabus.pipeline.store_session import shown_url

        chosen = _projections(entity, projections)
        say(f"store {shown_url(url)}, lake {lake.path}, Spark {lake.spark.version} on {options.master}")
        if follow:
            lake.compact_by_itself()
        wait = 0.0
        while True:
            with progress_bars() as bars:
                Pipeline(lake, url, chosen, listener=bars).run(PipelinePart(part), stale_after=stale_after, wait=wait)
            if not follow:
                break
            wait = inf  # another process that uses the lake between two runs frees it again
            time.sleep(FOLLOW_EVERY)
        if common.json:
            print_json({"steps": bars.done})


@pipeline.command
def status(*, options: LakeOptions = LAKE_DEFAULTS, common: Common = DEFAULTS) -> None:
    """Show how far behind the lake is, and the last run of each step.

    Example: durabus pipeline status --store sqlite:///bus.db --lake lake
    """
    refuse_absent_file(store_url(common))
    with opened_lake(options) as lake:
        from durabus.pipeline.status import LakeStatus, lake_status

        async def ask() -> tuple[LakeStatus, float]:
            async with opened_store(common) as store:
                return await lake_status(lake, store), await store.now()

        found, now = asyncio.run(ask())
    if common.json:
        print_json(found)
        return
    facts = {
        "archived": f"{found.archived:,} log entries",
        "behind the store": "unknown: an open transaction holds back the log"
        if found.behind is None
        else f"{found.behind:,}",
        "not verified": f"{found.unverified:,}",
        "quarantined": f"{found.quarantined:,}",
    }
    out = console()
    out.print(pairs(facts.items()))
    number = {"justify": "right"}
    made = table("step", ("rows", number), ("took", number), ("ended", number), ("lag", number), "error")
    for step in found.steps:
        name = step.step if step.version is None else f"{step.step} v{step.version}"
        ended = f"{age(max(now - step.finished_at.timestamp(), 0.0))} ago"
        lag = "" if step.lag is None else f"{step.lag:,}"
        made.add_row(name, f"{step.rows:,}", f"{step.seconds:.1f} s", ended, lag, plain(step.error or ""))
    out.print()
    out.print(made)


@pipeline.command
def tables(*, options: LakeOptions = LAKE_DEFAULTS, common: Common = DEFAULTS) -> None:
    """List the tables of the lake.

    Example: durabus pipeline tables --lake lake
    """
    with opened_lake(options) as lake:
        from durabus.pipeline.status import table_status

        found = table_status(lake)
    if common.json:
        print_json({"tables": found})
        return
    number = {"justify": "right"}
    made = table("table", ("rows", number), ("files", number), ("MB", number), ("version", number))
    for one in found:
        made.add_row(one.name, f"{one.rows:,}", f"{one.files:,}", f"{one.megabytes:.2f}", str(one.version))
    console().print(made)


@pipeline.command
def sql(
    query: Annotated[str, Parameter(name="QUERY", help="A SELECT over the tables of the lake.")],
    /,
    *,
    limit: Annotated[int, Parameter(help="Maximum number of rows to show.")] = 100,
    options: LakeOptions = LAKE_DEFAULTS,
    common: Common = DEFAULTS,
) -> None:
    """Query the tables in SQL.

    Example: durabus pipeline sql "select type, count(*) from silver.events group by type"
    """
    with opened_lake(options) as lake:
        from durabus.pipeline.lake import ask_sql

        found = ask_sql(lake, query, limit=limit)
    _print_result(found, as_json=common.json)
    if len(found.rows) == limit:
        say(f"showing the first {limit} rows; use --limit for more")


@pipeline.command
def report(
    *,
    out: Annotated[Path, Parameter(help="The HTML file to write.")] = Path("durabus-report.html"),
    options: LakeOptions = LAKE_DEFAULTS,
    common: Common = DEFAULTS,
) -> None:
    """Write one HTML file with charts: depth, throughput, latency, failures, dead letters, workers.

    Example: durabus pipeline report --lake lake --out report.html
    """
    with opened_lake(options) as lake:
        from durabus.pipeline.report import report as page_of

        page = page_of(lake, made_at=datetime.now(UTC))  # clock: printed on the page
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"cannot write {out}", error.strerror or str(error), "choose another --out") from error
    if common.json:
        print_json({"report": str(out.absolute())})
    else:
        print(out.absolute())


@pipeline.command
def replay(
    *,
    since: Annotated[datetime | None, Parameter(help="Published at or after this instant (UTC).")] = None,
    until: Annotated[datetime | None, Parameter(help="Published before this instant (UTC).")] = None,
    event_type: Annotated[
        tuple[str, ...],
        Parameter(name="--type", help="Pattern, such as order.*. Repeat the option for several.", negative=""),
    ] = (),
    tag: Annotated[tuple[str, ...], Parameter(help="With at least one of these tags.", negative="")] = (),
    status: Annotated[tuple[EventStatus, ...], Parameter(help="In one of these statuses.", negative="")] = (),
    where: Annotated[str | None, Parameter(help='SQL condition on silver.events, such as "attempts > 2".')] = None,
    bus: Annotated[str | None, Parameter(help="Only events of this bus.")] = None,
    to_bus: Annotated[str | None, Parameter(help="Publish on this bus instead of the event's own.")] = None,
    rate: Annotated[float | None, Parameter(help="Maximum number of events per second.")] = None,
    replay_id: Annotated[
        str | None, Parameter(name="--id", help="Name of this replay. The same name continues a stopped replay.")
    ] = None,
    dry_run: Annotated[bool, Parameter(help="Only show what would be published.", negative="")] = False,
    options: LakeOptions = LAKE_DEFAULTS,
    common: Common = DEFAULTS,
) -> None:
    """Publish events of the lake again.

    Example: durabus pipeline replay --type 'order.*' --status FAILED --dry-run
    """
    if not dry_run:
        refuse_absent_file(store_url(common))
    with opened_lake(options) as lake:
        from durabus.pipeline.replay import Choice, chosen, counted
        from durabus.pipeline.replay import replay as publish_again

        choice = Choice(
            since=_in_utc(since),
            until=_in_utc(until),
            types=event_type,
            tags=tag,
            statuses=status,
            bus=bus,
            where=where,
        )
        found = chosen(lake.read("silver.events"), choice)
        total = found.count()
        if dry_run:
            _print_dry_run(total, counted(found), as_json=common.json)
            return
        name = replay_id or f"{datetime.now(UTC):%Y%m%d}-{new_event_id()[-12:]}"  # clock: a name for people
        say(f"replay {name}: {total:,} events; if it is stopped, --id {name} continues it without duplicates")
        with progress_bars() as bars:
            bars.begins("replay", total)

            def told(so_far: Replayed) -> None:
                bars.moves(so_far.published + so_far.known)

            async def go() -> Replayed:
                async with opened_store(common) as store:
                    return await publish_again(found, store, replay_id=name, bus=to_bus, rate=rate, told=told)

            done = asyncio.run(go())
    _print_replayed(name, total, done, as_json=common.json)


@pipeline.command
def trim(
    *,
    older_than: Annotated[
        float, Parameter(help="Keep entries of events that ended within this many seconds.")
    ] = 86_400.0,
    common: Common = DEFAULTS,
) -> None:
    """Trim the store's log, but only entries whose copy in the lake was verified.

    Example: durabus pipeline trim --store sqlite:///bus.db --older-than 604800
    """
    refuse_without_spark()
    from durabus.pipeline.verification import trim as trim_verified

    async def go() -> int:
        async with opened_store(common) as store:
            return await trim_verified(store, older_than=older_than)

    gone = asyncio.run(go())
    if common.json:
        print_json({"trimmed_entries": gone})
    else:
        print(f"{gone:,} log entries trimmed")


@pipeline.command
def compact(
    *,
    keep_days: Annotated[float, Parameter(help="Days for which older versions of the tables stay readable.")] = 7.0,
    options: LakeOptions = LAKE_DEFAULTS,
    common: Common = DEFAULTS,
) -> None:
    """Merge small files into large ones, and delete files that only older versions need.

    Example: durabus pipeline compact --lake lake --keep-days 30
    """
    with opened_lake(options) as lake:
        from durabus.pipeline.derive import compact as compact_all

        now = datetime.now(UTC)  # clock: which files are old
        done = compact_all(lake, keep_days=keep_days, now=now, wait=COMPACT_WAITS)
    if common.json:
        print_json({"tables": done})
        return
    number = {"justify": "right"}
    made = table("table", ("files before", number), ("files after", number))
    for one in done:
        made.add_row(one.name, f"{one.before:,}", f"{one.after:,}")
    console().print(made)


def show_archived(ref: EventRef, lake: str, *, as_json: bool) -> None:
    """Print the audit trail of an event that the store has trimmed."""
    with opened_lake(LakeOptions(lake=lake)) as found:
        from durabus.pipeline.lake import archived_trail

        trail = archived_trail(found, ref)
    if not trail.rows:
        raise EventNotFound(ref)
    if as_json:
        print_json({"event": None, "archived": _documents(trail)})
        return
    say("the store has trimmed this event; this is its copy in the lake")
    last = trail.rows[-1]
    shown = {
        name: str(last[name]) for name in ("event_id", "bus", "type", "status", "payload") if last[name] is not None
    }
    out = console()
    out.print(pairs((name, plain(value)) for name, value in shown.items()))
    made = table("at", "action", "try", "worker", "error")
    for row in trail.rows:
        made.add_row(
            str(row["at"]), row["action"], str(row["attempt"]), plain(row["worker_id"] or ""), plain(row["error"] or "")
        )
    out.print()
    out.print(made)


def _in_utc(given: datetime | None) -> datetime | None:
    """The time as UTC, unless it has an offset."""
    return given if given is None or given.tzinfo is not None else given.replace(tzinfo=UTC)


def _projections(entity: str | None, target: str | None) -> list[Projection]:
    from durabus.pipeline.projections import Projection, hourly_counters, journeys, latest_state

    chosen = [hourly_counters()]
    if entity is not None:
        chosen += [latest_state(entity), journeys(entity)]
    if target is not None:
        from durabus.cli.worker import load_object

        found = load_object(target)
        if not isinstance(found, list | tuple) or not all(isinstance(one, Projection) for one in found):
            raise CommandFailed(f"{target} is not a list of projections", code=Exit.USAGE)
        chosen += found
    return chosen


def _print_replayed(name: str, total: int, done: Replayed, *, as_json: bool) -> None:
    if as_json:
        print_json({"replay_id": name, "chosen": total, "published": done.published, "known": done.known})
    else:
        print(f"replay {name}: {done.published:,} published, {done.known:,} already published")


def _print_dry_run(total: int, groups: QueryResult, *, as_json: bool) -> None:
    if as_json:
        print_json({"events": total, "groups": _documents(groups)})
        return
    _print_result(groups, as_json=False)
    print(f"dry run: {total:,} events would be published")


def _print_result(found: QueryResult, *, as_json: bool) -> None:
    if as_json:
        print_json(_documents(found))
        return
    number = {"justify": "right"}
    numbers = {name for name in found.columns if all(isinstance(row[name], int | float) for row in found.rows)}
    made = table(*((name, number) if name in numbers else name for name in found.columns))
    for row in found.rows:
        made.add_row(*("" if row[name] is None else plain(str(row[name])) for name in found.columns))
    console().print(made)


def _documents(found: QueryResult) -> list[dict[str, Any]]:
    return [{name: _document(value) for name, value in row.items()} for row in found.rows]


def _document(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | list | dict | None) else str(value)

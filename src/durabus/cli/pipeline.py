"""``durabus pipeline``: turns the event log into tables, and reads them."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from durabus.cli.declared import Entity, Projections, declared_tables
from durabus.cli.failures import CommandFailed, Exit
from durabus.cli.lake import (
    LAKE_DEFAULTS,
    LakeOptions,
    documents,
    opened_lake,
    print_result,
)
from durabus.cli.lake_plan import graph, plan
from durabus.cli.lake_upkeep import compact, forget, prove, rebuild, rollback, trim, utc
from durabus.cli.options import DEFAULTS, Common, opened_store, refuse_absent_file, store_url
from durabus.cli.output import age, console, pairs, plain, print_json, progress_bars, say, table
from durabus.model.event import new_event_id
from durabus.model.statuses import EventStatus

if TYPE_CHECKING:
    from durabus.pipeline.lake import QueryResult
    from durabus.pipeline.replay import Replayed

pipeline = App(
    name="pipeline",
    help="The event log as tables, on Spark: run, plan, graph, status, tables, sql, report, replay, "
    "rebuild, rollback, prove, trim, forget, compact.",
)
for command in (plan, graph, rebuild, rollback, prove, trim, forget, compact):
    pipeline.command(command)


@pipeline.command
def run(
    part: Annotated[
        Literal["archive", "project", "analyze", "all"], Parameter(name="PART", help="The part to run.")
    ] = "all",
    /,
    *,
    follow: Annotated[bool, Parameter(help="Repeat until Ctrl-C, or stop after one run.", negative="--once")] = False,
    interval: Annotated[float, Parameter(help="Seconds between two runs with --follow.")] = 10.0,
    entity: Entity = None,
    projections: Projections = None,
    stale_after: Annotated[
        float, Parameter(help="Seconds after which a claim without an end counts as stale.")
    ] = 300.0,
    accept_gap: Annotated[
        bool, Parameter(help="Go on where the log was trimmed before it was archived; ops.gaps notes it.", negative="")
    ] = False,
    rebuild_from: Annotated[
        str | None, Parameter(help="Fill an empty lake with the log of this lake, if the store's log was trimmed.")
    ] = None,
    options: LakeOptions = LAKE_DEFAULTS,
    common: Common = DEFAULTS,
) -> None:
    """Archive the log, verify the archive, update tables and projections, and analyze.

    Example: durabus pipeline run --store sqlite:///bus.db --lake lake
    """
    if not 0 <= interval < inf:
        raise CommandFailed(f"--interval {interval:g}: must be 0 or more seconds", code=Exit.USAGE)
    url = store_url(common)
    refuse_absent_file(url)
    with opened_lake(options, create=True) as lake:
        from durabus.pipeline.lake import Lake
        from durabus.pipeline.run import Pipeline, PipelinePart
        from durabus.pipeline.store_session import shown_url

        chosen = declared_tables(entity, projections)
        say(f"store {shown_url(url)}, lake {lake.path}, Spark {lake.spark.version} on {options.master}")
        if follow:
            lake.compact_by_itself()
        wait, copy_of = 0.0, None if rebuild_from is None else Lake(lake.spark, rebuild_from)
        while True:
            with progress_bars() as bars:
                made = Pipeline(lake, url, chosen, listener=bars, accept_gap=accept_gap, copy_of=copy_of)
                made.run(PipelinePart(part), stale_after=stale_after, wait=wait)
            if not follow:
                break
            wait, copy_of = inf, None  # another process that uses the lake between two runs frees it again
            time.sleep(interval)
        if common.json:
            print_json({"steps": bars.done})


@pipeline.command
def status(*, options: LakeOptions = LAKE_DEFAULTS, common: Common = DEFAULTS) -> None:
    """Show how far behind the lake is, and the last run of each step.

    Example: durabus pipeline status --store sqlite:///bus.db --lake lake
    """
    refuse_absent_file(store_url(common))
    with opened_lake(options) as lake:
        from durabus.pipeline.gaps import trimmed_unread
        from durabus.pipeline.status import LakeStatus, lake_status

        async def ask() -> tuple[LakeStatus, float]:
            async with opened_store(common) as store:
                return await lake_status(lake, store), await store.now()

        found, now = asyncio.run(ask())
    if common.json:
        print_json(found)
        return
    facts = {
        "lake": found.lake_id or "none yet: run the pipeline first",
        "archived": f"{found.archived:,} log entries",
        "behind the store": "unknown: an open transaction holds back the log"
        if found.behind is None
        else f"{found.behind:,}",
        "not verified": f"{found.unverified:,}",
        "quarantined": f"{found.quarantined:,}",
        "trimmed unread": trimmed_unread(found.gaps),
        "holds back trims": ", ".join(f"lake {name} ({lag:,})" for name, lag in found.followers.items() if lag)
        or "none",
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
    if found.expectations:
        made = table("expectation", "table", "action", ("rows", number), ("broken", number))
        for one in found.expectations:
            made.add_row(plain(one.name), one.table_name, one.action, f"{one.rows:,}", f"{one.broken:,}")
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
    print_result(found, as_json=common.json)
    if len(found.rows) == limit:
        say(f"showing the first {limit} rows; use --limit for more")


@pipeline.command
def report(
    *,
    out: Annotated[Path, Parameter(help="The HTML file to write.")] = Path("durabus-report.html"),
    options: LakeOptions = LAKE_DEFAULTS,
    common: Common = DEFAULTS,
) -> None:
    """Write one HTML file with interactive charts over time, tables, and the state of the lake. It loads nothing.

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
            since=utc(since),
            until=utc(until),
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


def _print_replayed(name: str, total: int, done: Replayed, *, as_json: bool) -> None:
    if as_json:
        print_json({"replay_id": name, "chosen": total, "published": done.published, "known": done.known})
    else:
        print(f"replay {name}: {done.published:,} published, {done.known:,} already published")


def _print_dry_run(total: int, groups: QueryResult, *, as_json: bool) -> None:
    if as_json:
        print_json({"events": total, "groups": documents(groups)})
        return
    print_result(groups, as_json=False)
    print(f"dry run: {total:,} events would be published")

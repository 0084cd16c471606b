"""``python -m benchmarks [names…] [--quick]``: measure, then print one table."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks import (
    buses,
    databases,
    draining,
    durable_defaults,
    growth,
    http_api,
    http_dashboard,
    memory,
    postgresql,
    publishing,
    runtime,
    schedules,
    steps,
    store_servers,
)
from benchmarks.bench import Bench
from benchmarks.processes import ROOT
from benchmarks.report import DOCS, print_table, read_json, write_docs, write_json
from benchmarks.results import Group, Report, Row, this_commit, this_machine, this_moment

GROUPS: dict[str, Callable[[Bench], Iterable[Row]]] = {
    "memory": memory.run,
    "publish": publishing.run,
    "drain": draining.run,
    "defaults": durable_defaults.run,
    "http": http_api.run,
    "dashboard": http_dashboard.run,
    "growth": growth.run,
    "postgresql": postgresql.run,
    "redis": store_servers.run_redis,
    "nats": store_servers.run_nats,
    "kafka": store_servers.run_kafka,
    "nats-start": store_servers.run_nats_start,
    "kafka-start": store_servers.run_kafka_start,
    "runtime": runtime.run,
    "steps": steps.run,
    "schedules": schedules.run,
    "buses": buses.run,
}
HOURS = frozenset({"buses"})
"""These run only if they are named."""
SETTINGS = (
    f"SQLite: WAL, synchronous=FULL; {databases.SETTINGS}; {store_servers.SETTINGS}; "
    "log of every transition on, options at their defaults but for concurrency=200 in the drain rows"
)
RESULTS = ROOT / "build" / "benchmarks.json"


def main() -> int:
    """Return 0 unless something broke. A missed target is a finding, not an error."""
    options = _options()
    if options.write_docs:
        write_docs(read_json(options.json))
        print(f"{DOCS.relative_to(ROOT)} written from {options.json}")
        return 0
    console = Console()
    older = read_json(options.json) if options.json.exists() else None  # before anything is measured: it may not be one
    report, broken = _measure(options, console)
    print_table(console, report)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    known = report if older is None else report.with_older(older, list(GROUPS))
    write_json(known, options.json)
    console.print(f"results in {options.json}: {', '.join(known.groups)}", style="dim")
    for name in broken:
        console.print(f"{name} broke: see its error above", style="bold red")
    return 1 if broken else 0


def _measure(options: argparse.Namespace, console: Console) -> tuple[Report, list[str]]:
    groups: dict[str, Group] = {}
    broken: list[str] = []
    commit = this_commit()  # before a developer changes a file
    with _progress(console) as progress:
        task = progress.add_task("", total=len(options.names))
        bench = Bench(
            quick=options.quick, folder=options.dir, progress=lambda text: progress.update(task, description=text)
        )
        for name in options.names:
            rows: list[Row] = []
            load, started = os.getloadavg()[0], monotonic()
            try:
                rows.extend(GROUPS[name](bench))  # what was found before an error is kept
            except Exception:  # noqa: BLE001  (the other groups still have something to say)
                console.print(traceback.format_exc(), markup=False, highlight=False)
                broken.append(name)
            groups[name] = Group(
                rows=rows,
                seconds=monotonic() - started,
                finished=this_moment(),
                load_before=load,
                load_after=os.getloadavg()[0],
                commit=commit,
            )
            progress.advance(task)
    machine = this_machine(options.dir)
    return Report(machine=machine, settings=SETTINGS, quick=options.quick, groups=groups), broken


def _progress(console: Console) -> Progress:
    columns = (SpinnerColumn(), BarColumn(20), TimeElapsedColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"groups to run: {', '.join(GROUPS)} (all but {', '.join(HOURS)})")
    parser.add_argument("--quick", action="store_true", help="a sanity run of everything in under a minute")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help=f"results file ({RESULTS})")
    parser.add_argument(
        "--dir", type=Path, default=Path(tempfile.gettempdir()), help="folder on the disk to measure (the temp folder)"
    )
    parser.add_argument(
        "--write-docs", action="store_true", help=f"measure nothing; write {DOCS} from the results file"
    )
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in GROUPS]
    if unknown:
        parser.error(f"no such group {', '.join(unknown)}: choose from {', '.join(GROUPS)}")
    options.names = options.names or [name for name in GROUPS if name not in HOURS]
    return options


if __name__ == "__main__":
    sys.exit(main())

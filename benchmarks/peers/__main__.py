"""``python -m benchmarks.peers [names…] [--quick]``: publish and drain with each peer in turn, then print one table."""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import monotonic, sleep

import msgspec
import psycopg
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.databases import SETTINGS, Databases, postgresql, settle
from benchmarks.peers.peer import BATCH, NAMES, Peer, peer
from benchmarks.processes import ROOT, Child

MODULE = "benchmarks.peers.child"
LOOK_EVERY = 0.02
STALLED_AFTER = 300.0
RESULTS = ROOT / "build" / "peers.json"
STEPS = ("publish one by one", f"publish {BATCH:,} a call", "drain, 1 process", "drain, 2 processes")


class Found(msgspec.Struct, kw_only=True):
    """The figures of one peer: events per second, one for each repetition, by step."""

    name: str
    version: str
    settings: str
    figures: dict[str, list[float]]


class Sizes(msgspec.Struct, frozen=True):
    """How much of everything."""

    single: int
    many: int
    repetitions: int


def main() -> int:
    options = _options()
    console = Console()
    sizes = Sizes(300, 2_000, 1) if options.quick else Sizes(2_000, 50_000, 3)
    with (
        tempfile.TemporaryDirectory(prefix="durabus-peers-", dir=options.dir) as folder,
        postgresql(Path(folder)) as databases,
    ):
        found = [
            Found(name=name, version=version(peer(name).package), settings=peer(name).settings, figures={})
            for name in options.names
        ]
        for turn in range(sizes.repetitions):
            for one in found:
                with console.status(f"{one.name}: {turn + 1} of {sizes.repetitions}"):
                    for step, figure in _measure(one.name, databases, sizes):
                        one.figures.setdefault(step, []).append(figure)
        server = databases.version()
    _print(console, found, server, quick=options.quick)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    console.print(f"results in {RESULTS}", style="dim")
    return 0


def _measure(name: str, databases: Databases, sizes: Sizes) -> list[tuple[str, float]]:
    asked = peer(name)
    many = max(sizes.many // 10, BATCH) if asked.slow else sizes.many
    figures: list[tuple[str, float]] = []
    with databases.fresh() as empty:
        _step(name, "install", empty, 0)
        with databases.fresh(empty) as url:
            figures.append((STEPS[0], sizes.single / _step(name, "publish-single", url, sizes.single)))
        seconds = _step(name, "publish-batches", empty, many)
        if asked.batches:
            figures.append((STEPS[1], many / seconds))
        settle(empty)
        for step, processes in ((STEPS[2], 1), (STEPS[3], 2)):
            with databases.fresh(empty) as url:
                figures.append((step, many / _drain(name, asked, url, many, processes)))
    return figures


def _step(name: str, step: str, url: str, count: int) -> float:
    with Child(name, step, url, str(count), module=MODULE) as child:
        child.wait_until_ready()
        child.go()
        found: float | None = child.found()
        return found or 0.0


def _drain(name: str, asked: Peer, url: str, count: int, processes: int) -> float:
    with ExitStack() as stack:
        looking = stack.enter_context(psycopg.connect(url, autocommit=True))
        children = [stack.enter_context(Child(name, "drain", url, str(count), module=MODULE)) for _ in range(processes)]
        for child in children:
            child.wait_until_ready()
        started = monotonic()
        for child in children:
            child.go()
        while (row := looking.execute(asked.unfinished.encode()).fetchone()) and row[0]:
            if any(child.has_ended() for child in children):
                raise RuntimeError(f"a worker of {name} ended before the queue was empty: see its error")
            if monotonic() - started > STALLED_AFTER:
                raise RuntimeError(f"{name} did not drain {count:,} jobs within {STALLED_AFTER:g} s")
            sleep(LOOK_EVERY)
        seconds = monotonic() - started
        handled = sum(child.stop() for child in children)
        assert handled >= count, f"{name}: {handled} handled of {count}"
        return seconds


def _print(console: Console, found: list[Found], server: str, *, quick: bool) -> None:
    table = Table("", *STEPS, box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for one in found:
        rates = [f"{median(one.figures[step]):,.0f}/s" if step in one.figures else "-" for step in STEPS]
        table.add_row(f"{one.name} {one.version}", *rates)
    console.print(table)
    for one in found:
        console.print(f"{one.name}: {one.settings}", style="dim", highlight=False)
    done = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    console.print(
        f"Events per second, medians, peers in turn. No-op async handlers; a drain counts from the start of the worker "
        f"in a process that has imported everything until the queue is seen empty; {SETTINGS}, {server}; Python "
        f"{sys.version.split()[0]}; {done}",
        style="dim",
        highlight=False,
    )
    if quick:
        console.print("--quick: a sanity run, too short for figures to quote", style="yellow")


def _options() -> argparse.Namespace:
    able = [name for name in NAMES if _can_run(name)]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"peers to run: {', '.join(able)} (all)")
    parser.add_argument("--quick", action="store_true", help="a sanity run of everything")
    parser.add_argument(
        "--dir", type=Path, default=Path(tempfile.gettempdir()), help="folder on the disk to measure (the temp folder)"
    )
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in able]
    if unknown:
        parser.error(f"cannot run {', '.join(unknown)}: choose from {', '.join(able)}")
    options.names = options.names or able
    return options


def _can_run(name: str) -> bool:
    try:
        peer(name)
    except ModuleNotFoundError as error:
        print(f"{name} is left out: {error.name} is not installed (oban needs Python 3.12)", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())

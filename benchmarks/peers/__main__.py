"""``python -m benchmarks.peers [names…] [--store redis] [--quick]``: publish and drain with each peer in turn."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import monotonic, sleep

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.peers.peer import BATCH, OLDER, About, peer
from benchmarks.peers.places import NAMES, Place, place
from benchmarks.processes import ROOT, Child
from benchmarks.report import PEERS
from benchmarks.results import Published, this_commit, this_moment

MODULE = "benchmarks.peers.child"
LOOK_EVERY = 0.02
STALLED_AFTER = 300.0
RESULTS = ROOT / "build" / "peers.json"
STEPS = ("publish one by one", f"publish {BATCH:,} a call", "drain, 1 process", "drain, 2 processes")


class Found(msgspec.Struct, kw_only=True):
    """The figures of one peer: events per second, one for each repetition, by step."""

    store: str
    name: str
    about: About
    figures: dict[str, list[float]] = {}


class Sizes(msgspec.Struct, frozen=True):
    """How many events each step handles."""

    single: int
    many: int
    repetitions: int


def main() -> int:
    options = _options()
    console = Console()
    sizes = Sizes(300, 2_000, 1) if options.quick else Sizes(2_000, 50_000, 3)
    found: list[Found] = []
    commit, load = this_commit(), os.getloadavg()[0]
    for store in options.stores:
        names = [name for name in options.names or NAMES[store] if name in NAMES[store] and _can_run(name)]
        with (
            tempfile.TemporaryDirectory(prefix="durabus-peers-", dir=options.dir) as folder,
            place(store, Path(folder)) as where,
        ):
            ran = [Found(store=store, name=name, about=_about(name)) for name in names]
            for turn in range(sizes.repetitions):
                for one in ran:
                    with console.status(f"{one.name}: {turn + 1} of {sizes.repetitions}"):
                        _measure(one, where, sizes)
            _print(console, ran, where, quick=options.quick)
            found += ran
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    console.print(f"results in {RESULTS}", style="dim")
    if not options.quick:
        made = Published(markdown=_markdown(found), finished=this_moment(), commit=commit, load=load)
        made.write(PEERS)
        console.print(f"table for docs/proof/benchmarks.md in {PEERS}", style="dim")
    return 0


def _markdown(found: list[Found]) -> str:
    """Return one table for each store, and how each peer was configured."""
    parts: list[str] = []
    for store in dict.fromkeys(one.store for one in found):
        here = [one for one in found if one.store == store]
        rows = [["", *STEPS], ["---", *["--:"] * len(STEPS)]]
        rows += [[f"{one.name} {one.about.version}", *_rates(one)] for one in here]
        settings = [f"- {one.name}: {one.about.settings}" for one in here]
        parts += [f"### {store}", "", *(f"| {' | '.join(row)} |" for row in rows), "", *settings, ""]
    return "\n".join(parts).rstrip()


def _rates(one: Found) -> list[str]:
    return [f"{median(one.figures[step]):,.0f}/s" if step in one.figures else "-" for step in STEPS]


def _measure(one: Found, where: Place, sizes: Sizes) -> None:
    name, about = one.name, one.about
    many = max(sizes.many // 10, BATCH) if about.slow else sizes.many

    def note(step: str, figure: float) -> None:
        one.figures.setdefault(step, []).append(figure)

    with where.empty() as url:
        _step(name, "install", url, 0)
        note(STEPS[0], sizes.single / _step(name, "publish-single", url, sizes.single))
    for step, processes in ((STEPS[2], 1), (STEPS[3], 2)):
        with where.empty() as url:
            _step(name, "install", url, 0)
            seconds = _step(name, "publish-batches", url, many)
            if about.batches:
                note(STEPS[1], many / seconds)
            where.settle(url)
            note(step, many / _drain(one, where, url, many, processes))


def _child(name: str, step: str, url: str, count: int) -> Child:
    return Child(name, step, url, str(count), module=MODULE, python=_interpreter(name))


def _step(name: str, step: str, url: str, count: int) -> float:
    with _child(name, step, url, count) as child:
        child.wait_until_ready()
        child.go()
        found: float | None = child.found()
        return found or 0.0


def _about(name: str) -> About:
    with _child(name, "about", "", 0) as child:
        child.wait_until_ready()
        child.go()
        return msgspec.convert(child.found(), About)


def _drain(one: Found, where: Place, url: str, count: int, processes: int) -> float:
    with ExitStack() as stack:
        left = stack.enter_context(where.looking(url, one.about.unfinished))
        children = [stack.enter_context(_child(one.name, "drain", url, count)) for _ in range(processes)]
        for child in children:
            child.wait_until_ready()
        started = monotonic()
        for child in children:
            child.go()
        while left():
            if any(child.has_ended() for child in children):
                raise RuntimeError(f"a worker of {one.name} ended before the queue was empty: see its error")
            if monotonic() - started > STALLED_AFTER:
                raise RuntimeError(f"{one.name} did not drain {count:,} jobs within {STALLED_AFTER:g} s")
            sleep(LOOK_EVERY)
        seconds = monotonic() - started
        handled = sum(child.stop() for child in children)
        assert handled >= count, f"{one.name}: {handled} handled of {count}"
        return seconds


def _print(console: Console, found: list[Found], where: Place, *, quick: bool) -> None:
    table = Table("", *STEPS, box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for one in found:
        table.add_row(f"{one.name} {one.about.version}", *_rates(one))
    console.print(table)
    for one in found:
        console.print(f"{one.name}: {one.about.settings}", style="dim", highlight=False)
    console.print(
        f"Events per second, medians, peers in turn. No-op handlers; a drain counts from the start of the worker in a "
        f"process that has imported everything until the queue is seen empty; {where.settings}, {where.version()}; "
        f"Python {sys.version.split()[0]}; commit {this_commit()}, load {os.getloadavg()[0]:.1f}; {this_moment()}",
        style="dim",
        highlight=False,
    )
    if quick:
        console.print("--quick: a sanity run, too short for figures to quote", style="yellow")


def _options() -> argparse.Namespace:
    every = [name for names in NAMES.values() for name in names]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"peers to run: {', '.join(every)} (all)")
    parser.add_argument("--store", dest="stores", action="append", choices=list(NAMES), help="where (on each)")
    parser.add_argument("--quick", action="store_true", help="a sanity run of everything")
    parser.add_argument(
        "--dir", type=Path, default=Path(tempfile.gettempdir()), help="folder on the disk to measure (the temp folder)"
    )
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in every]
    if unknown:
        parser.error(f"no such peer {', '.join(unknown)}: choose from {', '.join(every)}")
    asked = [store for store in NAMES if not options.names or set(options.names) & set(NAMES[store])]
    options.stores = options.stores or asked
    return options


def _interpreter(name: str) -> str:
    """Return the interpreter of the environment that the peer is installed in."""
    return str(Path(sys.prefix) / "older" / "bin" / "python") if name in OLDER else sys.executable


def _can_run(name: str) -> bool:
    if name in OLDER:
        able, missing = Path(_interpreter(name)).exists(), _interpreter(name)
    else:
        try:
            peer(name)
        except ModuleNotFoundError as error:
            able, missing = False, error.name or ""
        else:
            able, missing = True, ""
    if not able:
        print(f"{name} is left out: there is no {missing} (oban needs Python 3.12)", file=sys.stderr)
    return able


if __name__ == "__main__":
    sys.exit(main())

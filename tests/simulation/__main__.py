"""The simulation from the command line.

::

    python -m tests.simulation --seeds 2000           many seeds, on all cores
    python -m tests.simulation --seed 17              one seed again, with its shrunk scenario if it fails
    python -m tests.simulation --scenario FILE        a scenario that was written down
    python -m tests.simulation --twice 200            equal traces, in other processes that hash strings otherwise
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
from tests.simulation.fleet_of_seeds import verdicts
from tests.simulation.judge import PLACES, Verdict, judge, scenario_of

from durabus.testing.simulation.scenario import Scenario, shrink

FLOORS = {
    "crash": 0.6,
    "freeze": 1.0,
    "cut off": 1.2,
    "store restart": 0.4,
    "unknown outcomes": 8.0,
    "takeovers": 1.2,
    "stale writes refused": 0.5,
    "dead letters": 1.0,
    "steps remembered": 2.0,
    "asleep": 0.8,
    "cancelled": 0.5,
    "cancelled with children": 0.01,
    "expired": 0.4,
    "requests answered": 0.1,
}
"""How often each fault must happen in a seed on average: less would prove little."""
FEW = 100
"""The floors hold only for runs with at least so many seeds."""
SHOWN = 5
COMMAND = ".venv/bin/python -m tests.simulation"
FOLDER = Path("build/simulation")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--store", choices=sorted(PLACES), help="on this store only")
    parser.add_argument("--scenario", type=Path, help="a file that holds a scenario")
    parser.add_argument("--twice", type=int, help="run so many seeds twice and compare their traces")
    parser.add_argument("--jobs", type=int, help="processes")
    options = parser.parse_args(arguments)
    if options.scenario is not None:
        return explain(msgspec.json.decode(options.scenario.read_bytes(), type=Scenario))
    if options.seed is not None:
        return explain(scenario_of(options.seed, options.store))
    seeds = range(options.first, options.first + (options.twice or options.seeds))
    if options.twice:
        return compare(seeds, options.store, options.jobs)
    return run(seeds, options.store, options.jobs)


def run(seeds: range, store: str | None, jobs: int | None) -> int:
    begun, counts, failed = time.monotonic(), Counter[str](), list[Verdict]()
    for verdict in verdicts(seeds, store=store, jobs=jobs):
        counts += verdict.counts
        if verdict.wrong:
            failed.append(verdict)
    say(f"{len(seeds)} seeds in {time.monotonic() - begun:.0f} s")
    low = len(seeds) >= FEW and [what for what, floor in FLOORS.items() if counts[what] < floor * len(seeds)]
    for what, count in sorted(counts.items()):
        floor = f"   at least {FLOORS[what] * len(seeds):,.0f}" if what in FLOORS and len(seeds) >= FEW else ""
        say(f"  {what:22}{count:>12,}{floor}")
    for verdict in failed[:SHOWN]:
        tell(verdict)
    if failed:
        tell_shrunk(failed[0])
    say(f"{len(failed)} seeds with violations")
    for what in low or ():
        say(f"too few of: {what}")
    return 1 if failed or low else 0


def compare(seeds: range, store: str | None, jobs: int | None) -> int:
    traces = []
    for hashing in ("1", "2"):  # the order of a set of strings is another one in each
        os.environ["PYTHONHASHSEED"] = hashing
        traces.append([verdict.trace for verdict in verdicts(seeds, store=store, jobs=jobs, start="spawn")])
    differ = [seed for seed, one, other in zip(seeds, *traces, strict=True) if one != other]
    say(f"{len(seeds)} seeds twice: {len(differ)} differ {differ[:SHOWN] or ''}")
    return 1 if differ else 0


def explain(scenario: Scenario) -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    history = FOLDER / f"seed-{scenario.seed}.jsonl"
    verdict = judge(scenario, str(history))
    say(f"seed {scenario.seed} on {scenario.store}: trace {verdict.trace}, history in {history}")
    if not verdict.wrong:
        say("no violations")
        return 0
    tell(verdict)
    tell_shrunk(verdict)
    return 1


def tell(verdict: Verdict) -> None:
    scenario = verdict.scenario
    say(f"seed {scenario.seed} fails, again: {COMMAND} --seed {scenario.seed} --store {scenario.store}")
    for violation in verdict.wrong[:SHOWN]:
        say(f"  {violation}")


def tell_shrunk(verdict: Verdict) -> None:
    kinds = {violation.check for violation in verdict.wrong}
    small = shrink(verdict.scenario, lambda one: bool(kinds & {violation.check for violation in judge(one).wrong}))
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"seed-{small.seed}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(small)))
    say(f"shrunk: {len(small.events)} events, {small.workers} workers, faults {[str(fault) for fault in small.faults]}")
    for one in small.disturbances:
        say(f"  at {one.at:.3f} {one.what} of process {one.target} for {one.seconds:.3f} s")
    say(f"again: {COMMAND} --scenario {path}")


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  (the report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

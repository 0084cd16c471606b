"""Which seed catches which planted bug.

::

    python -m tests.simulation.mutants                 all of them: the table of docs/proof/reliability.md
    python -m tests.simulation.mutants 'retry at once'  one of them
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.simulation.judge import judge, scenario_of
from tests.simulation.planted_bugs import PLANTED, PlantedBug
from tests.simulation.planted_handler_bugs import HANDLER_BUGS

ALL = (*PLANTED, *HANDLER_BUGS)
SEEDS = 500
TOGETHER = 32
"""The most seeds that run before their results are looked at."""
CORES = os.cpu_count() or 1


def caught(name: str, seed: int) -> str | None:
    """Return the checks that caught the bug, or None."""
    bug = next(bug for bug in ALL if bug.what == name)
    with bug.plant():
        wrong = judge(scenario_of(seed, bug.store)).wrong
    return ", ".join(dict.fromkeys(violation.check for violation in wrong)) or None


def first_seed(bug: PlantedBug, pool: ProcessPoolExecutor) -> tuple[int, str] | None:
    """Return the first seed that catches the bug, and the checks that did."""
    start, together = 1, CORES
    while start <= SEEDS:
        seeds = range(start, min(start + together, SEEDS + 1))
        for seed, check in zip(seeds, pool.map(partial(caught, bug.what), seeds), strict=True):
            if check is not None:
                return seed, check
        start, together = seeds.stop, min(2 * together, TOGETHER)
    return None


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in {bug.what for bug in ALL}]
    if unknown:
        sys.stderr.write(f"no such planted bug: {unknown[0]}; there are {[bug.what for bug in ALL]}\n")
        return 2
    escaped = 0
    say("| planted bug | store | first seed | caught by |\n| --- | --- | --- | --- |")
    with ProcessPoolExecutor(CORES) as pool:
        for bug in ALL:
            if names and bug.what not in names:
                continue
            found = first_seed(bug, pool)
            escaped += found is None
            seed, check = ("not caught", "-") if found is None else (str(found[0]), found[1])
            say(f"| {bug.what} | {bug.store} | {seed} | {check} |")
    return 1 if escaped else 0


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  (the table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

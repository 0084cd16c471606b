"""Many seeds on all cores."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from tests.simulation.judge import Verdict, judge, scenario_of

CHUNK = 10


def verdicts(
    seeds: Iterable[int], *, store: str | None, jobs: int | None = None, start: str = "fork"
) -> Iterator[Verdict]:
    """Yield a verdict for each seed, in order. Spawned processes share nothing with this one, unlike forked ones."""
    with ProcessPoolExecutor(jobs or os.cpu_count() or 1, get_context(start)) as pool:
        yield from pool.map(partial(_verdict, store), seeds, chunksize=CHUNK)


def _verdict(store: str | None, seed: int) -> Verdict:
    return judge(scenario_of(seed, store))

"""Runs a scenario and says what is wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import msgspec
from tests.simulation.counts import dead_letters, late_settlements, refused, takeovers, verbs
from tests.simulation.replicated_log_place import ReplicatedLogPlace
from tests.simulation.sqlite_place import SQLitePlace

from durabus.model.claim import PROCESS_ENDED
from durabus.testing.history.checker import check
from durabus.testing.history.history import History, Invoke, Unknown, Violation, encode
from durabus.testing.simulation.loop import SimulationError
from durabus.testing.simulation.places import MakePlace, MemoryPlace
from durabus.testing.simulation.run import simulate
from durabus.testing.simulation.scenario import Scenario, make_scenario
from durabus.worker import serial
from durabus.worker.cancelling import EXPIRED

PLACES: dict[str, MakePlace] = {"replicated_log": ReplicatedLogPlace, "memory": MemoryPlace, "sqlite": SQLitePlace}


class Verdict(msgspec.Struct, kw_only=True):
    """The verdict on one run, small enough to be sent between processes."""

    scenario: Scenario
    wrong: list[Violation]
    counts: Counter[str]
    trace: str


def store_of(seed: int) -> str:
    """Return the store that a seed runs on by default."""
    if seed % 10 == 5:
        return "sqlite"
    return "replicated_log" if seed % 10 == 0 else "memory"


def scenario_of(seed: int, store: str | None = None) -> Scenario:
    return make_scenario(seed, store or store_of(seed))


@contextmanager
def batches_of(scenario: Scenario) -> Iterator[None]:
    """Let serial workers claim many events at once on two of three seeds, although handlers are long here."""
    if scenario.seed % 3 == 0:
        yield
        return
    long = 10 * scenario.lease
    with patch.object(serial, "QUICK", long), patch.object(serial, "OVERDUE", long):
        yield


def judge(scenario: Scenario, history: str | None = None) -> Verdict:
    """Run a scenario, check it, and count what happened in it. ``history`` names a file for its lines."""
    try:
        with batches_of(scenario):
            outcome = simulate(scenario, PLACES[scenario.store])
    except SimulationError as error:
        return Verdict(scenario=scenario, wrong=[Violation("stuck", str(error))], counts=Counter(seeds=1), trace="")
    if history is not None:
        with open(history, "wb") as file:  # noqa: PTH123  (a path from the command line)
            file.write(encode(outcome.lines))
    wrong = [*check(outcome.lines), *(Violation("alarm", alarm) for alarm in outcome.alarms)]
    known = History(outcome.lines)
    counts = Counter(outcome.fired)
    counts["seeds"] = 1
    counts["steps"] = outcome.steps
    counts["virtual seconds"] = int(outcome.seconds)
    counts["events"] = len(known.finals)
    counts["calls"] = sum(isinstance(line, Invoke) for line in outcome.lines)
    counts["unknown outcomes"] = sum(isinstance(line, Unknown) for line in outcome.lines)
    counts["takeovers"] = takeovers(known)
    counts["late settlements"] = late_settlements(known)
    counts["stale writes refused"] = refused(known)
    counts["dead letters"] = dead_letters(known)
    counts += verbs(known)
    counts["expired"] = sum((entry.reason or "").startswith(EXPIRED) for entry in known.log)
    counts["cancelled with children"] = sum(one.verb == "cancel" for one in known.returned)
    counts["requests answered"] = sum(one.verb == "request" and one.error is None for one in known.returned)
    counts["requests that raised"] = sum(one.error is not None for one in known.returned)
    counts["taken from dead processes"] = sum((entry.error or "").startswith(PROCESS_ENDED) for entry in known.log)
    return Verdict(scenario=scenario, wrong=wrong, counts=counts, trace=outcome.trace)

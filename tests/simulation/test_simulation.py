"""A short run of the simulation; ``make sim`` is the long one."""

from collections import Counter

import pytest
from tests.simulation.judge import judge, scenario_of
from tests.simulation.mutants import caught

from durabus.testing.simulation.scenario import Scenario, shrink

SEEDS = range(1, 22)


def test_no_seed_breaks_a_promise() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        verdict = judge(scenario_of(seed))
        assert not verdict.wrong, f"again: python -m tests.simulation --seed {seed}: {verdict.wrong[0]}"
        counts += verdict.counts
    for what in ("steps remembered", "asleep", "cancelled", "waits met", "waits given up", "verdicts of batches"):
        assert counts[what] >= 5, f"{what}: {counts[what]}"
    for what in ("crash", "freeze", "cut off", "store restart", "takeovers", "stale writes refused", "dead letters"):
        assert counts[what] >= 5, f"{what}: {counts[what]}"
    assert counts["unknown outcomes"] >= 100


@pytest.mark.parametrize("store", ["memory", "replicated_log"])
def test_a_seed_always_gives_the_same_trace(store: str) -> None:
    for seed in (3, 4, 8, 18):  # in 8 a handler awaits a child, which carries the address of its node; 18 has outages
        first, second = judge(scenario_of(seed, store)), judge(scenario_of(seed, store))
        assert first.trace == second.trace


def test_a_trace_does_not_depend_on_the_addresses_of_objects() -> None:
    """In this seed several events wait at once for handlers of other workers."""
    seed, traces = 18, set()
    for number in range(3):
        junk = [object() for _ in range(1000 * number)]
        del junk[::2]  # the next objects fill these gaps
        traces.add(judge(scenario_of(seed, "memory")).trace)
    assert len(traces) == 1


def test_seeds_differ() -> None:
    assert len({judge(scenario_of(seed, "memory")).trace for seed in range(1, 4)}) == 3


@pytest.mark.parametrize(
    "name",
    [
        "rescue without state guard",
        "lease by worker clock",
        "attempt counted at failure",
        "`id > last` cursor",
        "settle again without request key",
        "ordering key not looked at",
        "retry at once",
        "memo lost with a failure",
        "end without results",
        "cancel that a late result overrides",
        "presence by host:pid",
        "wait met twice",
        "wait without a look back",
        "batch verdict for another event",
    ],
)
def test_a_planted_bug_is_caught_within_a_few_seeds(name: str) -> None:
    assert any(caught(name, seed) is not None for seed in range(1, 41))


def test_a_failing_scenario_is_cut_down_to_what_it_takes() -> None:
    def fails(scenario: Scenario) -> bool:
        """Return whether the scenario has event 2 and a crash, as if these were the cause."""
        return 2 in scenario.events and any(one.what == "crash" for one in scenario.disturbances)

    whole = next(
        scenario for scenario in map(scenario_of, range(1, 100)) if fails(scenario) and len(scenario.events) > 9
    )
    small = shrink(whole, fails)
    assert small.events == (2,)
    assert [one.what for one in small.disturbances] == ["crash"]
    assert (small.faults, small.workers, small.publishers, small.children) == ((), 1, 1, False)

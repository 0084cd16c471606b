"""Reduces a failing scenario to the smallest one that still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from durabus.model.statuses import EventMode
from durabus.testing.simulation.scenario import Scenario

MAX_TRIES = 150


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """Return a smaller scenario that still fails. No single piece of it can be left out, unless the tries run out."""
    tries = MAX_TRIES
    smaller = True
    while smaller and tries > 0:
        smaller = False
        for candidate in _smaller(scenario):
            tries -= 1
            if fails(candidate):
                scenario, smaller = candidate, True
                break
            if tries == 0:
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Yield scenarios with one piece less, the large pieces first."""
    for field in ("disturbances", "events", "faults"):
        whole = getattr(scenario, field)
        size = len(whole)
        while size > 1:
            size //= 2
            for start in range(0, len(whole), size):
                left = whole[:start] + whole[start + size :]
                if left or field != "events":
                    yield replace(scenario, **{field: left})
        if len(whole) == 1 and field != "events":
            yield replace(scenario, **{field: ()})
    plain = {
        "awaited": False,
        "children": False,
        "split": False,
        "keys": 0,
        "lockers": 0,
        "requeues": 0,
        "skewed": False,
        "handlers": 1,
        "mode": EventMode.PARALLEL,
        "concurrency": 1,
        "publishers": 1,
    }
    for field, value in plain.items():
        if getattr(scenario, field) != value:
            yield replace(scenario, **{field: value})
    if scenario.workers > 1:
        yield replace(scenario, workers=scenario.workers - 1)

"""Every reachable state keeps every rule, and no planted bug goes unnoticed. ``explorer`` describes what is walked."""

from __future__ import annotations

import logging

import pytest
from tests.unit.lifecycle.bus_model import BusModel, EventGraph, MergedGraph, Pair
from tests.unit.lifecycle.event_model import EventModel
from tests.unit.lifecycle.explorer import (
    LEAVES_LOCK_AS_FOUND,
    RENEWS_WITHOUT_LOCK,
    Model,
    State,
    Tally,
    Violation,
    Walk,
)
from tests.unit.lifecycle.lock_model import LockModel
from tests.unit.lifecycle.part import FIRST, SECOND
from tests.unit.lifecycle.planted_bugs import EVENT_BUGS, HANDLER_BUGS, LOCK_BUGS, PlantedBug
from tests.unit.lifecycle.planted_wait_bugs import WAIT_BUGS
from tests.unit.lifecycle.wait_model import STORES_WAIT_UNSEEN

log = logging.getLogger(__name__)

EVENT_VERBS = {
    "Grant", "Start", "Renew", "Complete", "Fail", "Release", "Cancel", "Expire", "Requeue", "Reset", "Revoke",
}  # fmt: skip
HANDLER_VERBS = {"claim_handler", "renew_handler", "release_handler", "complete_handler"}
LOCK_VERBS = {"claim_lock", "renew_lock", "release_lock"}


def walked(model: Model[State], name: str, at_least: int) -> Walk[State]:
    walk = Walk(model)
    log.info("%s: %d states, %d steps, depth %d", name, len(walk.states), walk.steps, walk.depth)
    assert walk.complete
    assert len(walk.states) >= at_least
    return walk


@pytest.fixture(scope="module")
def plain_event() -> EventGraph:
    """One event whose handlers leave no rows."""
    graph = EventGraph(EventModel())
    walked(graph, "one event", 150)
    return graph


@pytest.fixture(scope="module")
def parallel() -> Tally:
    """One event, two handlers that may run at once."""
    model = EventModel((FIRST, SECOND), starts=False)
    walked(model, "two parallel handlers", 5_000)
    return model.tally


@pytest.fixture(scope="module")
def serial() -> EventGraph:
    """One event, two handlers that exclude each other."""
    graph = EventGraph(EventModel((FIRST, SECOND), serial=True, starts=False))
    walked(graph, "two serial handlers", 7_000)
    return graph


@pytest.fixture(scope="module")
def bus(serial: EventGraph) -> Tally:
    """Two events with two handlers each behind one lock."""
    model = BusModel(MergedGraph(serial))
    walked(model, "two serial events", 300)
    return model.tally


def test_every_state_of_a_lock_keeps_the_rules() -> None:
    model = LockModel()
    walked(model, "a lock", 4)
    assert set(model.tally.applied) == set(model.tally.refused) == LOCK_VERBS
    assert set(+model.tally.seen) == {"takeover of a lock", "stale write on a lock"}


def test_every_state_of_an_event_keeps_the_rules(plain_event: EventGraph) -> None:
    tally = plain_event.model.tally
    assert set(tally.applied) == set(tally.refused) == EVENT_VERBS
    assert set(+tally.seen) == {
        "dead letter",
        "late settlement",
        "repeat answered",
        "requeue",
        "stale write",
        "takeover",
        "token granted again",
    }


@pytest.mark.parametrize("own_limit", [True, False], ids=["limit of the event", "limit of the workers"])
def test_every_state_of_an_event_with_one_handler_keeps_the_rules(own_limit: bool) -> None:
    model = EventModel((FIRST,), own_limit=own_limit)
    walked(model, "one handler", 1_000)
    assert set(model.tally.applied) == set(model.tally.refused) == EVENT_VERBS | HANDLER_VERBS
    assert model.tally.seen["handler stopped by others"]


def test_every_state_of_an_event_that_waits_for_another_keeps_the_rules() -> None:
    model = EventModel(waits=True)
    walked(model, "one wait", 800)
    assert set(model.tally.applied) == set(model.tally.refused) == EVENT_VERBS | {"meet"}
    assert set(+model.tally.seen) >= {
        "wait met while its handler ran",
        "wait of a claimed event met",
        "wait of an abandoned event met",
    }


@pytest.mark.long
def test_every_state_of_an_event_with_parallel_handlers_keeps_the_rules(parallel: Tally) -> None:
    assert set(parallel.applied) | {"Start"} == set(parallel.refused) == EVENT_VERBS | HANDLER_VERBS
    assert parallel.seen["takeover of a handler"]
    assert parallel.seen["stale write on a handler"]
    assert parallel.seen["repeat answered to a handler"]


@pytest.mark.long
def test_every_state_of_an_event_with_serial_handlers_keeps_the_rules(serial: EventGraph) -> None:
    assert serial.model.tally.seen["serial handler kept waiting"]
    assert serial.model.tally.seen["takeover of a handler"]


@pytest.mark.long
def test_every_state_of_two_serial_events_with_two_handlers_keeps_the_rules(bus: Tally) -> None:
    assert set(bus.refused) == {"claim_lock", "renew_lock"}
    assert set(bus.applied) == LOCK_VERBS | {"time"}


def test_merging_states_that_no_lock_distinguishes_loses_no_pair(plain_event: EventGraph) -> None:
    merged = MergedGraph(plain_event)
    one_by_one = walked(BusModel(plain_event), "pairs one by one", 30_000)
    together = walked(BusModel(merged), "pairs merged", 300)

    def image(pair: Pair) -> Pair:
        first, second, lock = pair
        return (merged.class_of[first], merged.class_of[second], lock)

    assert {image(pair) for pair in one_by_one.states} == together.states


@pytest.mark.parametrize("bug", EVENT_BUGS.values(), ids=EVENT_BUGS.keys())
def test_a_bug_planted_in_the_lifecycle_is_found(bug: PlantedBug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    with pytest.raises(Violation, match=bug.rule):
        Walk(EventModel())


@pytest.mark.parametrize("bug", HANDLER_BUGS.values(), ids=HANDLER_BUGS.keys())
def test_a_bug_planted_in_the_handlers_is_found(bug: PlantedBug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    with pytest.raises(Violation, match=bug.rule):
        Walk(EventModel((FIRST,)))


@pytest.mark.parametrize("bug", WAIT_BUGS.values(), ids=WAIT_BUGS.keys())
def test_a_bug_planted_in_the_waits_is_found(bug: PlantedBug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    with pytest.raises(Violation, match=bug.rule):
        Walk(EventModel(waits=True))


def test_a_store_that_stores_a_wait_without_a_look_at_stored_events_is_found() -> None:
    with pytest.raises(Violation, match="the wait is not met"):
        Walk(EventModel(waits=True, careless=STORES_WAIT_UNSEEN))


@pytest.mark.parametrize("bug", LOCK_BUGS.values(), ids=LOCK_BUGS.keys())
def test_a_bug_planted_in_the_locks_is_found(bug: PlantedBug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    with pytest.raises(Violation, match=bug.rule):
        Walk(LockModel())


@pytest.mark.parametrize(
    ("careless", "rule"),
    [
        (RENEWS_WITHOUT_LOCK, "two serial events have a valid claim each"),
        (LEAVES_LOCK_AS_FOUND, "a valid claim goes without its lock"),
    ],
)
def test_a_store_that_composes_event_claims_and_locks_carelessly_is_found(
    plain_event: EventGraph, careless: str, rule: str
) -> None:
    with pytest.raises(Violation, match=rule):
        Walk(BusModel(plain_event, careless=careless))


@pytest.mark.parametrize(
    ("careless", "rule"),
    [
        (RENEWS_WITHOUT_LOCK, "serial handlers have a valid claim each"),
        (LEAVES_LOCK_AS_FOUND, "the valid claim on .* goes without its lock"),
    ],
)
def test_a_store_that_composes_handler_claims_and_locks_carelessly_is_found(careless: str, rule: str) -> None:
    with pytest.raises(Violation, match=rule):
        Walk(EventModel((FIRST, SECOND), serial=True, careless=careless))


def test_a_violation_shows_a_shortest_path_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    EVENT_BUGS["expire without expiry check"].plant(monkeypatch)
    with pytest.raises(Violation) as caught:
        Walk(EventModel())
    assert caught.value.trace == ["claim by new", "expire"]

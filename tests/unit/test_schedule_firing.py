"""The rule of schedules: which ticks a due state brings, and the state after it."""

from typing import Any

import msgspec
from msgspec.structs import replace

from durabus.schedules.firing import ON_TIME, TICKS_AT_ONCE, Firing, Replaced, fire
from durabus.schedules.schedule import Schedule, ScheduleAction, tick_id

SECOND = 1_000
BEGUN = 1_700_000_000_000


def schedule(**fields: Any) -> Schedule:
    """A schedule of ten seconds whose first slot is BEGUN."""
    given = {"name": "s", "type": "a.b", "every": 10.0, "number": 3, "action": ScheduleAction.FIRE, **fields}
    return msgspec.convert({"changed_ms": BEGUN, "anchor_ms": BEGUN, "slot_ms": BEGUN, **given}, Schedule)


def fired(state: Schedule, after: float, *, last_is_live: bool = False, replaced: Replaced | None = None) -> Firing:
    """What a worker makes of the state so many seconds after its slot."""
    return fire("b", state, BEGUN + round(after * SECOND), last_is_live=last_is_live, replaced=replaced)


def slots(firing: Firing) -> list[int]:
    """The seconds of the published slots after the first one."""
    known = {tick_id("b", "s", BEGUN + n * 10 * SECOND): n * 10 for n in range(5_000)}
    return [known[tick.event_id] for tick in firing.ticks]


def next_slot(firing: Firing) -> int:
    assert firing.after.slot_ms is not None
    return (firing.after.slot_ms - BEGUN) // SECOND


def test_a_due_slot_is_published_once_and_the_next_one_follows() -> None:
    firing = fired(schedule(), 0.05)
    assert (slots(firing), next_slot(firing), firing.after.number) == ([0], 10, 4)
    assert (firing.after.last_slot_ms, firing.after.last_event_id) == (BEGUN, firing.ticks[0].event_id)


def test_a_state_that_comes_too_early_changes_nothing() -> None:
    """The clock of the store was put back after the state was stored."""
    state = schedule()
    assert not fired(state, -3_600).changes(state)


def test_of_missed_slots_the_newest_is_published() -> None:
    firing = fired(schedule(), 95)
    assert (slots(firing), next_slot(firing)) == ([90], 100)


def test_all_missed_slots_are_published_in_steps() -> None:
    state = schedule(catch_up="all", overlap="parallel")
    firing = fired(state, 10 * TICKS_AT_ONCE + 5)
    assert slots(firing) == [n * 10 for n in range(TICKS_AT_ONCE)]
    assert next_slot(firing) == 10 * TICKS_AT_ONCE
    assert firing.after.due_in(BEGUN + 10 * TICKS_AT_ONCE * SECOND + 5) == 0
    rest = fired(firing.after, 10 * TICKS_AT_ONCE + 5)
    assert (slots(rest), next_slot(rest)) == ([10 * TICKS_AT_ONCE], 10 * TICKS_AT_ONCE + 10)


def test_no_missed_slot_is_published_if_the_schedule_says_so() -> None:
    long = schedule(catch_up="none", every=3_600.0)
    in_time, late = fired(long, ON_TIME / SECOND), fired(long, ON_TIME / SECOND + 1)
    assert len(in_time.ticks) == 1
    assert (late.ticks, next_slot(late)) == ((), 3_600)
    assert late.changes(long)


def test_a_tick_is_skipped_while_the_last_one_has_not_ended() -> None:
    firing = fired(schedule(last_event_id="x"), 0, last_is_live=True)
    assert (firing.ticks, next_slot(firing), firing.after.skipped, firing.after.last_event_id) == ((), 10, 1, "x")
    for overlap in ("queue", "parallel"):
        assert slots(fired(schedule(overlap=overlap), 0, last_is_live=True)) == [0]


def test_ticks_that_queue_have_one_ordering_key() -> None:
    (tick,) = fired(schedule(overlap="queue"), 0).ticks
    assert '"ordering_key":"s:schedule"' in (tick.metadata_json or "")


def test_a_paused_schedule_publishes_nothing() -> None:
    state = schedule(paused=True)
    assert not fired(state, 100).changes(state)
    assert state.due_in(BEGUN) > 86_400


def test_what_was_asked_for_is_published_also_while_paused_and_while_the_last_tick_runs() -> None:
    asked = "01890000-0000-7000-8000-000000000001"
    state = schedule(action=ScheduleAction.RUN, runs=(asked,), paused=True)
    firing = fired(state, -5, last_is_live=True)
    assert [tick.event_id for tick in firing.ticks] == [asked]
    assert (firing.after.runs, firing.after.slot_ms, firing.after.paused) == ((), state.slot_ms, True)
    assert state.due_in(BEGUN - 5_000) == 0


def test_what_the_replaced_state_published_is_not_published_again() -> None:
    """A worker handled the state before the change at the same moment."""
    asked = "01890000-0000-7000-8000-000000000001"
    state = schedule(action=ScheduleAction.RUN, runs=(asked,))
    firing = fired(state, 1, replaced=Replaced(BEGUN + 1, (asked,)))
    assert (firing.ticks, next_slot(firing), firing.after.runs) == ((), 10, ())
    assert firing.changes(state)


def test_a_clock_that_jumps_forward_and_back_publishes_no_slot_twice() -> None:
    ahead = fired(schedule(), 3_600)
    assert (slots(ahead), next_slot(ahead)) == ([3_600], 3_610)
    assert not fired(ahead.after, 100).changes(ahead.after)
    assert slots(fired(ahead.after, 3_610)) == [3_610]


def test_the_other_fields_of_a_schedule_stay() -> None:
    state = schedule(tags=("t",), priority=5, payload={"a": [1]})
    after = fired(state, 0).after
    changed = ("number", "slot_ms", "last_slot_ms", "last_event_id")
    assert replace(after, **{name: getattr(state, name) for name in changed}) == state

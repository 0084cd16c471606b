"""Schedules: their times, their ticks, their changes."""

from tests.mutants.mutant import Mutant

TIMES = "tests/unit/test_schedule_times.py::test_"
FIRING = "tests/unit/test_schedule_firing.py::test_"
RUNTIME = "tests/runtime/test_schedules.py::test_"

SCHEDULES = (
    Mutant(
        "schedules: second pass of an hour",
        "schedules/timing.py",
        "            if slot > instant:",
        "            if slot:",
        f"{TIMES}a_fixed_time_is_not_due_again_for_a_schedule_that_begins_in_the_second_pass",
        "A nightly job runs twice in the night in which clocks are put back.",
        fast=True,
    ),
    Mutant(
        "schedules: identity of a tick",
        "schedules/schedule.py",
        '_bits("tick", bus, name, str(slot)) &',
        '_bits("tick", bus, str(slot)) &',
        f"{TIMES}ids_are_made_of_bus_name_and_slot_or_number",
        "Of two schedules of one time, only one is published.",
        fast=True,
    ),
    Mutant(
        "schedules: too early",
        "schedules/firing.py",
        "    if slot is None or slot > now:",
        "    if slot is None:",
        f"{FIRING}a_state_that_comes_too_early_changes_nothing",
        "A clock that is put back publishes slots of the future.",
    ),
    Mutant(
        "schedules: skip",
        "schedules/firing.py",
        "skipped = len(slots) if last_is_live and schedule",
        "skipped = len(slots) if not last_is_live and schedule",
        f"{FIRING}a_tick_is_skipped_while_the_last_one_has_not_ended",
        "A job runs beside itself although its schedule says skip.",
    ),
    Mutant(
        "schedules: what a replaced state published",
        "schedules/firing.py",
        "    if replaced is not None and slot <= replaced.until:",
        "    if replaced is not None and slot > replaced.until:",
        f"{FIRING}what_the_replaced_state_published_is_not_published_again",
        "A change at the moment of a slot publishes the slot twice once the first tick was trimmed.",
    ),
    Mutant(
        "schedules: a newer state",
        "schedules/scheduler.py",
        "        if state_id(self._bus, state.name, state.number + 1) in known:",
        "        if state.number < 0:",
        f"{RUNTIME}a_change_whose_caller_died_half_way_holds[memory]",
        "A schedule goes on although it was paused, because the caller died.",
    ),
    Mutant(
        "schedules: lost race",
        "schedules/schedules.py",
        "        return stored.payload_json == new.payload_json",
        "        return bool(stored.payload_json)",
        f"{RUNTIME}of_changes_at_the_same_moment_each_is_made_upon_the_other[sqlite]",
        "A change is lost without an error.",
    ),
    Mutant(
        "schedules: end of the replaced state",
        "schedules/schedules.py",
        "                await self._end(name, number - 1)\n",
        "",
        f"{RUNTIME}a_schedule_is_put_listed_replaced_and_deleted[memory]",
        "A deleted schedule publishes once more.",
    ),
    Mutant(
        "schedules: end of what a half change left",
        "schedules/schedules.py",
        "                await self._end(name, number - 2)  #",
        "                pass  #",
        f"{RUNTIME}a_change_ends_what_an_earlier_half_change_left[memory]",
        "A state that was replaced long ago publishes again.",
    ),
    Mutant(
        "schedules: names of tenants",
        "http/auth/access.py",
        '    return _scoped_key(principal, name, "name") if principal.tags else name',
        "    return name",
        "tests/api/test_schedules.py::test_tenants_neither_see_nor_take_the_schedules_of_others[memory]",
        "A tenant learns which schedules others have.",
    ),
)

"""The rule of schedules, as a pure function: which ticks a worker publishes for a due state, and the state after it."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from durabus.model.event import NewEvent
from durabus.schedules.schedule import CatchUp, Overlap, Schedule, ScheduleAction, tick_event, tick_id
from durabus.schedules.timing import newest_slot

ON_TIME = 60_000
"""Milliseconds by which a tick may be late and still count as on time, for ``catch_up="none"``. A node that dies
between slot and publish must not lose the tick, and its lease ends sooner than this."""
TICKS_AT_ONCE = 100
"""Maximum number of ticks of one step. The state after it is due at once if slots are left."""


class Replaced(msgspec.Struct, frozen=True):
    """The state before a change, if a worker handled it at the same moment: what it published is not due again."""

    until: int
    """The worker has handled the slots up to this instant."""
    runs: tuple[str, ...]


class Firing(msgspec.Struct, frozen=True):
    """What handling a state brings."""

    ticks: tuple[NewEvent, ...]
    after: Schedule

    def changes(self, schedule: Schedule) -> bool:
        """Whether there was anything to do: a state that came too early stays as it is."""
        return bool(self.ticks or schedule.runs) or self.after.slot_ms != schedule.slot_ms


def fire(bus: str, schedule: Schedule, now: int, *, last_is_live: bool, replaced: Replaced | None = None) -> Firing:
    """Return the ticks of the slots that are due at ``now``, and the next state.

    ``last_is_live``: the newest tick has not ended.
    """
    slots, following = due_slots(schedule, now, replaced)
    skipped = len(slots) if last_is_live and schedule.overlap is Overlap.SKIP else 0
    if skipped:
        slots = []
    asked = [run for run in schedule.runs if replaced is None or run not in replaced.runs]
    ticks = [tick_event(bus, schedule, run, None) for run in asked]
    ticks += [tick_event(bus, schedule, tick_id(bus, schedule.name, slot), slot) for slot in slots]
    after = replace(
        schedule,
        number=schedule.number + 1,
        action=ScheduleAction.FIRE,
        actor=None,
        reason=None,
        changed_ms=now,
        slot_ms=following,
        last_slot_ms=slots[-1] if slots else schedule.last_slot_ms,
        last_event_id=ticks[-1].event_id if ticks else schedule.last_event_id,
        skipped=schedule.skipped + skipped,
        runs=(),
    )
    return Firing(tuple(ticks), after)


def due_slots(schedule: Schedule, now: int, replaced: Replaced | None = None) -> tuple[list[int], int | None]:
    """Return the slots to publish at ``now``, oldest first, and the slot after them."""
    slot, timing = schedule.slot_ms, schedule.timing
    if schedule.paused or slot is None:
        return [], slot
    if replaced is not None and slot <= replaced.until:
        slot = timing.after(replaced.until)
    if slot is None or slot > now:
        return [], slot
    if schedule.catch_up is CatchUp.ALL:
        slots: list[int] = []
        while slot is not None and slot <= now and len(slots) < TICKS_AT_ONCE:
            slots.append(slot)
            slot = timing.after(slot)
        return slots, slot
    newest = newest_slot(timing, slot, now)
    too_late = schedule.catch_up is CatchUp.NONE and now - newest > ON_TIME
    return [] if too_late else [newest], timing.after(newest)

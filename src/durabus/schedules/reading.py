"""The schedules of one bus, as the store has them now: the verbs that change nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

from durabus.errors import ScheduleNotFound
from durabus.model.event import Event
from durabus.model.limits import check_batch, check_name
from durabus.model.query import EventQuery
from durabus.model.statuses import EventStatus
from durabus.schedules.schedule import (
    Schedule,
    ScheduleAction,
    chain_id,
    check_schedule_name,
    state_bus,
    state_id,
    state_of,
)
from durabus.schedules.timing import SECOND, milliseconds
from durabus.store.contract import EventStore

LIVE = (EventStatus.PENDING, EventStatus.PROCESSING)
PAGE = 1_000
AHEAD = 100
"""Number of states that one call looks for beyond a known one."""


async def _nothing() -> None:
    """Begin with a store that is open."""


class KnownSchedules:
    """The schedules of one bus of one store. ``begin`` opens the store if needed."""

    def __init__(self, store: EventStore, bus: str, *, begin: Callable[[], Awaitable[object]] = _nothing) -> None:
        self._store = store
        self._bus = check_name(bus, "bus")
        self._begin = begin

    async def get(self, name: str) -> Schedule | None:
        """Return a schedule as it is now; None if there is none of this name."""
        await self._begin()
        return present_of(await self._newest(check_schedule_name(name)))

    async def list(self) -> Sequence[Schedule]:
        """Return all schedules of the bus, in order of their names."""
        await self._begin()
        return [one for _, one in sorted((await self._states()).items())]

    async def next_runs(self, name: str, count: int = 5) -> Sequence[datetime]:
        """Return the next slots of a schedule. None of them has a tick while it is paused.

        Raises ``ScheduleNotFound``.
        """
        check_batch(count, "count")
        await self._begin()
        schedule = present_of(await self._newest(check_schedule_name(name)))
        if schedule is None:
            raise ScheduleNotFound(name, self._bus)
        slot = schedule.timing.after(await self._now()) if schedule.paused else schedule.slot_ms
        found: list[datetime] = []
        while slot is not None and len(found) < count:
            found.append(datetime.fromtimestamp(slot / SECOND, UTC))
            slot = schedule.timing.after(slot)
        return found

    async def history(self, name: str, limit: int = 100) -> Sequence[Schedule]:
        """Return the newest states of a schedule, newest first, deleted or not. The store trims old ones."""
        await self._begin()
        found = await self._store.find(self._of(check_schedule_name(name), check_batch(limit)))
        return sorted(map(state_of, found.events), key=lambda state: -state.number)

    async def _newest(self, name: str) -> Event | None:
        """Return the newest state. A schedule that is not deleted has a live one, which every store finds soon."""
        for statuses in (LIVE, ()):
            found = (await self._store.find(self._of(name, 1, statuses))).events
            if found:
                return found[0] if self._store.features.one_order else await self._furthest(name, found[0])
        return None

    async def _furthest(self, name: str, found: Event) -> Event:
        """Return the newest state, on a store whose ids do not say which one that is."""
        known: list[Event | None] = [found]
        while newer := [event for event in known if event is not None]:
            found = max(newer, key=_number_of)
            numbers = range(_number_of(found) + 1, _number_of(found) + 1 + AHEAD)
            known = await self._store.get_events([state_id(self._bus, name, number) for number in numbers])
        return found

    def _of(self, name: str, limit: int, statuses: tuple[EventStatus, ...] = ()) -> EventQuery:
        parent = chain_id(self._bus, name)
        return EventQuery(bus=state_bus(self._bus), parent_ids=(parent,), statuses=statuses, limit=limit)

    async def _states(self) -> dict[str, Schedule]:
        """Return the present schedules by name. A schedule may move to a new state while this reads the pages."""
        found: dict[str, Schedule] = {}
        above, top = 0, -1
        while above != top:
            above, before = top, None
            while True:
                query = EventQuery(bus=state_bus(self._bus), statuses=LIVE, before_id=before, limit=PAGE)
                page = await self._store.find(query)
                for event in page.events:
                    state = state_of(event)
                    if state.name not in found or found[state.name].number < state.number:
                        found[state.name] = state
                top = max([top, *(event.id for event in page.events[:1])])
                before = page.next_before_id
                if before is None or before <= above + 1:
                    break
        return {name: state for name, state in found.items() if state.action is not ScheduleAction.DELETE}

    async def _now(self) -> int:
        return milliseconds(await self._store.now())


def _number_of(event: Event) -> int:
    return state_of(event).number


def present_of(newest: Event | None) -> Schedule | None:
    """Return the schedule whose newest state this is; None if it is deleted."""
    if newest is None or newest.status not in LIVE:
        return None
    state = state_of(newest)
    return None if state.action is ScheduleAction.DELETE else state

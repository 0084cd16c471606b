"""The schedules of one bus: put, list, pause, resume, run now, delete.

A change stores the next state of a schedule, and then ends the state before it. Only one caller can store the state of
a number, so of two changes at the same moment one is made again upon the other. Between the two steps both states are
live. A worker that handles the older one finds the newer one and publishes nothing; one that handles the newer one ends
the older one first. So before a state ends, every state before it has ended, whatever dies in between.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import asdict, replace

from durabus.errors import EventNotFound, ScheduleChanged, ScheduleNotFound
from durabus.model.event import Event, NewEvent, new_event_id
from durabus.model.limits import Duration
from durabus.schedules.reading import KnownSchedules, present_of
from durabus.schedules.schedule import (
    CatchUp,
    Overlap,
    Schedule,
    ScheduleAction,
    ScheduleDeclaration,
    check_actor,
    check_schedule_name,
    declare,
    state_event,
    state_id,
    state_of,
)
from durabus.store.contract import EventStore
from durabus.store.features import require

PUT = ScheduleAction.PUT
REPLACED = "the schedule has a newer state"
"""The reason of the cancellation of a state that a change has replaced."""
TRIES = 30
"""How often a change is made again because another one came first."""
PAUSE = 0.02
FEW = 10
"""Number of declarations up to which each is looked up by itself."""

Change = Callable[[Schedule | None, int, int], Schedule | None]
"""Makes the next state of the present one, the number of the next and the time; None if nothing is to change."""


class Schedules(KnownSchedules):
    """The schedules of one bus of one store, and the verbs that change them."""

    async def put(
        self,
        name: str,
        when: str | Duration,
        event_type: str,
        payload: object = None,
        *,
        tz: str = "UTC",
        catch_up: CatchUp | str = CatchUp.ONE,
        overlap: Overlap | str = Overlap.SKIP,
        tags: Iterable[str] = (),
        priority: int = 0,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Schedule:
        """Store a schedule, or replace the one of this name; the same declaration again changes nothing.

        ``when`` is a cron expression, evaluated in the time zone ``tz``, or an interval in seconds. A replaced schedule
        stays paused if it was, and keeps its next slot if its times are the same.
        """
        declared = declare(
            name, when, event_type, payload, tz=tz, catch_up=catch_up, overlap=overlap, tags=tags, priority=priority
        )
        return await self.put_declared(declared, actor=actor, reason=reason)

    async def put_declared(
        self, declared: ScheduleDeclaration, *, actor: str | None = None, reason: str | None = None
    ) -> Schedule:
        """Store a checked declaration, as ``put`` does."""
        check_actor(actor, reason)
        check_overlap(self._store, declared.overlap)

        def change(now_is: Schedule | None, number: int, now: int) -> Schedule | None:
            if now_is is not None and now_is.declares() == declared.declares():
                return None
            fields = {field: getattr(declared, field) for field in ScheduleDeclaration.__struct_fields__}
            kept = {} if now_is is None else asdict(now_is)
            made = Schedule(**{**kept, **fields, "number": number, "action": PUT, "changed_ms": now, "anchor_ms": now})
            made = replace(made, actor=actor, reason=reason, slot_ms=made.timing.after(now))
            if now_is is None or not now_is.has_times_of(declared):
                return made
            return replace(made, anchor_ms=now_is.anchor_ms, slot_ms=now_is.slot_ms)

        return await self._changed(declared.name, change)

    async def put_all(self, declared: Sequence[ScheduleDeclaration], *, actor: str | None = None) -> None:
        """Store those of the declarations that the store does not have like this."""
        await self._begin()
        known = await self._states() if len(declared) > FEW else {}
        for one in declared:
            stored = known.get(one.name)
            if stored is None or stored.declares() != one.declares():
                await self.put_declared(one, actor=actor)

    async def delete(self, name: str, *, actor: str | None = None, reason: str | None = None) -> bool:
        """Delete a schedule. False if there is none of this name. It publishes nothing after this has returned."""

        def change(now_is: Schedule | None, number: int, now: int) -> Schedule | None:
            if now_is is None:
                return None
            return _next(now_is, ScheduleAction.DELETE, number, now, actor=actor, reason=reason, slot_ms=None, runs=())

        check_actor(actor, reason)
        try:
            await self._changed(name, change)
        except ScheduleNotFound:
            return False
        return True

    async def pause(self, name: str, *, actor: str | None = None, reason: str | None = None) -> Schedule:
        """Stop a schedule until it is resumed. Raises ``ScheduleNotFound``. A repeat changes nothing."""

        def change(now_is: Schedule | None, number: int, now: int) -> Schedule | None:
            if now_is is None or now_is.paused:
                return None
            return _next(now_is, ScheduleAction.PAUSE, number, now, actor=actor, reason=reason, paused=True)

        check_actor(actor, reason)
        return await self._changed(name, change)

    async def resume(self, name: str, *, actor: str | None = None, reason: str | None = None) -> Schedule:
        """Go on with a paused schedule, from the next slot on: slots that passed meanwhile are not caught up.

        Raises ``ScheduleNotFound``. A repeat changes nothing.
        """

        def change(now_is: Schedule | None, number: int, now: int) -> Schedule | None:
            if now_is is None or not now_is.paused:
                return None
            slot = now_is.timing.after(now)
            return _next(
                now_is, ScheduleAction.RESUME, number, now, actor=actor, reason=reason, paused=False, slot_ms=slot
            )

        check_actor(actor, reason)
        return await self._changed(name, change)

    async def run_now(self, name: str, *, actor: str | None = None, reason: str | None = None) -> str:
        """Let a worker of the bus publish a tick at once, also while paused. Returns its ``event_id``.

        The slots stay as they are, and ``overlap="skip"`` does not hold this tick back. Raises ``ScheduleNotFound``.
        """

        def change(now_is: Schedule | None, number: int, now: int) -> Schedule | None:
            if now_is is None:
                return None
            runs = (*now_is.runs, new_event_id())
            return _next(now_is, ScheduleAction.RUN, number, now, actor=actor, reason=reason, runs=runs)

        check_actor(actor, reason)
        return (await self._changed(name, change)).runs[-1]

    async def _changed(self, name: str, change: Change) -> Schedule:
        """Make a change, again if another one comes first. Returns the state after it."""
        check_schedule_name(name)
        await self._begin()
        for _ in range(TRIES):
            newest = await self._newest(name)
            present, number = present_of(newest), 1 if newest is None else state_of(newest).number + 1
            now = await self._now()
            wanted = change(present, number, now)
            if wanted is None:
                if present is None:
                    raise ScheduleNotFound(name, self._bus)
                return present
            new = state_event(self._bus, wanted, now)
            if newest is not None and state_of(newest).action is not ScheduleAction.FIRE:
                await self._end(name, number - 2)  # the caller that made the last change may have died before it could
            (stored,) = await self._store.add_events([new])
            if self._has_won(stored, new):
                await self._end(name, number - 1)
                if wanted.action is ScheduleAction.DELETE:
                    await self._end(name, number)
                return wanted
            await asyncio.sleep(PAUSE * random.uniform(0, 1))
        raise ScheduleChanged(name, self._bus, TRIES)

    @staticmethod
    def _has_won(stored: Event, new: NewEvent) -> bool:
        """Whether the store keeps the new state: another caller may have stored its own under this number."""
        return stored.payload_json == new.payload_json

    async def _end(self, name: str, number: int) -> None:
        """End a state that was replaced or deleted, unless it has ended."""
        if number > 0:
            with suppress(EventNotFound):
                await self._store.cancel_event(state_id(self._bus, name, number), reason=REPLACED)


def check_overlap(store: EventStore, overlap: Overlap) -> None:
    """Raise ``UnsupportedByStore`` if the store cannot do this."""
    if overlap is Overlap.QUEUE:
        require(store.features, "ordering_keys", "a schedule with overlap='queue'")


def _next(
    state: Schedule,
    action: ScheduleAction,
    number: int,
    now: int,
    *,
    actor: str | None,
    reason: str | None,
    **changed: Any,
) -> Schedule:
    return replace(state, action=action, number=number, changed_ms=now, actor=actor, reason=reason, **changed)

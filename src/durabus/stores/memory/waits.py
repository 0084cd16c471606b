"""The index of waits: which events wait for an event of a bus, a type and some values."""

from __future__ import annotations

from bisect import bisect_right

from durabus.lifecycle.state import EventState
from durabus.lifecycle.waits import is_met_by, key_in, meet, new_waits, waits_of, with_met
from durabus.model.event import Event
from durabus.model.settlement import Settlement
from durabus.model.statuses import EventStatus
from durabus.model.wait import EventWait, names_of, prefix_of

Waiter = tuple[int, str]
"""The id of an event that waits, and the id of the result that holds its wait."""


class WaitIndex:
    """Waits by bus and type, names of fields, and values. No lookup reads the other waits."""

    def __init__(self, states: dict[int, EventState]) -> None:
        self._states = states
        self._waiters: dict[str, dict[str, dict[str, dict[Waiter, None]]]] = {}
        """The waits by prefix (bus and type), shape and key."""
        self._of_event: dict[int, dict[str, EventWait]] = {}
        self._stored: dict[str, list[int]] = {}
        """The ids of the stored events of a prefix, in order, as long as there are waits for it."""

    def __bool__(self) -> bool:
        """Whether any event waits."""
        return bool(self._of_event)

    def note(self, state: EventState) -> None:
        """Add the waits of an event that were not known, and drop those that it has no longer."""
        id_, old = state.event.id, self._of_event.get(state.event.id, {})
        new = {result.handler_id: wait for result, wait in waits_of(state.results)}
        if old == new:
            return
        for handler_id in old.keys() - new.keys():
            self._drop(old[handler_id], (id_, handler_id))
        for handler_id in new.keys() - old.keys():
            wait = new[handler_id]
            shapes = self._waiters.setdefault(_prefix(wait), {})
            shapes.setdefault(wait.shape, {}).setdefault(wait.key, {})[id_, handler_id] = None
        if new:
            self._of_event[id_] = new
        else:
            self._of_event.pop(id_, None)

    def forget(self, id_: int) -> None:
        """Drop the waits of a deleted event."""
        for handler_id, wait in self._of_event.pop(id_, {}).items():
            self._drop(wait, (id_, handler_id))

    def meet(self, event: Event) -> list[Event]:
        """Let a new event meet the waits for it. Returns the waiting events that are due now."""
        due: list[Event] = []
        for id_, handler_id in self._waiters_for(event):
            state = meet(self._states[id_], handler_id, event)
            if state is not None:
                self._states[id_] = state
                self.note(state)
                if state.event.status is EventStatus.PENDING:
                    due.append(state.event)
        return due

    def with_stored(self, settlement: Settlement) -> Settlement:
        """Return the settlement with those of its waits met for which an event is stored."""
        id_ = settlement.ref.id
        found = {
            result.handler_id: event
            for result, wait in new_waits(self._states.get(id_), settlement)
            if (event := self._first_stored(wait, id_)) is not None
        }
        return with_met(settlement, found)

    def _waiters_for(self, event: Event) -> list[Waiter]:
        prefix = prefix_of(event.bus, event.type)
        if prefix in self._stored:
            self._stored[prefix].append(event.id)
        found: list[Waiter] = []
        for shape, keys in self._waiters.get(prefix, {}).items():
            key = key_in(event, names_of(shape))
            found += keys.get(key, ()) if key is not None else ()
        return sorted(found)

    def _first_stored(self, wait: EventWait, waiter_id: int) -> Event | None:
        prefix = _prefix(wait)
        bus = prefix.partition("\n")[0]
        ids = self._stored.get(prefix)
        if ids is None:
            ids = sorted(i for i, s in self._states.items() if s.event.bus == bus and s.event.type == wait.type)
            if prefix in self._waiters:
                self._stored[prefix] = ids
        for id_ in ids[bisect_right(ids, waiter_id) :]:
            state = self._states.get(id_)
            if state is not None and is_met_by(wait, waiter_id, state.event):
                return state.event
        return None

    def _drop(self, wait: EventWait, waiter: Waiter) -> None:
        prefix = _prefix(wait)
        shapes = self._waiters[prefix]
        keys = shapes[wait.shape]
        del keys[wait.key][waiter]
        if not keys[wait.key]:
            del keys[wait.key]
        if not keys:
            del shapes[wait.shape]
        if not shapes:
            del self._waiters[prefix]
            self._stored.pop(prefix, None)


def _prefix(wait: EventWait) -> str:
    return wait.shape[: wait.shape.rindex("\n") + 1]

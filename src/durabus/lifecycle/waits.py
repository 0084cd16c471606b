"""The rules of waits: which event meets a wait, and what that does to the waiting event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import DecodeError
from msgspec.structs import replace

from durabus.errors import PayloadDecodeError
from durabus.lifecycle.state import EventState, HandlerState
from durabus.model.event import Event
from durabus.model.result import HandlerResult
from durabus.model.settlement import Release, Settlement
from durabus.model.statuses import LIVE, EventStatus, ResultStatus
from durabus.model.wait import EventWait, key_of, met, names_of, prefix_of, wait_of


def is_met_by(wait: EventWait, waiter_id: int, event: Event) -> bool:
    """Return whether the event meets the wait of event ``waiter_id``: only an event that was stored after that one.

    An event that was cancelled before the wait began does not meet it. One that is not due yet, or has ended, does.
    """
    return event.id > waiter_id and event.status is not EventStatus.CANCELLED and is_awaited(wait, event)


def is_awaited(wait: EventWait, event: Event) -> bool:
    """Return whether the event is of the wait's type, early enough, and has equal fields."""
    if event.type != wait.type:
        return False
    if wait.until is not None and event.created_ts >= wait.until:
        return False
    return not wait.where or key_in(event, names_of(wait.shape)) == wait.key


def key_in(event: Event, names: tuple[str, ...]) -> str | None:
    """Return the key of the event's payload. A damaged payload has none: it must not stop a publisher."""
    if not names:
        return ""
    try:
        return key_of(event.payload, names)
    except PayloadDecodeError:
        return None


def meet(state: EventState, handler_id: str, event: Event) -> EventState | None:
    """Return the waiting event's state after ``event`` met a wait, or None if it has no such wait.

    If it waits in the queue, it is due since its release. Nothing is logged.
    """
    waiter = state.event
    found = next((h for h in state.handlers if h.result.handler_id == handler_id), None)
    if waiter.status not in LIVE or found is None or found.result.status is not ResultStatus.WAITING:
        return None
    if not is_met_by(wait_of(found.result), waiter.id, event):
        return None
    handlers = tuple(
        HandlerState(met(found.result, event)) if handler is found else handler for handler in state.handlers
    )
    if waiter.status is EventStatus.PENDING:
        waiter = replace(waiter, due_ts=min(waiter.due_ts, waiter.updated_ts))
    return replace(state, event=waiter, handlers=handlers)


def waits_of(results: Iterable[HandlerResult]) -> Iterator[tuple[HandlerResult, EventWait]]:
    """Yield the results that wait, with their waits. A result without a condition waits for nothing."""
    for result in results:
        if result.status is ResultStatus.WAITING:
            try:
                wait = wait_of(result)
            except DecodeError:
                continue
            yield result, wait


def has_waits(settlements: Iterable[Settlement]) -> bool:
    """Return whether one of the settlements brings a wait."""
    return any(r.status is ResultStatus.WAITING for one in settlements if one.results for r in one.results)


def new_waits(state: EventState | None, settlement: Settlement) -> list[tuple[HandlerResult, EventWait]]:
    """Return the waits that the settlement brings and the store does not know: it must search for stored events."""
    if not settlement.results or state is None:
        return []
    known = {handler.result.handler_id for handler in state.handlers}
    return [one for one in waits_of(settlement.results) if one[0].handler_id not in known]


def with_met(settlement: Settlement, found: dict[str, Event]) -> Settlement:
    """Return the settlement with the waits that stored events meet, by handler id. A release is then due at once."""
    if not found:
        return settlement
    results = tuple(met(one, found[one.handler_id]) if one.handler_id in found else one for one in settlement.results)
    if isinstance(settlement, Release):
        return replace(settlement, results=results, delay=0.0)
    return replace(settlement, results=results)


class StoredMatches:
    """Finds the first stored event for each new wait of a batch of settlements. No event is compared with all waits."""

    def __init__(self, settlements: Sequence[Settlement], known: Iterable[tuple[int, str]]) -> None:
        self._settlements, known = settlements, frozenset(known)
        self._waits: dict[str, dict[str, list[tuple[int, str, EventWait]]]] = {}
        self.found: dict[tuple[int, str], Event] = {}
        self.after: dict[tuple[str, str], int] = {}
        """Where to look: bus and type, and the id after which the store must look."""
        for id_, (result, wait) in ((one.ref.id, found) for one in settlements for found in waits_of(one.results)):
            if (id_, result.handler_id) in known:
                continue
            bus, type_, _ = wait.shape.split("\n", 2)
            self.after[bus, type_] = min(id_, self.after.get((bus, type_), id_))
            self._waits.setdefault(wait.shape, {}).setdefault(wait.key, []).append((id_, result.handler_id, wait))

    def look_at(self, events: Iterable[Event], is_later: Callable[[int, str, Event], bool] = lambda *_: False) -> None:
        """Compare stored events, in any order. The one with the smallest id counts.

        ``is_later`` says, for a waiting event and a result, whether an event was stored after this wait began. Then the
        event meets it with any id, and also if it was cancelled since.
        """
        shapes = {shape: (prefix_of(*shape.split("\n", 2)[:2]), names_of(shape)) for shape in self._waits}
        for event in events:
            prefix = prefix_of(event.bus, event.type)
            for shape, (wanted, names) in shapes.items():
                key = key_in(event, names) if prefix == wanted else None
                for id_, handler_id, wait in self._waits[shape].get(key, ()) if key is not None else ():
                    best = self.found.get((id_, handler_id))
                    if best is not None and best.id < event.id:
                        continue
                    if is_met_by(wait, id_, event) or (is_later(id_, handler_id, event) and is_awaited(wait, event)):
                        self.found[id_, handler_id] = event

    def of(self, bus: str, event_type: str) -> list[tuple[int, str]]:
        """Return the new waits for this type: the waiting event and the id of its result."""
        shapes = [keys for shape, keys in self._waits.items() if shape.startswith(prefix_of(bus, event_type))]
        return [(id_, name) for keys in shapes for waits in keys.values() for id_, name, _ in waits]

    def settlements(self) -> list[Settlement]:
        """Return the settlements with the waits that are met."""
        found: dict[int, dict[str, Event]] = {}
        for (id_, handler_id), event in self.found.items():
            found.setdefault(id_, {})[handler_id] = event
        return [with_met(one, found.get(one.ref.id, {})) for one in self._settlements]


def without_waits(handlers: tuple[HandlerState, ...]) -> tuple[HandlerState, ...]:
    """Return the handlers of an event that ends: it waits for nothing any more."""
    return tuple(h for h in handlers if h.result.status is not ResultStatus.WAITING) if handlers else handlers

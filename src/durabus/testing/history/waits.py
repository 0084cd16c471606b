"""Checks that a wait ends with the first matching event, or with its timeout."""

from __future__ import annotations

from collections.abc import Iterator

from durabus.model.event import Event
from durabus.model.statuses import EventStatus
from durabus.testing.history.history import FOREVER, History, StepEffect, Violation
from durabus.testing.history.subjects import WaitAsked


def waits(history: History) -> Iterator[Violation]:
    """A wait ends with the first matching event that is stored after its own event; without one, at its timeout.

    That a wait ends in the same way every time is the matter of ``step_values``.
    """
    for step in history.steps:
        if step.what != "waited":
            continue
        known = history.asked_waits.get(step.id, {}).get(step.name)
        if known is None:
            yield Violation("waits", f"{step.name} of event {step.id} is over, and no call had stored the wait")
        elif step.value is None:
            yield from _timed_out(history, step, known)
        else:
            yield from _met(history, step, known)


def may_be_met(history: History, id_: int, instant: float) -> bool:
    """Return whether an event that another one waits for was stored by then: it makes the waiting event due."""
    return any(
        event.id > id_ and event.created_ts <= instant and wait.matches(event)
        for known in history.asked_waits.get(id_, {}).values()
        for wait in known
        for event in history.finals_of.get(wait.type, ())
    )


def _matches(history: History, step: StepEffect, wait: WaitAsked, before: float) -> list[Event]:
    """Return the matching events that were stored after the waiting event, and before an instant; in their order."""
    bus = history.finals[step.id].bus if step.id in history.finals else None
    later = (event for event in history.finals_of.get(wait.type, ()) if event.id > step.id and event.bus == bus)
    found = (event for event in later if event.created_ts < before and wait.matches(event))
    return sorted(found, key=lambda event: event.id)


def _sure(events: list[Event]) -> list[Event]:
    """Return the events that meet the wait for sure. One that was cancelled may have been so before the wait began."""
    return [event for event in events if event.status is not EventStatus.CANCELLED]


def _ends(known: list[WaitAsked]) -> tuple[float, float]:
    """Return the earliest and the latest end that the wait can have."""
    ends = [FOREVER if wait.until is None else wait.until for wait in known]
    return min(ends), max(ends)


def _timed_out(history: History, step: StepEffect, known: list[WaitAsked]) -> Iterator[Violation]:
    earliest, slack = _ends(known)[0], history.settings.tolerance + 1e-6
    if step.at < history.at(earliest) - slack:
        early = history.at(earliest) - step.at
        yield Violation("waits", f"{step.name} of event {step.id} was given up {early:.3f} s before its timeout")
    for event in _sure(_matches(history, step, known[0], earliest - slack))[:1]:
        yield Violation("waits", f"{step.name} of event {step.id} was given up, although event {event.id} had come")


def _met(history: History, step: StepEffect, known: list[WaitAsked]) -> Iterator[Violation]:
    (earliest, latest), slack = _ends(known), history.settings.tolerance + 1e-6
    possible = {event.event_id: event for event in _matches(history, step, known[0], latest)}
    met = possible.get(step.value or "")
    if met is None:
        yield Violation("waits", f"{step.name} of event {step.id} got event {step.value}, which it did not wait for")
        return
    first = next(iter(_sure(_matches(history, step, known[0], earliest - slack))), met)
    if first.id < met.id:
        yield Violation("waits", f"{step.name} of event {step.id} got event {met.id}, although {first.id} came first")

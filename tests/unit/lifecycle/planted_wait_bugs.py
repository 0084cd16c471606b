"""Broken versions of the rules of waits: the explorer must find each one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.unit.lifecycle.planted_bugs import PlantedBug

from durabus.lifecycle import handlers, transition, waits
from durabus.lifecycle.state import EventState, HandlerState
from durabus.model.event import Event
from durabus.model.result import HandlerResult
from durabus.model.statuses import EventStatus, ResultStatus

Meet = Callable[[EventState, str, Event], EventState | None]


def _wait_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def merge(rows: tuple[HandlerState, ...], results: tuple[HandlerResult, ...]) -> tuple[HandlerState, ...]:
        new = {result.handler_id for result in results}
        return handlers.merge_results(tuple(row for row in rows if row.result.handler_id not in new), results)

    monkeypatch.setattr(transition, "merge_results", merge)


def _meet(change: Callable[[Meet], Meet]) -> Callable[[pytest.MonkeyPatch], None]:
    rule = waits.meet
    return lambda monkeypatch: monkeypatch.setattr(waits, "meet", change(rule))


def _not_while_claimed(rule: Meet) -> Meet:
    return lambda state, step, event: None if state.event.status is EventStatus.PROCESSING else rule(state, step, event)


def _leaves_it_delayed(rule: Meet) -> Meet:
    def meet(state: EventState, step: str, event: Event) -> EventState | None:
        after = rule(state, step, event)
        return None if after is None else replace(after, event=state.event)

    return meet


def _makes_a_claimed_event_due(rule: Meet) -> Meet:
    def meet(state: EventState, step: str, event: Event) -> EventState | None:
        after = rule(state, step, event)
        return None if after is None else replace(after, event=replace(after.event, due_ts=0.0))

    return meet


def _forgets_the_abandoned_claim(rule: Meet) -> Meet:
    def meet(state: EventState, step: str, event: Event) -> EventState | None:
        after = rule(state, step, event)
        return None if after is None else replace(after, abandoned=None)

    return meet


WAIT_BUGS = {
    "settlement brings a met wait back": PlantedBug(_wait_comes_back, "its event is lost"),
    "ended event keeps its wait": PlantedBug(
        lambda monkeypatch: monkeypatch.setattr(transition, "without_waits", lambda rows: rows), "still waits"
    ),
    "requeue drops the event that met a wait": PlantedBug(
        lambda monkeypatch: monkeypatch.setattr(transition, "SUCCESSES", frozenset({ResultStatus.SUCCEEDED})),
        "its event is lost",
    ),
    "release ignores that its wait was met meanwhile": PlantedBug(
        lambda monkeypatch: monkeypatch.setattr(transition, "_met_meanwhile", lambda *_: False), "not due at once"
    ),
    "wait of a claimed event is not met": PlantedBug(_meet(_not_while_claimed), "the wait is not met"),
    "met wait leaves its event delayed": PlantedBug(_meet(_leaves_it_delayed), "its event is not due"),
    "met wait changes a claimed event": PlantedBug(_meet(_makes_a_claimed_event_due), "changes more than"),
    "met wait forgets the abandoned claim": PlantedBug(_meet(_forgets_the_abandoned_claim), "changes more than"),
    "any event of the type meets a wait": PlantedBug(
        lambda monkeypatch: monkeypatch.setattr(
            waits, "is_met_by", lambda wait, waiter_id, event: event.id > waiter_id and event.created_ts < wait.until
        ),
        "does not match",
    ),
    "event that comes too late meets a wait": PlantedBug(
        lambda monkeypatch: monkeypatch.setattr(
            waits, "is_met_by", lambda wait, waiter_id, event: event.id > waiter_id and event.payload == wait.where
        ),
        "does not match",
    ),
}

"""Checks that the store has exactly the published events, that all have ended, and that readers saw the whole log."""

from __future__ import annotations

from collections.abc import Iterator

from durabus.model.query import EventQuery
from durabus.model.statuses import LIVE, Action, EventStatus
from durabus.store.contract import EventStore
from durabus.testing.history.history import Final, History, Line, Logged, Violation


def lost(history: History) -> Iterator[Violation]:
    """Acknowledged events are in the store. Each handler was done with every COMPLETED event."""
    known = {event.event_id for event in history.finals.values()}
    published = {entry.event_id for entry in history.log if entry.action is Action.PUBLISHED}
    for call in history.of("add_events"):
        for asked, answer in call.answered():
            if answer.event_id not in known or answer.event_id not in published:
                yield Violation(
                    "lost", f"event {asked.event_id} was acknowledged to {call.invoke.host} and is not there"
                )
    done = {(effect.id, effect.handler) for effect in history.effects if effect.what == "done"}
    for event in history.finals.values():
        if event.status is EventStatus.COMPLETED:
            for handler in history.settings.handlers:
                if (event.id, handler) not in done:
                    yield Violation("lost", f"event {event.id} is COMPLETED, but {handler} was never done with it")


def stuck(history: History) -> Iterator[Violation]:
    """All events end after the faults end."""
    live = [event for event in history.finals.values() if event.status in LIVE]
    for event in live:
        yield Violation("stuck", f"event {event.id} is still {event.status}, attempts {event.attempts}")
    if not history.settings.drained and not live:
        yield Violation("stuck", "the fleet did not come to rest in its time")


def phantom(history: History) -> Iterator[Violation]:
    """A process published every event, under one id, and once for each idempotency key."""
    asked = {subject.event_id for call in history.of("add_events") for subject in call.invoke.subjects}
    asked |= {child for call in history.calls for subject in call.invoke.subjects for child in subject.children}
    ids: dict[str, int] = {}
    keys: dict[tuple[str, str], int] = {}
    for event in history.finals.values():
        if event.event_id not in asked:
            yield Violation("phantom", f"no process published event {event.id} ({event.event_id})")
        if ids.setdefault(event.event_id, event.id) != event.id:
            yield Violation("phantom", f"event {event.event_id} is stored twice: {ids[event.event_id]} and {event.id}")
        if event.idempotency_key is not None:
            first = keys.setdefault((event.bus, event.idempotency_key), event.id)
            if first != event.id:
                yield Violation("phantom", f"key {event.idempotency_key!r} has two events: {first} and {event.id}")
    for id_, trail in history.trails.items():
        published = sum(entry.action is Action.PUBLISHED for entry in trail)
        if published != 1:
            yield Violation("phantom", f"event {id_} has {published} PUBLISHED entries")


def cursor(history: History) -> Iterator[Violation]:
    """Every page of the log has exactly the entries after the position that the reader gave."""
    places = {entry.position: place for place, entry in enumerate(history.log, start=1)}
    if len(places) != len(history.log):
        yield Violation("cursor", "two entries of the log have one position")
    positions = [entry.position for entry in history.log]
    for call in history.of("read_log"):
        if call.ok is None or call.ok.positions is None:
            continue
        after, read = call.invoke.after or "", list(call.ok.positions)
        if after and after not in places:
            yield Violation("cursor", f"{call.invoke.host} read on after {after!r}, which is no entry's position")
            continue
        first = places.get(after, 0)
        expected = positions[first : first + len(read)]
        if read != expected:
            yield Violation("cursor", f"{call.invoke.host} read {read} after {after!r}, the log has {expected} there")
        if call.ok.next != (read[-1] if read else after):
            yield Violation("cursor", f"{call.invoke.host} read {read} and was sent on to {call.ok.next!r}")
        if not read and _older(history, first, call.begins):
            yield Violation("cursor", f"{call.invoke.host} found nothing after {after!r}, where entries were already")


def _older(history: History, first: int, instant: float) -> bool:
    """Return whether the next entry was written before ``instant``."""
    entries = history.log[first : first + 1]
    return any(history.at(entry.at_ts) < instant - history.settings.tolerance - 1e-6 for entry in entries)


PAGE = 1000


async def remains(store: EventStore, bus: str) -> list[Line]:
    """Return the whole log, then every event of a bus."""
    lines: list[Line] = []
    position = ""
    while (page := await store.read_log(after=position, limit=PAGE)).next != position:
        lines += [Logged(entry) for entry in page.entries]
        position = page.next
    before: int | None = None
    while True:
        found = await store.find(EventQuery(bus=bus, before_id=before, limit=500))
        lines += [Final(event) for event in found.events]
        before = found.next_before_id
        if before is None:
            return lines

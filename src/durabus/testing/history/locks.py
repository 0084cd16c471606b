"""Locks: a fence for each holder, and one holder at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from durabus.model.log_entry import LogEntry
from durabus.model.statuses import Action
from durabus.testing.history.claims import held_claims
from durabus.testing.history.history import FOREVER, History, RecordedCall, Violation
from durabus.testing.history.lifecycle import FREES
from durabus.testing.history.lines import Effect, Holding


def locks(history: History) -> Iterator[Violation]:
    """A lock has one holder at a time, unless a process is frozen. Later holders have larger fences."""
    holders: dict[tuple[str, int], str] = {}
    spans: dict[str, list[tuple[float, Holding]]] = {}
    open_: dict[tuple[str, str, int], Holding] = {}
    for one in history.holdings:
        place = (one.host, one.key, one.fence)
        if one.what == "start":
            if holders.setdefault((one.key, one.fence), one.host) != one.host or place in open_:
                yield Violation("locks", f"{one.key!r} was held twice with fence {one.fence}")
            open_[place] = one
        elif place in open_:
            spans.setdefault(one.key, []).append((one.at, open_.pop(place)))
    for one in open_.values():
        spans.setdefault(one.key, []).append((history.crashes.get(one.host, FOREVER), one))
    for held in spans.values():
        yield from _overlaps(history, sorted(held, key=lambda span: span[1].fence))


def _overlaps(history: History, held: list[tuple[float, Holding]]) -> Iterator[Violation]:
    for place, (end, older) in enumerate(held):
        for _, newer in held[place + 1 :]:
            late = end > newer.at + history.settings.tolerance
            if late and not history.was_frozen(older.host, older.since, newer.at):
                yield Violation(
                    "locks",
                    f"{older.key!r}: fence {older.fence} on {older.host} until {end:.3f}, fence {newer.fence} on "
                    f"{newer.host} from {newer.at:.3f}, and nobody was frozen",
                )


class HandlerRun(NamedTuple):
    """A handler that ran under a claim."""

    picked: LogEntry
    begin: float
    end: float
    effect: Effect


def serial(history: History) -> Iterator[Violation]:
    """A serial bus has one claim with its lock at a time, and its handlers run one event at a time.

    A worker claims an event without the lock if no live node has its handlers. Nothing runs under such a claim.
    """
    buses = {call.invoke.claim.bus for call in history.calls if call.invoke.claim is not None and _takes_the_lock(call)}
    # A child that a handler waits for runs inside its parent, under the parent's lock.
    of_bus = {id_: event.bus for id_, event in history.finals.items() if event.bus in buses and event.parent_id is None}
    yield from _claims(history, of_bus)
    yield from _handlers_without_lock(history, of_bus)
    if history.settings.stops_in_time:
        yield from _handlers(history, of_bus)


def _takes_the_lock(call: RecordedCall) -> bool:
    return call.invoke.claim is not None and call.invoke.claim.mode == "bus-serial"


def _handlers_without_lock(history: History, of_bus: dict[int, str]) -> Iterator[Violation]:
    without = {(claim.id, claim.fence) for call, claim in history.grants if not _takes_the_lock(call)}
    for effect in history.effects:
        if effect.what == "start" and effect.id in of_bus and (effect.id, effect.fence) in without:
            yield Violation(
                "order",
                f"{effect.handler} of event {effect.id} began on {effect.host} under a claim without the lock of the "
                f"serial bus {of_bus[effect.id]!r}",
            )


def _claims(history: History, of_bus: dict[int, str]) -> Iterator[Violation]:
    tokens = {(claim.id, claim.fence): claim.token for _, claim in history.grants}
    has_lock = {(claim.id, claim.fence): _takes_the_lock(call) for call, claim in history.grants}
    # The log has no token, so a claim whose reply was lost may be any claim that was asked for before.
    lost = [
        call.begins
        for call in history.calls
        if call.invoke.claim is not None and not _takes_the_lock(call) and call.ends == FOREVER
    ]
    first_lost = min(lost, default=FOREVER)
    held: dict[str, dict[int, LogEntry]] = {}
    for entry in history.log:
        if entry.id not in of_bus:
            continue
        at_work = held.setdefault(of_bus[entry.id], {})
        if entry.action is Action.PICKED:
            if not has_lock.get((entry.id, entry.fence), history.at(entry.at_ts) < first_lost):
                continue
            for other in at_work.values():
                if other.id != entry.id and not _are_one_claim(tokens, other, entry):
                    yield Violation(
                        "order",
                        f"event {entry.id} is claimed by {entry.worker_id} while another claim of the serial bus "
                        f"{of_bus[entry.id]!r} has {other.id} at work",
                    )
            at_work[entry.id] = entry
        elif entry.action in FREES:
            at_work.pop(entry.id, None)


def _are_one_claim(tokens: dict[tuple[int | None, int | None], str | None], one: LogEntry, other: LogEntry) -> bool:
    """Compare their tokens. If a reply was lost, compare the times and the workers of the claims."""
    known, known_too = tokens.get((one.id, one.fence)), tokens.get((other.id, other.fence))
    if known is not None and known_too is not None:
        return known == known_too
    return (one.at_ts, one.worker_id) == (other.at_ts, other.worker_id)


def _handlers(history: History, of_bus: dict[int, str]) -> Iterator[Violation]:
    runs: dict[str, list[HandlerRun]] = {}
    for run in _runs(history):
        if run.effect.id in of_bus:
            runs.setdefault(of_bus[run.effect.id], []).append(run)
    places = {entry.position: place for place, entry in enumerate(history.log)}
    for bus, of_one in runs.items():
        of_one.sort(key=lambda run: places[run.picked.position])
        for older, newer in combinations(of_one, 2):
            slack = history.settings.tolerance
            apart = older.end <= newer.begin + slack or newer.end <= older.begin + slack
            if older.effect.id == newer.effect.id or apart:
                continue
            since = history.at(older.picked.at_ts)
            if not history.was_frozen(older.effect.host, since, max(older.begin, newer.begin)):
                yield Violation(
                    "order",
                    f"handlers of the serial bus {bus!r} overlap: event {older.effect.id} on {older.effect.host} from "
                    f"{older.begin:.3f} to {older.end:.3f}, event {newer.effect.id} on {newer.effect.host} from "
                    f"{newer.begin:.3f}, and nobody was frozen",
                )


def _runs(history: History) -> Iterator[HandlerRun]:
    claims = held_claims(history)
    open_: dict[tuple[str, int, int, str], Effect] = {}
    for effect in history.effects:
        place = (effect.host, effect.id, effect.fence, effect.handler)
        if effect.what == "start":
            open_[place] = effect
        elif place in open_ and (effect.id, effect.fence) in claims:
            begun = open_.pop(place)
            yield HandlerRun(claims[effect.id, effect.fence].picked, begun.at, effect.at, begun)
    for begun in open_.values():
        if (begun.id, begun.fence) in claims:
            end = history.crashes.get(begun.host, FOREVER)
            yield HandlerRun(claims[begun.id, begun.fence].picked, begun.at, end, begun)

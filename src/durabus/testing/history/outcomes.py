"""Checks of successes, children, cancellations and requests.

Successes that the store knows are not repeated, and the log shows them. What the callers of a bus were told is true.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from durabus.model.log_entry import LogEntry
from durabus.model.settlement import NO_HANDLER
from durabus.model.statuses import DEAD_LETTER, LIVE, TERMINAL, Action, EventStatus, ResultStatus
from durabus.testing.history.claims import claim_of, held_claims
from durabus.testing.history.history import FOREVER, Failed, History, VerbEnd, Violation
from durabus.worker.cancelling import EXPIRED
from durabus.worker.steps import SEPARATOR

Place = tuple[int, str]
"""An event, and one of its handlers or steps."""


def kept_successes(history: History) -> Iterator[Violation]:
    """A handler that succeeded, or a step that was kept, does not run again under a later claim.

    This holds after a retry, a crash, a takeover and a requeue. A former holder may still run it: it does not know yet
    that a newer claim exists.
    """
    kept = _kept(history)
    for effect in history.effects:
        if effect.what == "start" and effect.fence > kept.get((effect.id, effect.handler), FOREVER):
            yield Violation(
                "results",
                f"{effect.handler} began again on event {effect.id} with fence {effect.fence}, although its success "
                f"was stored with fence {kept[effect.id, effect.handler]:g}",
            )
    for step in history.steps:
        if step.what == "computed" and step.fence > kept.get((step.id, step.name), FOREVER):
            yield Violation(
                "steps",
                f"{step.name} of event {step.id} was computed again with fence {step.fence}, although its value was "
                f"kept with fence {kept[step.id, step.name]:g}",
            )


def _kept(history: History) -> dict[Place, float]:
    """Return the first fence under which each success was stored. A step returns only after its value is stored."""
    kept: dict[Place, float] = {}
    runs = _runs(history)

    def note(id_: int, name: str, fence: float) -> None:
        kept[id_, name] = min(fence, kept.get((id_, name), FOREVER))

    for call in history.of("keep_results", "settle_events", "settle_handlers"):
        for asked, answer in call.answered():
            for name in () if answer.lost else asked.kept:
                begun = runs.get((call.invoke.host, asked.id or 0, name.partition(SEPARATOR)[0]), ())
                # The fence of the run that ended with the success: the call carries that of the event or the handler.
                note(asked.id or 0, name, max((fence for at, fence in begun if at <= call.begins), default=FOREVER))
    for step in history.steps:
        if step.what == "returned":
            note(step.id, step.name, step.fence)
    return kept


def _runs(history: History) -> dict[tuple[str, int, str], list[tuple[float, int]]]:
    """Return when each process began each handler of each event, and under which fence."""
    runs: dict[tuple[str, int, str], list[tuple[float, int]]] = {}
    for effect in history.effects:
        if effect.what == "start":
            runs.setdefault((effect.host, effect.id, effect.handler), []).append((effect.at, effect.fence))
    return runs


def step_values(history: History) -> Iterator[Violation]:
    """A step returns the same value every time, and a wait the same event."""
    values: dict[Place, str | None] = {}
    for step in history.steps:
        if step.what != "computed" and values.setdefault((step.id, step.name), step.value) != step.value:
            first = values[step.id, step.name]
            yield Violation("steps", f"{step.name} of event {step.id} returned {first!r}, and later {step.value!r}")


def strict_results(history: History) -> Iterator[Violation]:
    """With strict results, a handler does not run again once the next handler of its event has begun."""
    if not history.settings.strict:
        return
    done: dict[tuple[str, int, int], set[str]] = {}
    known: dict[Place, float] = {}
    for effect in history.effects:
        before = done.setdefault((effect.host, effect.id, effect.fence), set())
        if effect.what == "done":
            before.add(effect.handler)
        elif effect.what == "start":
            for handler in before:
                known[effect.id, handler] = min(effect.fence, known.get((effect.id, handler), FOREVER))
    for effect in history.effects:
        if effect.what == "start" and effect.fence > known.get((effect.id, effect.handler), FOREVER):
            yield Violation(
                "results",
                f"{effect.handler} began again on event {effect.id} with fence {effect.fence}, although the next "
                f"handler had begun after its success with fence {known[effect.id, effect.handler]:g}",
            )


def successes(history: History) -> Iterator[Violation]:
    """A process stores the success of a handler only after that handler was done with this very event."""
    done: dict[tuple[str, int, str], float] = {}
    for effect in history.effects:
        if effect.what == "done":
            done.setdefault((effect.host, effect.id, effect.handler), effect.at)
    hosts = {effect.host for effect in history.effects}
    for call in history.of("keep_results", "settle_events", "settle_handlers"):
        for asked, answer in call.answered() if call.invoke.host in hosts else ():
            for name in () if answer.lost else [name for name in asked.kept if SEPARATOR not in name]:
                since = done.get((call.invoke.host, asked.id or 0, name), FOREVER)
                if since > call.begins + history.settings.tolerance:
                    yield Violation(
                        "results",
                        f"{call.invoke.host} stores a success of {name} on event {asked.id} without having had it",
                    )


def offered_handlers(history: History) -> Iterator[Violation]:
    """An event completes after each handler that was offered to other nodes, unless no node has it any more."""
    offered: dict[int, set[str]] = {}
    for call in history.of("keep_results", "settle_events"):
        for asked, answer in call.answered():
            if not answer.lost and asked.id is not None:
                offered.setdefault(asked.id, set()).update(asked.offered)
    done = {(effect.id, effect.handler) for effect in history.effects if effect.what == "done"}
    for id_, names in offered.items():
        end = history.trails[id_][-1] if id_ in history.trails else None
        if end is None or end.status is not EventStatus.COMPLETED:
            continue
        gone = {result.handler_id for result in end.results if result.status is ResultStatus.CANCELLED}
        for name in sorted(names - gone):
            if (id_, name) not in done:
                yield Violation("results", f"event {id_} is COMPLETED, but {name}, which was offered, was never done")


def results_shown(history: History) -> Iterator[Violation]:
    """The entry of a COMPLETED event shows the success of each handler."""
    if not history.settings.shows_results:
        return
    for id_, trail in history.trails.items():
        end = trail[-1]
        if end.status is not EventStatus.COMPLETED:
            continue
        shown = {result.handler_id for result in end.results if result.status is ResultStatus.SUCCEEDED}
        for handler in history.settings.handlers:
            if handler not in shown:
                yield Violation("results", f"the end of event {id_} does not show the success of {handler}")


def children(history: History) -> Iterator[Violation]:
    """A child is stored if, and only if, the success that it belongs to is stored."""
    stored = {event.event_id for event in history.finals.values()}
    published = {subject.event_id for call in history.of("add_events") for subject in call.invoke.subjects}
    accepted: set[str] = set()
    refused: set[str] = set()
    unknown: set[str] = set()
    for call in history.of("keep_results", "settle_events"):
        for place, asked in enumerate(call.invoke.subjects):
            if isinstance(call.end, Failed) or (call.ok is not None and call.ok.subjects[place].lost):
                refused.update(asked.children)
            else:
                (unknown if call.ok is None else accepted).update(asked.children)
    for child in sorted(accepted - stored):
        yield Violation("children", f"event {child} was stored with the success of its parent, and is not there")
    for child in sorted((refused & stored) - accepted - unknown - published):
        yield Violation("children", f"event {child} is there, although the success of its parent was refused")
    if history.settings.one_child:
        yield from _too_many_children(history)
    if history.settings.emitter is not None:
        yield from _children_without_success(history, history.settings.emitter)


def _children_without_success(history: History, emitter: str) -> Iterator[Violation]:
    done = {one.event_id for one in history.effects if one.handler == emitter and one.what == "done"}
    for event in history.finals.values():
        if event.parent_id is not None and event.parent_id not in done:
            yield Violation("children", f"event {event.id} is there, although {emitter} never succeeded on its parent")


def _too_many_children(history: History) -> Iterator[Violation]:
    parents = {event.event_id: event for event in history.finals.values()}
    found = Counter(event.parent_id for event in history.finals.values() if event.parent_id is not None)
    for parent_id, count in found.items():
        parent = parents.get(parent_id)
        if parent is not None and count > parent.generation + 1:
            yield Violation(
                "children", f"event {parent.id} in generation {parent.generation} has {count} children, not one"
            )


def cancelled(history: History) -> Iterator[Violation]:
    """A cancelled event stays cancelled. Its handlers run on for one lease at most, unless their process is frozen."""
    for call in history.of("cancel_event", "cancel_events"):
        for _, answer in call.answered():
            event = history.finals.get(answer.id or 0)
            if answer.what == EventStatus.CANCELLED and event is not None and event.status != answer.what:
                yield Violation("cancelled", f"event {event.id} was cancelled, and is {event.status} in the end")
    if not history.settings.stops_in_time:
        return
    ends = {trail[-1].id: trail[-1] for trail in history.trails.values() if trail[-1].action is Action.CANCELLED}
    for effect in history.effects:
        end = ends.get(effect.id)
        latest = (
            FOREVER
            if end is None or effect.handler in history.settings.batched
            else history.at(end.at_ts) + history.shortest_lease
        )
        if effect.at > latest + history.settings.tolerance and not history.was_frozen(effect.host, 0.0, effect.at):
            yield Violation(
                "cancelled",
                f"{effect.handler} of event {effect.id} on {effect.host}: {effect.what} {effect.at - latest:.3f} s "
                "later than one lease after its cancellation",
            )


def requests(history: History) -> Iterator[Violation]:
    """A request ends as its event did: with the first value of its handlers, or with the error that the log explains.

    A request that was given up after its time says nothing about its event.
    """
    trails = {trail[0].event_id: trail for trail in history.trails.values()}
    for one in history.returned:
        if one.verb != "request" or one.error == TimeoutError.__name__:
            continue
        latest = one.at + history.settings.tolerance + 1e-6
        before = [entry for entry in trails.get(one.event_id, ()) if history.at(entry.at_ts) <= latest]
        if not any(_explains(entry, one) for entry in before):
            told = f"returned {one.value}" if one.error is None else f"raised {one.error}"
            yield Violation(
                "requests", f"the request {one.event_id} of {one.host} {told}, and its event did not end so"
            )


def _explains(entry: LogEntry, request: VerbEnd) -> bool:
    """Return whether a request may end so because of this entry of its event."""
    match request.error:
        case None:
            is_end = entry.action is Action.COMPLETED and entry.reason != NO_HANDLER
            return is_end and request.value == _first_value(entry)
        case "EventFailed":
            return entry.status in DEAD_LETTER
        case "EventCancelled":
            return entry.action is Action.CANCELLED
        case _:
            return entry.action is Action.COMPLETED and entry.reason == NO_HANDLER


def _first_value(entry: LogEntry) -> str | None:
    succeeded = (result for result in entry.results if result.status is ResultStatus.SUCCEEDED)
    return next((result.value_json for result in succeeded if result.value_json is not None), None)


def cancelled_children(history: History) -> Iterator[Violation]:
    """Children that were live when their parent was cancelled with its children have ended when that returns."""
    children: dict[str | None, list[Sequence[LogEntry]]] = {}
    for event in history.finals.values():
        children.setdefault(event.parent_id, []).append(history.trails.get(event.id, ()))
    slack = history.settings.tolerance + 1e-6
    for one in history.returned:
        for trail in children.get(one.event_id, ()) if one.verb == "cancel" else ():
            before = [entry for entry in trail if history.at(entry.at_ts) < one.since - slack]
            ends = [entry for entry in trail[len(before) :] if entry.status in TERMINAL]
            was_live = bool(before) and before[-1].status in LIVE
            if was_live and not any(history.at(entry.at_ts) <= one.at + slack for entry in ends):
                yield Violation("cancelled", f"event {trail[0].id} was live after its parent was cancelled with it")


def expired(history: History) -> Iterator[Violation]:
    """No handler begins under a claim that came after the time of the event; no event is cancelled for that before."""
    claims = held_claims(history)
    expires = {
        event.id: event.created_ts + event.expires_after
        for event in history.finals.values()
        if event.expires_after is not None
    }
    for effect in history.effects:
        if effect.what != "start" or effect.id not in expires:
            continue
        held = claim_of(history, effect, claims)
        if held is not None and held.picked.at_ts > expires[effect.id] + 1e-6:
            late = held.picked.at_ts - expires[effect.id]
            yield Violation(
                "expired", f"{effect.handler} began event {effect.id}, claimed {late:.3f} s after it had expired"
            )
    for id_, instant in expires.items():
        for entry in history.trails.get(id_, ()):
            if (entry.reason or "").startswith(EXPIRED) and entry.at_ts < instant - 1e-6:
                early = instant - entry.at_ts
                yield Violation("expired", f"event {id_} was cancelled {early:.3f} s before it expires")

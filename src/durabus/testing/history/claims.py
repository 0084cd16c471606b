"""Checks that events and locks have one holder at a time, stale writes are refused, and handlers do not overlap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import NamedTuple

from durabus.model.claim import LOST, PROCESS_ENDED
from durabus.model.log_entry import LogEntry
from durabus.model.statuses import Action, EventStatus
from durabus.testing.history.history import FOREVER, Effect, History, Holding, RecordedCall, Violation
from durabus.testing.history.lifecycle import FREES
from durabus.testing.history.subjects import Subject

KINDS = {
    Action.COMPLETED: "complete",
    Action.COMPLETED_WITH_ERRORS: "complete",
    Action.FAILED: "fail",
    Action.RELEASED: "release",
    Action.CANCELLED: "cancel",
}
GIVEN_BACK = (Action.RELEASED, Action.RESET)


class ClaimInterval:
    """A claim in the log, from its grant to its end."""

    def __init__(self, picked: LogEntry) -> None:
        self.picked = picked
        self.taken: LogEntry | None = None
        """The entry that ended the claim because its lease was over."""
        self.end: LogEntry | None = None
        """The last entry of the claim. A claim whose lease was over can still be settled, if it is not overtaken."""

    @property
    def by_expiry(self) -> bool:
        """Whether the end of the lease was the end of the claim."""
        return self.taken is not None and self.end is self.taken

    @property
    def revoked(self) -> bool:
        """Whether a caller cancelled the event: such an entry has a larger fence than the claim."""
        return self.end is not None and self.end.fence > self.picked.fence

    @property
    def seemed_dead(self) -> bool:
        """Whether the claim ended because the store took its process for dead. It may live, cut off from the store."""
        return self.taken is not None and (self.taken.error or "").startswith(PROCESS_ENDED)

    def ends_with(self, entry: LogEntry, before: LogEntry) -> None:
        """Note an entry that can end the claim. ``before`` is the event's entry before it."""
        if self.end is None:
            self.end = entry
            by_itself = entry.action is Action.FAILED and (entry.error or "").startswith(LOST)
            self.taken = entry if by_itself or entry.action is Action.ABANDONED else None
        elif before is self.taken and before.action is Action.ABANDONED and entry.action in KINDS:
            self.end = entry


def held_claims(history: History) -> dict[tuple[int, int], ClaimInterval]:
    """Return the claims by event id and fence."""
    claims: dict[tuple[int, int], ClaimInterval] = {}
    for id_, trail in history.trails.items():
        for before, entry in pairwise([trail[0], *trail]):
            if entry.action is Action.PICKED:
                claims.setdefault((id_, entry.fence), ClaimInterval(entry))
            elif entry.action in FREES:
                revoked = entry.action is Action.CANCELLED and before.fence < entry.fence
                held = claims.get((id_, before.fence if revoked else entry.fence))
                if held is not None:
                    held.ends_with(entry, before)
    return claims


def exclusive(history: History) -> Iterator[Violation]:
    """A fence is granted once, and no claim ends before its promised lease, unless its process has ended."""
    claims = held_claims(history)
    tokens: dict[tuple[int, int], str] = {}
    slack = history.settings.tolerance + 1e-6
    for call, claim in history.grants:
        place = (claim.id or 0, claim.fence or 0)
        if place not in claims:
            yield Violation(
                "exclusive", f"{call.invoke.host} was given event {place[0]} with fence {place[1]}, not logged"
            )
            continue
        if tokens.setdefault(place, claim.token or "") != claim.token:
            yield Violation("exclusive", f"event {place[0]}, fence {place[1]} was given to two tokens")
        yield from _cut_short(claims[place], claim.expires, slack)
    for call in history.of("renew_event_claims"):
        for asked, answer in call.answered():
            held = claims.get((asked.id or 0, asked.fence or 0))
            if held is not None and not answer.lost:
                yield from _cut_short(held, answer.expires, slack)
    for held in claims.values():
        yield from _cut_short(held, held.picked.at_ts + history.shortest_lease, slack)


def _cut_short(held: ClaimInterval, promised: float | None, slack: float) -> Iterator[Violation]:
    if held.taken is None or held.seemed_dead:
        return
    if promised is not None and held.taken.at_ts < promised - slack:
        early = promised - held.taken.at_ts
        yield Violation(
            "exclusive", f"event {held.picked.id}, fence {held.picked.fence} was taken {early:.3f} s too early"
        )


def stale_writes(history: History) -> Iterator[Violation]:
    """An accepted settlement is in the log with its fence. A refused settlement changed nothing."""
    claims, slack = held_claims(history), history.settings.tolerance + 1e-6
    for (id_, fence), asked in history.settlements.items():
        held = claims.get((id_, fence))
        end = None if held is None or held.end is None or held.by_expiry or held.revoked else held.end
        kind = None if end is None else KINDS.get(end.action)
        for call, subject, answer in asked:
            if answer is not None and not answer.lost and kind != subject.what:
                yield Violation(
                    "stale write",
                    f"the store told {call.invoke.host} that event {id_}, fence {fence} is settled ({subject.what}); "
                    f"the log has {'no such entry' if end is None else end.action}",
                )
        if end is not None:
            yield from _explained(history, end, asked, slack)
    for (id_, fence), held in claims.items():
        settled = held.end is not None and not (held.by_expiry or held.revoked) and held.end.action in KINDS
        if settled and (id_, fence) not in history.settlements:
            yield Violation("stale write", f"event {id_}, fence {fence} was settled in the log and by nobody else")
    yield from _renewals(history, claims, slack)


def _explained(
    history: History, end: LogEntry, asked: list[tuple[RecordedCall, Subject, Subject | None]], slack: float
) -> Iterator[Violation]:
    """A process asked for this entry before the store wrote it, and the store did not refuse."""
    at = history.at(end.at_ts)
    alike = [one for one in asked if one[1].what == KINDS.get(end.action)]
    before = [(call, answer) for call, _, answer in alike if call.begins <= at + slack]
    if history.settings.repeats and any(entry.fence > end.fence for entry in history.trails[end.id]):
        before = [(call, None if at <= call.ends + slack else answer) for call, answer in before]
    if not any(answer is None or not answer.lost for _, answer in before):
        what = "refused" if before else "not asked for at that time"
        yield Violation("stale write", f"event {end.id}, fence {end.fence}: {end.action} is logged, and was {what}")


def _held_until(history: History, held: ClaimInterval) -> float:
    """Return when the claim was over for certain, by the recorder's clock.

    A settlement gets its time when the store begins to work on it, and takes effect before its reply. A busy server may
    renew the same claim between the two.
    """
    over = held.taken or held.end
    if over is None:
        return FOREVER
    at = history.at(over.at_ts)
    if held.taken is not None or held.revoked:
        return at
    asked = history.settlements.get((held.picked.id, held.picked.fence), ())
    return max(at, min((call.ends for call, _, answer in asked if answer is None or not answer.lost), default=at))


def _renewals(history: History, claims: dict[tuple[int, int], ClaimInterval], slack: float) -> Iterator[Violation]:
    for call in history.of("renew_event_claims", "start_events"):
        for asked, answer in call.answered():
            held = claims.get((asked.id or 0, asked.fence or 0))
            ended = FOREVER if held is None else _held_until(history, held)
            if not answer.lost and (held is None or ended < call.begins - slack):
                yield Violation(
                    "stale write",
                    f"the store told {call.invoke.host} that event {asked.id}, fence {asked.fence} is still its own",
                )


def effects(history: History) -> Iterator[Violation]:
    """A handler runs once under a claim, and not at the same time under a later claim."""
    claims = held_claims(history)
    spans: dict[tuple[int, str], list[tuple[float, float, Effect]]] = {}
    open_: dict[tuple[str, int, int, str], Effect] = {}
    for effect in history.effects:
        place = (effect.host, effect.id, effect.fence, effect.handler)
        if effect.what == "start":
            if (effect.id, effect.fence) not in claims and not history.holds_handler(effect):
                yield Violation(
                    "exclusive", f"{effect.host} runs event {effect.id} with fence {effect.fence}: not granted"
                )
            if any(span[2].fence == effect.fence for span in spans.get((effect.id, effect.handler), ())):
                yield Violation("exclusive", f"{effect.handler} ran twice on event {effect.id}, fence {effect.fence}")
            open_[place] = effect
            spans.setdefault((effect.id, effect.handler), [])
        elif place in open_:
            begun = open_.pop(place)
            spans[effect.id, effect.handler].append((begun.at, effect.at, begun))
    for begun in open_.values():
        spans[begun.id, begun.handler].append((begun.at, history.crashes.get(begun.host, FOREVER), begun))
    if history.settings.stops_in_time:
        for runs in (runs for (_, handler), runs in spans.items() if handler not in history.settings.batched):
            yield from _overlaps(history, sorted(runs, key=lambda run: run[2].fence), claims)


def _overlaps(
    history: History, runs: list[tuple[float, float, Effect]], claims: dict[tuple[int, int], ClaimInterval]
) -> Iterator[Violation]:
    """Only a frozen process may still run a handler when the next process has begun."""
    for place, (_, end, older) in enumerate(runs):
        for begin, _, newer in runs[place + 1 :]:
            if end <= begin + history.settings.tolerance:
                continue
            picked = claim_of(history, older, claims)
            since = older.at if picked is None else history.at(picked.picked.at_ts)
            seemed_dead = picked is not None and picked.seemed_dead
            if not seemed_dead and not history.was_frozen(older.host, since, begin):
                yield Violation(
                    "overlap",
                    f"{older.handler} on event {older.id}: fence {older.fence} on {older.host} until {end:.3f}, "
                    f"fence {newer.fence} on {newer.host} from {begin:.3f}, and no process was frozen",
                )


def starts(history: History) -> Iterator[Violation]:
    """A handler begins at most as often as its event has attempts. Attempts that were given back do not count."""
    claims = held_claims(history)
    begun: Counter[tuple[int, int, str]] = Counter()
    for effect in history.effects:
        # A handler that was claimed by itself counts its own attempts.
        held = None if (effect.id, effect.handler) in history.offered else claims.get((effect.id, effect.fence))
        if effect.what != "start" or held is None or (held.end is not None and held.end.action in GIVEN_BACK):
            continue
        begun[effect.id, held.picked.generation, effect.handler] += 1
    for (id_, generation, handler), times in begun.items():
        event = history.finals.get(id_)
        limit = None if event is None else history.limit_of(event)
        if limit is not None and times > limit:
            yield Violation(
                "attempts", f"{handler} began {times} times on event {id_}.{generation}, {limit} are allowed"
            )


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
        yield from _lock_overlaps(history, sorted(held, key=lambda span: span[1].fence))


def _lock_overlaps(history: History, held: list[tuple[float, Holding]]) -> Iterator[Violation]:
    for place, (end, older) in enumerate(held):
        for _, newer in held[place + 1 :]:
            late = end > newer.at + history.settings.tolerance
            if late and not history.was_frozen(older.host, older.since, newer.at):
                yield Violation(
                    "locks",
                    f"{older.key!r}: fence {older.fence} on {older.host} until {end:.3f}, fence {newer.fence} on "
                    f"{newer.host} from {newer.at:.3f}, and no process was frozen",
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
        # A cancellation frees the lock at once; the handler of the event ends when its worker learns of it.
        yield from _handlers(history, {id_: bus for id_, bus in of_bus.items() if not _is_cancelled(history, id_)})


def _is_cancelled(history: History, id_: int) -> bool:
    return history.finals[id_].status is EventStatus.CANCELLED


def _takes_the_lock(call: RecordedCall) -> bool:
    return call.invoke.claim is not None and call.invoke.claim.mode == "bus-serial"


def _handlers_without_lock(history: History, of_bus: dict[int, str]) -> Iterator[Violation]:
    # A handler that was claimed by itself before has a larger fence than its event, as large as that of a later claim.
    without = {(claim.id, claim.fence): call.begins for call, claim in history.grants if not _takes_the_lock(call)}
    for effect in history.effects:
        begun_at = without.get((effect.id, effect.fence), FOREVER)
        if effect.what == "start" and effect.id in of_bus and effect.at >= begun_at:
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
    """Compare the tokens of two claims. If a reply was lost, compare their times and workers."""
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
                    f"{newer.begin:.3f}, and no process was frozen",
                )


def _runs(history: History) -> Iterator[HandlerRun]:
    claims = held_claims(history)
    open_: dict[tuple[str, int, int, str], Effect] = {}
    for effect in history.effects:
        place = (effect.host, effect.id, effect.fence, effect.handler)
        if effect.what == "start":
            open_[place] = effect
        elif place in open_ and (held := claim_of(history, open_[place], claims)) is not None:
            begun = open_.pop(place)
            yield HandlerRun(held.picked, begun.at, effect.at, begun)
    for begun in open_.values():
        held = claim_of(history, begun, claims)
        if held is not None:
            yield HandlerRun(held.picked, begun.at, history.crashes.get(begun.host, FOREVER), begun)


def claim_of(history: History, begun: Effect, claims: dict[tuple[int, int], ClaimInterval]) -> ClaimInterval | None:
    """Return the claim on the event when the handler began. A handler that was claimed by itself has another fence."""
    if (begun.id, begun.handler) not in history.offered:
        return claims.get((begun.id, begun.fence))
    latest = begun.at + history.settings.tolerance
    earlier = [one for (id_, _), one in claims.items() if id_ == begun.id and history.at(one.picked.at_ts) <= latest]
    return max(earlier, key=lambda one: one.picked.fence, default=None)

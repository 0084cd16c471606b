"""Checks that each log entry follows from those before it, and that the store ends in the state of the log."""

from __future__ import annotations

from collections.abc import Iterator

from durabus.model.claim import PROCESS_ENDED
from durabus.model.event import Event
from durabus.model.log_entry import LogEntry
from durabus.model.statuses import DEAD_LETTER, LIVE, TERMINAL, Action, EventStatus
from durabus.testing.history.history import History, Violation
from durabus.testing.history.waits import may_be_met

ENDS = frozenset({Action.COMPLETED, Action.COMPLETED_WITH_ERRORS, Action.FAILED, Action.CANCELLED})
FREES = frozenset({*ENDS, Action.RELEASED, Action.ABANDONED, Action.RESET})
"""Actions that end a claim."""
SETTLES = frozenset({*ENDS, Action.RELEASED})
"""Actions by which a holder ends its claim, even after ABANDONED, if nothing else happened to the event since."""
AFTER = {
    Action.PUBLISHED: EventStatus.PENDING,
    Action.PICKED: EventStatus.PROCESSING,
    Action.STARTED: EventStatus.PROCESSING,
    Action.RELEASED: EventStatus.PENDING,
    Action.ABANDONED: EventStatus.PENDING,
    Action.RESET: EventStatus.PENDING,
    Action.REQUEUED: EventStatus.PENDING,
    Action.COMPLETED: EventStatus.COMPLETED,
    Action.COMPLETED_WITH_ERRORS: EventStatus.COMPLETED_WITH_ERRORS,
    Action.CANCELLED: EventStatus.CANCELLED,
}


class Life:
    """The state of an event by its log entries. It has its own rules, because it checks those of the lifecycle."""

    def __init__(self, id_: int, *, own_limit: int | None, limit: int | None) -> None:
        self._id = id_
        self._own_limit = own_limit
        """The maximum number of claims. The limit of the workers counts starts of a handler: see ``starts``."""
        self._limit = limit
        """The number of the last attempt. If its claim is lost, the event ends."""
        self.status: EventStatus | None = None
        self.fence = 0
        self.attempts = 0
        self.generation = 0
        self.errors = 0
        self._abandoned = False
        """Whether the last entry is the ABANDONED entry of the newest claim."""

    def follow(self, entry: LogEntry) -> Iterator[Violation]:
        """Yield what is wrong with an entry, then apply it all the same."""
        late = self._abandoned and entry.action in SETTLES and entry.fence == self.fence
        if late:
            self.status = EventStatus.PROCESSING
            self.errors -= 1
        yield from self._place(entry)
        yield from self._count(entry)
        self.status = entry.status
        self._abandoned = entry.action is Action.ABANDONED

    def _place(self, entry: LogEntry) -> Iterator[Violation]:
        what = f"event {self._id}: {entry.action} with fence {entry.fence} at {entry.position} after {self.status}"
        match entry.action:
            case Action.PUBLISHED if self.status is not None:
                yield Violation("phantom", what)
            case Action.PICKED if self.status is EventStatus.PROCESSING:
                yield Violation("exclusive", f"{what}: two claims at once")
            case Action.PICKED if self.status is not EventStatus.PENDING:
                yield Violation("one terminal", f"{what}: it had ended")
            case Action.REQUEUED if self.status not in DEAD_LETTER:
                yield Violation("one terminal", f"{what}: it was no dead letter")
            case Action.PUBLISHED | Action.PICKED | Action.REQUEUED:
                pass
            case _ if self.status in TERMINAL:
                check = "one terminal" if entry.status in TERMINAL else "stale write"
                yield Violation(check, f"{what}: it had ended")
            case Action.CANCELLED if entry.fence == self._fence_if_cancelled:
                pass
            case _ if self.status is not EventStatus.PROCESSING or entry.fence != self.fence:
                yield Violation("stale write", f"{what}: the newest claim has fence {self.fence}")
        expected = AFTER.get(entry.action)
        if expected is not None and entry.status is not expected:
            yield Violation("log = state", f"{what}: it says that the event is {entry.status}")

    @property
    def _fence_if_cancelled(self) -> int:
        """The fence after a cancellation by a caller, which revokes a claim that is current or abandoned."""
        return self.fence + (self.status is EventStatus.PROCESSING or self._abandoned)

    @property
    def _must_end(self) -> bool:
        """Whether a claim is the last one. A process that takes events back from a dead one may not know the limit."""
        return self._limit is not None and self.attempts >= self._limit

    def _count(self, entry: LogEntry) -> Iterator[Violation]:
        match entry.action:
            case Action.PICKED:
                if entry.fence <= self.fence:
                    yield Violation("exclusive", f"event {self._id}: fence {entry.fence} after {self.fence}")
                self.fence = entry.fence
                self.attempts += 1
                if self._own_limit is not None and self.attempts > self._own_limit:
                    yield Violation("attempts", f"event {self._id}: attempt {self.attempts} of {self._own_limit}")
            case Action.RELEASED | Action.RESET:
                self.attempts -= 1
            case Action.CANCELLED:
                self.fence = entry.fence
            case Action.ABANDONED if self._must_end and not (entry.error or "").startswith(PROCESS_ENDED):
                self.errors += 1
                yield Violation(
                    "attempts", f"event {self._id}: abandoned after attempt {self.attempts} of {self._limit}"
                )
            case Action.FAILED | Action.ABANDONED | Action.COMPLETED_WITH_ERRORS:
                self.errors += 1
            case Action.REQUEUED:
                self.attempts, self.errors, self.generation = 0, 0, self.generation + 1
            case _:
                pass
        if entry.attempt != self.attempts:
            yield Violation(
                "attempts", f"event {self._id}: {entry.action} says attempt {entry.attempt}, it is {self.attempts}"
            )
            self.attempts = entry.attempt


def lifecycle(history: History) -> Iterator[Violation]:
    """Check the log of each event alone: one end, one claim at a time, attempts, and the final state in the store."""
    served = any(history.of("expire_events"))  # a server takes events back, too, and knows no limit of a handler
    for id_, trail in history.trails.items():
        event = history.finals.get(id_)
        limit = None if event is None else event.max_attempts if served else history.limit_of(event)
        life = Life(id_, own_limit=None if event is None else event.max_attempts, limit=limit)
        for entry in trail:
            yield from life.follow(entry)
        if event is None:
            yield Violation("log = state", f"event {id_} is in the log and not in the store")
        else:
            yield from _compare(life, event)
    for id_ in history.finals.keys() - history.trails.keys():
        yield Violation("log = state", f"event {id_} is in the store and not in the log")


def _compare(life: Life, event: Event) -> Iterator[Violation]:
    logged = (life.status, life.attempts, life.fence, life.generation, life.errors)
    stored = (event.status, event.attempts, event.fence, event.generation, len(event.errors))
    if logged != stored:
        names = "status, attempts, fence, generation, errors"
        yield Violation("log = state", f"event {event.id} ({names}): the log leads to {logged}, the store has {stored}")


def order(history: History) -> Iterator[Violation]:
    """Events of one ordering key are claimed in order, one at a time."""
    keys: dict[tuple[str, str], dict[int, EventStatus]] = {}
    for entry in history.log:
        event = history.finals.get(entry.id)
        if event is None or event.ordering_key is None:
            continue
        same_key = keys.setdefault((event.bus, event.ordering_key), {})
        if entry.action is Action.PICKED:
            yield from _in_key_order(entry, same_key, event.ordering_key)
        same_key[entry.id] = entry.status


def _in_key_order(entry: LogEntry, same_key: dict[int, EventStatus], key: str) -> Iterator[Violation]:
    for other, status in same_key.items():
        if other == entry.id or status not in LIVE:
            continue
        if status is EventStatus.PROCESSING:
            yield Violation("order", f"event {entry.id} is claimed while {other} of the same key {key!r} is at work")
        elif other < entry.id:
            yield Violation("order", f"event {entry.id} is claimed before {other} of the same key {key!r}")


def backoff(history: History) -> Iterator[Violation]:
    """No event is claimed before it is due, unless an event that it waits for has come.

    An event without a delay is due once it is stored. Its claim may have an earlier time: on PostgreSQL, that is when
    the claiming transaction began.
    """
    slack = history.settings.tolerance + 1e-6
    delays = {
        subject.event_id: subject.delay or 0.0 for call in history.of("add_events") for subject in call.invoke.subjects
    }
    for id_, trail in history.trails.items():
        due = 0.0
        for entry in trail:
            match entry.action:
                case Action.PUBLISHED:
                    delay = delays.get(entry.event_id, 0.0)
                    due = entry.at_ts + delay if delay else 0.0
                case Action.PICKED if entry.at_ts < due - slack and not may_be_met(history, id_, entry.at_ts):
                    yield Violation("backoff", f"event {id_} is claimed {due - entry.at_ts:.3f} s before it is due")
                case Action.FAILED | Action.RELEASED if entry.status is EventStatus.PENDING:
                    asked = [
                        subject.delay
                        for _, subject, _ in history.settlements.get((id_, entry.fence), ())
                        if subject.delay is not None
                    ]
                    due = entry.at_ts + min(asked, default=0.0)
                case _:
                    due = 0.0 if entry.action in FREES else due

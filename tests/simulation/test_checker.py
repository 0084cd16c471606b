"""The checker flags each way of breaking a promise, by the check that is meant for it."""

from collections.abc import Callable, Iterable

import pytest
from msgspec.structs import replace
from tests.simulation.story import COMPLETED, LEASE, PENDING, PROCESSING, claim, entry, granted, settle, story

from durabus.model.statuses import Action
from durabus.testing.history.checker import check
from durabus.testing.history.history import (
    Disturbed,
    Effect,
    Final,
    Holding,
    Invoke,
    Line,
    Logged,
    Ok,
    Subject,
    decode,
    encode,
)

Lines = list[Line]
Mutation = Callable[[Lines], Iterable[Line]]


def test_a_history_that_keeps_every_promise_is_clean() -> None:
    assert check(story()) == []


def test_a_history_survives_its_way_through_a_file() -> None:
    assert decode(encode(story())) == story()


def without(lines: Lines, gone: Callable[[Line], bool]) -> Lines:
    return [line for line in lines if not gone(line)]


def changed(lines: Lines, which: Callable[[Line], bool], **changes: object) -> Lines:
    assert any(which(line) for line in lines)
    return [replace(line, **changes) if which(line) else line for line in lines]


def ok(call: str) -> Callable[[Line], bool]:
    return lambda line: isinstance(line, Ok) and line.call == call


def logged(position: int) -> Callable[[Line], bool]:
    return lambda line: isinstance(line, Logged) and line.entry.position == str(position)


def relogged(lines: Lines, position: int, **changes: object) -> Lines:
    return [
        Logged(replace(line.entry, **changes)) if isinstance(line, Logged) and logged(position)(line) else line
        for line in lines
    ]


def refinal(lines: Lines, id_: int, **changes: object) -> Lines:
    return [
        Final(replace(line.event, **changes)) if isinstance(line, Final) and line.event.id == id_ else line
        for line in lines
    ]


def in_log(lines: Lines, after: int, *new: Logged) -> Lines:
    place = next(place for place, line in enumerate(lines) if logged(after)(line)) + 1
    return [*lines[:place], *new, *lines[place:]]


def forget_event_3(lines: Lines) -> Lines:
    def about_it(line: Line) -> bool:
        return (isinstance(line, Final) and line.event.id == 3) or (isinstance(line, Logged) and line.entry.id == 3)

    return without(lines, about_it)


def never_done(lines: Lines) -> Lines:
    return without(lines, lambda line: isinstance(line, Effect) and line.id == 3 and line.what == "done")


def published_by_nobody(lines: Lines) -> Lines:
    asked = tuple(Subject(event_id=f"event-{n}", delay=0.0) for n in (1, 2, 9))
    return changed(lines, lambda line: isinstance(line, Invoke) and line.call == "p#1", subjects=asked)


def promised_longer(lines: Lines) -> Lines:
    """A renewal that ``a`` was promised in time, although ``b`` was given the event before it ended."""
    return [
        *lines,
        Invoke("a#9", 1.15, "a", "renew_event_claims", (Subject(1, None, "t1", 1),), None, LEASE),
        Ok("a#9", 1.18, (Subject(expires=3.16),)),
    ]


def two_tokens(lines: Lines) -> Lines:
    return [*lines, claim("c#1", 5.0, "c", "t9"), granted("c#1", 5.1, 2, "t9", 2, 2)]


def stale_renewal_accepted(lines: Lines) -> Lines:
    return changed(lines, ok("a#2"), subjects=(Subject(expires=5.4),))


def key_out_of_order(lines: Lines) -> Lines:
    picked, done = (
        entry(90, 2.0, Action.PICKED, 3, PROCESSING, 1, 1),
        entry(91, 2.1, Action.COMPLETED, 3, COMPLETED, 1, 1),
    )
    return in_log(without(lines, lambda line: logged(12)(line) or logged(13)(line)), 6, picked, done)


def key_side_by_side(lines: Lines) -> Lines:
    picked = entry(90, 5.2, Action.PICKED, 3, PROCESSING, 1, 1)
    return in_log(without(lines, logged(12)), 10, picked)


def serial_side_by_side(lines: Lines) -> Lines:
    return [
        replace(line, claim=replace(line.claim, mode="bus-serial"))
        if isinstance(line, Invoke) and line.claim is not None
        else line
        for line in lines
    ]


def serial_without_the_lock(lines: Lines) -> Lines:
    """The bus is serial, but ``b`` claimed and handled without its lock."""
    return [
        replace(line, claim=replace(line.claim, mode="bus-serial"))
        if isinstance(line, Invoke) and line.claim is not None and line.host != "b"
        else line
        for line in lines
    ]


def nobody_frozen(lines: Lines) -> Lines:
    return without(lines, lambda line: isinstance(line, Disturbed))


def ran_twice(lines: Lines) -> Lines:
    return [
        *lines,
        Effect(6.32, "b", 3, "event-3", "mail", 1, 1, "start"),
        Effect(6.34, "b", 3, "event-3", "mail", 1, 1, "done"),
    ]


def lock_held_by_two(lines: Lines) -> Lines:
    return [
        *lines,
        Holding(1.0, "b", "ledger", 1, 0.9, "start"),
        Holding(3.0, "c", "ledger", 2, 0.9, "start"),
        Holding(3.1, "b", "ledger", 1, 0.9, "end"),
        Holding(3.2, "c", "ledger", 2, 0.9, "end"),
    ]


def lock_fence_used_twice(lines: Lines) -> Lines:
    return [
        *lines,
        Holding(1.0, "b", "ledger", 1, 0.9, "start"),
        Holding(2.0, "b", "ledger", 1, 0.9, "end"),
        Holding(3.0, "c", "ledger", 1, 2.9, "start"),
        Holding(3.2, "c", "ledger", 1, 2.9, "end"),
    ]


MUTATIONS: dict[str, tuple[str, Mutation]] = {
    "an acknowledged event is gone": ("lost", forget_event_3),
    "an event is completed and no handler was done with it": ("lost", never_done),
    "an event is left behind": ("stuck", lambda lines: refinal(lines, 3, status=PENDING)),
    "an event that nobody published": ("phantom", published_by_nobody),
    "two events of one idempotency key": ("phantom", lambda lines: refinal(lines, 3, idempotency_key="once-2")),
    "one event under two ids": ("phantom", lambda lines: refinal(lines, 3, event_id="event-2")),
    "published twice": (
        "phantom",
        lambda lines: in_log(lines, 3, entry(90, 0.1, Action.PUBLISHED, 3, PENDING, 0, 0)),
    ),
    "two ends": (
        "one terminal",
        lambda lines: in_log(lines, 13, entry(90, 6.46, Action.COMPLETED, 3, COMPLETED, 1, 1)),
    ),
    "claimed after its end": (
        "one terminal",
        lambda lines: in_log(lines, 13, entry(90, 6.46, Action.PICKED, 3, PROCESSING, 2, 2)),
    ),
    "taken over without being let go": ("exclusive", lambda lines: without(lines, logged(7))),
    "a fence is used twice": ("exclusive", lambda lines: relogged(lines, 10, fence=1)),
    "one fence for two tokens": ("exclusive", two_tokens),
    "taken before its lease was over": ("exclusive", lambda lines: relogged(lines, 7, at_ts=2.5)),
    "taken before its renewed lease was over": ("exclusive", promised_longer),
    "a handler runs without a claim": (
        "exclusive",
        lambda lines: [*lines, Effect(7.0, "c", 3, "event-3", "mail", 5, 5, "start")],
    ),
    "a handler runs twice under one claim": ("exclusive", ran_twice),
    "a stale completion is accepted": (
        "stale write",
        lambda lines: changed(lines, ok("a#3"), subjects=(Subject(1, what="COMPLETED"),)),
    ),
    "a stale renewal is accepted": ("stale write", stale_renewal_accepted),
    "a refused write is in the log": (
        "stale write",
        lambda lines: changed(lines, ok("b#8"), subjects=(Subject(lost=True),)),
    ),
    "an end under an old fence": ("stale write", lambda lines: relogged(lines, 9, fence=1)),
    "an end that nobody asked for": (
        "stale write",
        lambda lines: without(lines, lambda line: isinstance(line, Invoke | Ok) and line.call == "b#10"),
    ),
    "a settlement is acknowledged and not logged": (
        "stale write",
        lambda lines: [
            *lines,
            settle("b#11", 7.0, "b", Subject(3, None, "t5", 1, "release", delay=0.0)),
            Ok("b#11", 7.1, (Subject(3, what="PENDING"),)),
        ],
    ),
    "more attempts than there may be": ("attempts", lambda lines: refinal(lines, 2, max_attempts=1)),
    "an abandoned event that had no attempt left": ("attempts", lambda lines: refinal(lines, 1, max_attempts=1)),
    "a handler begins more often than there are attempts": (
        "attempts",
        lambda lines: [
            replace(line, claim=replace(line.claim, max_attempts=1))
            if isinstance(line, Invoke) and line.claim is not None
            else line
            for line in lines
        ],
    ),
    "an attempt that is not counted": ("attempts", lambda lines: relogged(lines, 10, attempt=1)),
    "a later event of a key goes first": ("order", key_out_of_order),
    "two events of a key at once": ("order", key_side_by_side),
    "two events of a serial bus at once": ("order", serial_side_by_side),
    "a handler of a serial bus runs without its lock": ("order", serial_without_the_lock),
    "a retry before its time": ("backoff", lambda lines: relogged(lines, 10, at_ts=2.6)),
    "the store counts other attempts than the log": ("log = state", lambda lines: refinal(lines, 3, attempts=2)),
    "the store has another end than the log": ("log = state", lambda lines: relogged(lines, 13, status=PENDING)),
    "an event without a log": (
        "log = state",
        lambda lines: without(lines, lambda line: isinstance(line, Logged) and line.entry.id == 3),
    ),
    "a page leaves an entry out": (
        "cursor",
        lambda lines: changed(lines, ok("r#2"), positions=tuple(str(n) for n in range(5, 14) if n != 7), next="13"),
    ),
    "a page repeats an entry": (
        "cursor",
        lambda lines: changed(lines, ok("r#2"), positions=tuple(str(n) for n in range(4, 14)), next="13"),
    ),
    "a page sends its reader too far": ("cursor", lambda lines: changed(lines, ok("r#1"), next="5")),
    "a page is empty where entries were": ("cursor", lambda lines: changed(lines, ok("r#2"), positions=(), next="4")),
    "a read of the past": (
        "linearizable",
        lambda lines: changed(lines, ok("p#2"), subjects=(Subject(3, "event-3", fence=0, what="PENDING", attempts=0),)),
    ),
    "a claim is refused to its holder": (
        "linearizable",
        lambda lines: changed(lines, ok("b#4"), subjects=(Subject(lost=True),)),
    ),
    "a lock is held by two": ("locks", lock_held_by_two),
    "a fence of a lock is used twice": ("locks", lock_fence_used_twice),
    "handlers overlap and nobody was frozen": ("overlap", nobody_frozen),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_is_flagged_by_its_check(name: str) -> None:
    expected, mutate = MUTATIONS[name]
    found = check(mutate(story()))
    assert expected in {violation.check for violation in found}, [str(violation) for violation in found]

"""The checker flags each way of breaking a promise, by the check that is meant for it."""

from collections.abc import Callable, Iterable

import pytest
from msgspec.structs import replace
from tests.simulation.story import (
    CANCELLED,
    COMPLETED,
    LEASE,
    PENDING,
    PROCESSING,
    claim,
    entry,
    granted,
    settle,
    story,
)

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
    RunSettings,
    StepEffect,
    decode,
    encode,
)
from durabus.testing.history.subjects import Subject

Lines = list[Line]
Mutation = Callable[[Lines], Iterable[Line]]


def test_a_history_that_keeps_every_promise_is_clean() -> None:
    assert check(story()) == []


@pytest.mark.parametrize("first", ["p", "z"])
def test_the_order_of_the_files_of_a_history_does_not_matter(first: str) -> None:
    """A killed process published all events. Later another one published the first of them again."""
    published = next(line for line in story() if isinstance(line, Invoke) and line.call == "p#1")
    again = Invoke("z#1", 6.8, "z", "add_events", published.subjects[:1])
    reply = Ok("z#1", 6.9, (Subject(1, "event-1", fence=2, what="COMPLETED", attempts=2, generation=0),))
    killed = [line for line in without(story(), ok("p#1")) if line is not published]
    files: Lines = [published, again, reply] if first == "p" else [again, reply, published]
    assert check([RunSettings(handlers=("mail",), repeats=True), *files, *killed[1:]]) == []


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


def renewed_beside_its_settlement(lines: Lines) -> Lines:
    """A busy store took the time of the settlement, then renewed the claim, then wrote the settlement."""
    return [
        *lines,
        Invoke("b#20", 5.46, "b", "renew_event_claims", (Subject(2, None, "t4", 2),), None, LEASE),
        Ok("b#20", 5.48, (Subject(expires=7.47),)),
    ]


def renewed_after_its_settlement(lines: Lines) -> Lines:
    return [
        *lines,
        Invoke("b#20", 5.6, "b", "renew_event_claims", (Subject(2, None, "t4", 2),), None, LEASE),
        Ok("b#20", 5.7, (Subject(expires=7.65),)),
    ]


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


def kept(call: str, at: float, host: str, subject: Subject, *, lost: bool = False) -> Lines:
    return [Invoke(call, at, host, "keep_results", (subject,)), Ok(call, at + 0.01, (Subject(lost=lost),))]


def step(at: float, host: str, fence: int, what: str, value: str | None = None) -> StepEffect:
    return StepEffect(at, host, 1, "mail", "charge", fence, what, value)


def success_repeated(lines: Lines) -> Lines:
    return [*lines, *kept("a#8", 1.15, "a", Subject(1, None, "t1", 1, kept=("mail",)))]


def success_of_a_failure_repeated(lines: Lines) -> Lines:
    failed = Subject(2, None, "t2", 1, "fail", delay=1.0, kept=("mail",))
    return changed(lines, lambda line: isinstance(line, Invoke) and line.call == "b#2", subjects=(failed,))


def refused_keep(lines: Lines) -> Lines:
    """What the store refused to keep may be done again."""
    return [*lines, *kept("a#8", 1.15, "a", Subject(1, None, "t1", 1, kept=("mail", "mail > charge")), lost=True)]


def step_computed_again(lines: Lines) -> Lines:
    return [*lines, step(1.1, "a", 1, "computed"), step(1.15, "a", 1, "returned", "x"), step(3.3, "b", 2, "computed")]


def kept_step_computed_again(lines: Lines) -> Lines:
    keep = kept("a#8", 1.15, "a", Subject(1, None, "t1", 1, kept=("mail > charge",)))
    return [*lines, step(1.1, "a", 1, "computed"), *keep, step(3.3, "b", 2, "computed")]


def step_with_two_values(lines: Lines) -> Lines:
    return [*lines, step(1.15, "a", 1, "returned", "x"), step(3.3, "b", 2, "returned", "y")]


def strict_success_repeated(lines: Lines) -> Lines:
    """``a`` was done with ``mail`` and had begun ``ship``; ``b`` runs ``mail`` again."""
    lines = changed(lines, lambda line: isinstance(line, RunSettings), strict=True)
    place = next(place for place, line in enumerate(lines) if isinstance(line, Disturbed))
    begun = [
        Effect(1.12, "a", 1, "event-1", "mail", 1, 1, "done"),
        Effect(1.13, "a", 1, "event-1", "ship", 1, 1, "start"),
    ]
    return [*lines[:place], *begun, *lines[place:]]


def with_children(lines: Lines, *children: str, lost: bool) -> Lines:
    """The success of event 2 carried children."""
    done = Subject(2, None, "t4", 2, "complete", children=children)
    lines = changed(lines, lambda line: isinstance(line, Invoke) and line.call == "b#8", subjects=(done,))
    return changed(lines, ok("b#8"), subjects=(Subject(lost=True),)) if lost else lines


def child_of_a_refused_success(lines: Lines) -> Lines:
    """Event 3 was never published by itself: it came with the success of event 2, which was refused."""
    asked = tuple(Subject(event_id=f"event-{n}", delay=0.0, bus="orders") for n in (1, 2))
    answers = tuple(Subject(n, f"event-{n}", fence=0, what="PENDING", attempts=0) for n in (1, 2))
    lines = changed(lines, lambda line: isinstance(line, Invoke) and line.call == "p#1", subjects=asked)
    return with_children(changed(lines, ok("p#1"), subjects=answers), "event-3", lost=True)


def two_children(lines: Lines) -> Lines:
    lines = changed(lines, lambda line: isinstance(line, RunSettings), one_child=True)
    return refinal(refinal(lines, 2, parent_id="event-1"), 3, parent_id="event-1")


def child_without_success(lines: Lines) -> Lines:
    lines = changed(lines, lambda line: isinstance(line, RunSettings), emitter="ship")
    return refinal(lines, 3, parent_id="event-1")


def cancelled_and_completed(lines: Lines) -> Lines:
    return [
        *lines,
        Invoke("x#1", 6.2, "x", "cancel_event", (Subject(event_id="event-3"),)),
        Ok("x#1", 6.3, (Subject(3, "event-3", fence=2, what="CANCELLED", attempts=1, generation=0),)),
    ]


def cancelled_and_still_running(lines: Lines) -> Lines:
    """The handler of event 3 ends more than a lease after the cancellation of its event."""
    lines = relogged(refinal(lines, 3, status=CANCELLED, fence=2), 13, action=Action.CANCELLED, status=CANCELLED)
    return [*lines, Effect(6.45 + LEASE + 0.1, "b", 3, "event-3", "mail", 1, 1, "done")]


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
    "a settled claim is renewed": ("stale write", renewed_after_its_settlement),
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
    "a success that was kept is repeated": ("results", success_repeated),
    "a success that a failure carried is repeated": ("results", success_of_a_failure_repeated),
    "a step is computed again after it returned": ("steps", step_computed_again),
    "a step is computed again after it was kept": ("steps", kept_step_computed_again),
    "a step returns two values": ("steps", step_with_two_values),
    "a strict success is repeated": ("results", strict_success_repeated),
    "an end does not show its handler": (
        "results",
        lambda lines: changed(lines, lambda line: isinstance(line, RunSettings), shows_results=True),
    ),
    "a child is missing": ("children", lambda lines: with_children(lines, "event-9", lost=False)),
    "a child of a refused success": ("children", child_of_a_refused_success),
    "two children instead of one": ("children", two_children),
    "a child of a handler that never succeeded": ("children", child_without_success),
    "a cancelled event is completed": ("cancelled", cancelled_and_completed),
    "a handler runs on after its event was cancelled": ("cancelled", cancelled_and_still_running),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_is_flagged_by_its_check(name: str) -> None:
    expected, mutate = MUTATIONS[name]
    found = check(mutate(story()))
    assert expected in {violation.check for violation in found}, [str(violation) for violation in found]


def test_what_a_former_holder_could_not_keep_may_be_done_again() -> None:
    assert check(refused_keep(story())) == []


def test_a_claim_may_be_renewed_until_its_settlement_is_answered() -> None:
    assert check(renewed_beside_its_settlement(story())) == []


def test_a_step_that_returns_its_kept_value_is_clean() -> None:
    steps = [step(1.1, "a", 1, "computed"), step(1.15, "a", 1, "returned", "x"), step(3.3, "b", 2, "returned", "x")]
    assert check([*story(), *steps]) == []

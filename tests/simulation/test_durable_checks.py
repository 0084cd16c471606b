"""The checker flags what is wrong with waits, batches, offers, requests, expiry and the presence of processes."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.simulation.story import COMPLETED, story

from durabus.model.claim import MARK, PROCESS_ENDED
from durabus.model.statuses import Action
from durabus.testing.history.checker import check
from durabus.testing.history.history import Final, History, Invoke, Line, Logged, Ok, RunSettings, StepEffect, VerbEnd
from durabus.testing.history.subjects import Subject, WaitAsked

WAIT = WaitAsked("mail > wait_for", "order.placed", (), until=6.0)
NAME = f"{MARK}0123456789a"


def waited(met: str | None, at: float = 6.2, *waits: WaitAsked) -> list[Line]:
    """Event 1 waits for any other event. Events 2 and 3 are stored after it."""
    kept = Invoke("a#9", 1.12, "a", "keep_results", (Subject(1, None, "t1", 1, waits=waits or (WAIT,)),))
    step = StepEffect(at, "b", 1, "mail", "wait_for", 2, "waited", met)
    return [*story(), kept, Ok("a#9", 1.13, (Subject(1),)), step]


def only_event_1(line: Line) -> bool:
    return not isinstance(line, Final) or line.event.id == 1


def never_asked() -> list[Line]:
    return [line for line in waited("event-2") if not (isinstance(line, Invoke | Ok) and line.call == "a#9")]


def two_events() -> list[Line]:
    return [*waited("event-2"), StepEffect(6.3, "b", 1, "mail", "wait_for", 2, "waited", "event-3")]


def success_of_another_event() -> list[Line]:
    """``b`` settles event 3 with the success of a handler that was only done with event 2."""
    settled = Subject(3, None, "t5", 1, "complete", kept=("ship",))
    return [
        replace(line, subjects=(settled,)) if isinstance(line, Invoke) and line.call == "b#10" else line
        for line in story()
    ]


def ended_before_an_offered_handler() -> list[Line]:
    offer = Invoke("b#20", 6.15, "b", "keep_results", (Subject(3, None, "t5", 1, offered=("ship",)),))
    return [*story(), offer, Ok("b#20", 6.16, (Subject(3),))]


def shown(call: str, at: float, host: str) -> list[Line]:
    return [Invoke(call, at, host, "show_presence", (Subject(token=NAME),)), Ok(call, at + 0.01)]


def one_name_for_two() -> list[Line]:
    return [*story(), *shown("a#9", 0.8, "a"), *shown("b#20", 5.0, "b")]


def taken_while_present() -> list[Line]:
    """``a`` holds event 1 under a token of its process, shows its presence, and is taken for dead at once."""
    error = f"{PROCESS_ENDED} (worker a)"
    token = NAME + "t1"
    lines: list[Line] = []
    for line in story():
        if isinstance(line, Ok) and line.call == "a#1":
            line = replace(line, claims=(replace(line.claims[0], token=token.ljust(32, "0")),))  # noqa: PLW2901
        elif isinstance(line, Logged) and line.entry.action is Action.ABANDONED:
            line = Logged(replace(line.entry, error=error))  # noqa: PLW2901
        lines.append(line)
    return [*lines, *shown("a#9", 3.0, "a")]


def requested(value: str | None = None, *, at: float = 7.0, error: str | None = None) -> list[Line]:
    """Event 1 was requested. It has ended COMPLETED at 4.3, and no handler has a value."""
    return [*story(), VerbEnd(at, "p", "request", "event-1", 0.0, value, error)]


def expiring(id_: int, after: float, *, reason: str | None = None) -> list[Line]:
    """The event expires ``after`` its creation. ``reason`` is that of its end."""
    lines: list[Line] = []
    for line in story():
        if isinstance(line, Final) and line.event.id == id_:
            line = Final(replace(line.event, metadata_json=f'{{"expires_after":{after}}}'))  # noqa: PLW2901
        elif isinstance(line, Logged) and (line.entry.id, line.entry.status) == (id_, COMPLETED):
            line = Logged(replace(line.entry, reason=reason))  # noqa: PLW2901
        lines.append(line)
    return lines


def parent_cancelled(at: float) -> list[Line]:
    """Event 1 and its children were cancelled, which took 0.1 s. Its child 3 ended COMPLETED at 6.45."""
    child = [
        Final(replace(line.event, parent_id="event-1")) if isinstance(line, Final) and line.event.id == 3 else line
        for line in story()
    ]
    return [*child, VerbEnd(at + 0.1, "p", "cancel", "event-1", at)]


BROKEN: dict[str, tuple[str, Callable[[], list[Line]]]] = {
    "a wait gets an event that it did not wait for": ("waits", lambda: waited("event-1")),
    "a wait gets the second event": ("waits", lambda: waited("event-3")),
    "a wait is given up although an event had come": ("waits", lambda: waited(None)),
    "a wait is given up too early": ("waits", lambda: [line for line in waited(None, 5.0) if only_event_1(line)]),
    "a wait that no call had stored is over": ("waits", never_asked),
    "a wait ends with two events": ("steps", two_events),
    "a success of another event is stored": ("results", success_of_another_event),
    "an event ends before a handler that was offered": ("results", ended_before_an_offered_handler),
    "a request returns a value that no handler had": ("requests", lambda: requested("7")),
    "a request returns before its event has ended": ("requests", lambda: requested(at=4.0)),
    "a request says that its event has failed": ("requests", lambda: requested(error="EventFailed")),
    "a request says that its event was cancelled": ("requests", lambda: requested(error="EventCancelled")),
    "a request says that no handler ran": ("requests", lambda: requested(error="NoAnswer")),
    "an event is begun after it has expired": ("expired", lambda: expiring(3, 5.0)),
    "an event is cancelled before it expires": ("expired", lambda: expiring(3, 7.0, reason="expired 7 s after")),
    "a child is live after its parent was cancelled with it": ("cancelled", lambda: parent_cancelled(5.0)),
    "two processes have one name": ("presence", one_name_for_two),
    "a process is taken for dead while it shows its presence": ("presence", taken_while_present),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_promise_is_flagged_by_its_check(name: str) -> None:
    expected, lines = BROKEN[name]
    found = check(lines())
    assert expected in {violation.check for violation in found}, [str(violation) for violation in found]


def test_a_wait_that_gets_the_first_event_or_its_timeout_is_clean() -> None:
    other = WaitAsked("mail > wait_for", "order.shipped", (), until=6.0)
    assert check(waited("event-2")) == []
    assert check(waited(None, 6.0, other)) == []


@pytest.mark.parametrize("applied", [True, False])
def test_a_refused_release_has_stored_its_wait_only_if_the_log_has_it(*, applied: bool) -> None:
    """The reply was lost, and the repeat came when another worker had the event."""
    refused = Invoke("a#9", 1.12, "a", "settle_events", (Subject(1, None, "t1", 1, "release", waits=(WAIT,)),))
    entry = next(line.entry for line in story() if isinstance(line, Logged) and line.entry.id == 1)
    action = Action.RELEASED if applied else Action.PICKED
    logged = Logged(replace(entry, action=action, fence=1))
    history = History([refused, Ok("a#9", 3.8, (Subject(lost=True),)), logged])
    assert history.asked_waits == ({1: {WAIT.name: [WAIT]}} if applied else {})


def test_a_claim_that_began_before_its_event_was_stored_is_clean() -> None:
    """On PostgreSQL, the time of a claim is that of the beginning of its transaction."""
    published = next(line.entry for line in story() if isinstance(line, Logged) and line.entry.id == 3)
    lines = [
        replace(line, entry=replace(line.entry, at_ts=published.at_ts - 0.06))
        if isinstance(line, Logged) and (line.entry.id, line.entry.action) == (3, Action.PICKED)
        else line
        for line in story()
    ]
    assert "backoff" not in {violation.check for violation in check(lines)}


def test_what_callers_are_told_and_an_event_that_is_begun_in_time_are_clean() -> None:
    assert check(requested()) == []
    assert check(requested("7", error="TimeoutError")) == []
    assert check(expiring(3, 6.1)) == []
    assert check(parent_cancelled(6.4)) == []


def test_a_batch_goes_on_for_the_events_that_have_not_left_it() -> None:
    """``a`` runs on after ``b`` has taken over event 1, and no process was frozen."""
    lines = [line for line in story() if getattr(line, "what", None) not in ("freeze", "thaw")]
    assert "overlap" in {violation.check for violation in check(lines)}
    batched = [replace(line, batched=("mail",)) if isinstance(line, RunSettings) else line for line in lines]
    assert check(batched) == []

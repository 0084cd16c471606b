"""The check of a serial bus: one claim at a time, however many events it has, and one event at a time in handlers."""

from msgspec.structs import replace
from tests.simulation.story import BUS, COMPLETED, LEASE, PROCESSING, entry, final

from durabus.model.statuses import Action
from durabus.testing.history.claims import serial
from durabus.testing.history.history import Disturbed, Effect, History, Invoke, Line, Logged, Ok
from durabus.testing.history.subjects import ClaimAsked, Subject


def claimed(call: str, at: float, host: str, token: str, *ids: int) -> list[Line]:
    subjects = tuple(Subject(id_, None, token, 1, "PROCESSING", expires=at + LEASE) for id_ in ids)
    asked = ClaimAsked(BUS, token, 2, LEASE, "bus-serial", 4)
    return [Invoke(call, at, host, "claim_next_events", (), asked), Ok(call, at, (), subjects)]


def ran(host: str, id_: int, begin: float, end: float) -> list[Line]:
    return [
        Effect(begin, host, id_, f"event-{id_}", "mail", 1, 1, "start"),
        Effect(end, host, id_, f"event-{id_}", "mail", 1, 1, "done"),
    ]


def batches(*, second: float = 1.3, third: float = 2.1, token: str = "t1") -> list[Line]:
    """Return a history: ``a`` claims events 1 and 2 together, then ``b`` claims 3. ``second``: when 2 begins to run."""
    picked = [entry(4, 1.0, Action.PICKED, 1, PROCESSING, 1, 1), entry(5, 1.0, Action.PICKED, 2, PROCESSING, 1, 1)]
    done = [entry(6, 1.5, Action.COMPLETED, 1, COMPLETED, 1, 1), entry(7, 1.6, Action.COMPLETED, 2, COMPLETED, 1, 1)]
    next_one = entry(8, 2.0, Action.PICKED, 3, PROCESSING, 1, 1)
    return [
        *claimed("a#1", 1.0, "a", "t1", 1),
        *claimed("a#1 again", 1.0, "a", token, 2),
        *claimed("b#1", 2.0, "b", "t2", 3),
        *ran("a", 1, 1.1, 1.2),
        *ran("a", 2, second, max(second, 1.4)),
        *ran("b", 3, third, 2.2),
        *picked,
        *done,
        next_one,
        *(final(id_, fence=1, attempts=1) for id_ in (1, 2, 3)),
    ]


def found(lines: list[Line]) -> list[str]:
    violations = list(serial(History(lines)))
    assert {violation.check for violation in violations} <= {"order"}
    return [violation.text for violation in violations]


def test_one_claim_of_several_events_that_run_one_after_the_other_is_clean() -> None:
    assert found(batches()) == []


def test_two_claims_at_once_are_flagged() -> None:
    (text,) = found(batches(token="t9"))
    assert text.startswith("event 2 is claimed")


def test_the_next_event_of_a_claim_that_begins_early_is_flagged() -> None:
    (text,) = found(batches(second=1.15))
    assert text.startswith("handlers of the serial bus 'orders' overlap: event 1 on a")


def test_a_handler_that_outlives_its_claim_is_flagged_unless_it_was_frozen() -> None:
    late = [replace(line, at=3.0) if isinstance(line, Effect) and line.at == 1.4 else line for line in batches()]
    assert len(found(late)) == 1
    assert found([*late, Disturbed(1.35, "a", "freeze"), Disturbed(2.9, "a", "thaw")]) == []


def test_a_claim_without_a_reply_is_known_by_its_moment() -> None:
    unanswered = [line for line in batches() if not (isinstance(line, Ok) and line.call.startswith("a#1"))]
    assert found(unanswered) == []
    later = [
        replace(line, entry=replace(line.entry, at_ts=1.01))
        if isinstance(line, Logged) and line.entry.position == "5"
        else line
        for line in unanswered
    ]
    assert len(found(later)) == 1


def test_a_handler_that_begins_under_a_claim_without_the_lock_is_flagged() -> None:
    """The fence of a handler that was claimed by itself may be as large as that of a later claim on its event."""
    held = [replace(claimed("b#2", 3.0, "b", "t3", 3)[0], claim=ClaimAsked(BUS, "t3", 1, LEASE, "parallel", 4))]
    held.append(Ok("b#2", 3.0, (), (Subject(3, None, "t3", 2, "PROCESSING", expires=3.0 + LEASE),)))
    begun = Effect(3.1, "b", 3, "event-3", "mail", 2, 1, "start")
    texts = found([*batches(), *held, begun])
    assert "mail of event 3 began on b under a claim without the lock of the serial bus 'orders'" in texts
    texts = found([*batches(), *held, replace(begun, at=2.15)])
    assert not [text for text in texts if "without the lock" in text]

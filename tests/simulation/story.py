"""A small history that keeps every promise, written by hand, for tests that break one promise after the other.

Event 1 is claimed by ``a``, which freezes; ``b`` takes it over and completes it; what ``a`` writes then is refused.
Events 2 and 3 share a key: 2 fails once, waits, is completed; then comes 3. A reader follows the log.
"""

from durabus.model.event import Event
from durabus.model.log_entry import LogEntry
from durabus.model.statuses import Action, EventStatus
from durabus.testing.history.history import Disturbed, Effect, Final, Invoke, Line, Logged, Ok, RunSettings, Unknown
from durabus.testing.history.subjects import ClaimAsked, Subject

LEASE = 2.0
BUS = "orders"
PENDING, PROCESSING, COMPLETED = EventStatus.PENDING, EventStatus.PROCESSING, EventStatus.COMPLETED
CANCELLED = EventStatus.CANCELLED


def entry(  # noqa: PLR0917  (a line of a table)
    position: int,
    at: float,
    action: Action,
    id_: int,
    status: EventStatus,
    fence: int,
    attempt: int,
    *,
    error: str | None = None,
) -> Logged:
    return Logged(
        LogEntry(
            position=str(position),
            action=action,
            id=id_,
            event_id=f"event-{id_}",
            bus=BUS,
            type="order.placed",
            status=status,
            at_ts=at,
            created_ts=0.0,
            attempt=attempt,
            generation=0,
            fence=fence,
            error=error,
        )
    )


def final(id_: int, *, fence: int, attempts: int, errors: tuple[str, ...] = (), key: str | None = None) -> Final:
    return Final(
        Event(
            id=id_,
            event_id=f"event-{id_}",
            bus=BUS,
            type="order.placed",
            payload_json="{}",
            metadata_json=None if key is None else f'{{"ordering_key":"{key}"}}',
            idempotency_key=f"once-{id_}",
            status=COMPLETED,
            attempts=attempts,
            fence=fence,
            errors=errors,
            created_ts=0.0,
            updated_ts=9.0,
            due_ts=0.0,
        )
    )


def claim(call: str, at: float, host: str, token: str) -> Invoke:
    return Invoke(call, at, host, "claim_next_events", (), ClaimAsked(BUS, token, 1, LEASE, "parallel", 4))


def granted(call: str, at: float, id_: int, token: str, fence: int, attempts: int) -> Ok:  # noqa: PLR0917  (as above)
    subject = Subject(
        id_, f"event-{id_}", token, fence, "PROCESSING", expires=at + LEASE, attempts=attempts, generation=0
    )
    return Ok(call, at, (), (subject,))


def settle(call: str, at: float, host: str, subject: Subject) -> Invoke:
    return Invoke(call, at, host, "settle_events", (subject,))


def story() -> list[Line]:
    return [
        RunSettings(handlers=("mail",)),
        Invoke(
            "p#1", 0.0, "p", "add_events", tuple(Subject(event_id=f"event-{n}", delay=0.0, bus=BUS) for n in (1, 2, 3))
        ),
        Ok("p#1", 0.2, tuple(Subject(n, f"event-{n}", fence=0, what="PENDING", attempts=0) for n in (1, 2, 3))),
        claim("a#1", 0.9, "a", "t1"),
        granted("a#1", 1.0, 1, "t1", 1, 1),
        Effect(1.1, "a", 1, "event-1", "mail", 1, 1, "start"),
        Disturbed(1.2, "a", "freeze"),
        claim("b#1", 1.4, "b", "t2"),
        granted("b#1", 1.5, 2, "t2", 1, 1),
        Effect(1.6, "b", 2, "event-2", "mail", 1, 1, "start"),
        Effect(1.7, "b", 2, "event-2", "mail", 1, 1, "raised"),
        settle("b#2", 1.8, "b", Subject(2, None, "t2", 1, "fail", delay=1.0)),
        Ok("b#2", 2.0, (Subject(2, what="PENDING"),)),
        Invoke("r#1", 2.1, "reader", "read_log", after="", limit=4),
        Ok("r#1", 2.2, positions=("1", "2", "3", "4"), next="4"),
        claim("b#3", 3.0, "b", "t3"),
        granted("b#3", 3.1, 1, "t3", 2, 2),
        Effect(3.2, "b", 1, "event-1", "mail", 2, 2, "start"),
        Disturbed(3.3, "a", "thaw"),
        Invoke("a#2", 3.4, "a", "renew_event_claims", (Subject(1, None, "t1", 1),), None, LEASE),
        Ok("a#2", 3.5, (Subject(lost=True),)),
        Effect(3.6, "a", 1, "event-1", "mail", 1, 1, "done"),
        settle("a#3", 3.7, "a", Subject(1, None, "t1", 1, "complete")),
        Ok("a#3", 3.8, (Subject(lost=True),)),
        Invoke("b#4", 3.9, "b", "renew_event_claims", (Subject(1, None, "t3", 2),), None, LEASE),
        Ok("b#4", 4.0, (Subject(expires=5.95),)),
        Effect(4.1, "b", 1, "event-1", "mail", 2, 2, "done"),
        settle("b#5", 4.2, "b", Subject(1, None, "t3", 2, "complete")),
        Unknown("b#5", 4.4, "no reply"),
        settle("b#6", 4.5, "b", Subject(1, None, "t3", 2, "complete")),
        Ok("b#6", 4.6, (Subject(1, what="COMPLETED"),)),
        claim("b#7", 5.0, "b", "t4"),
        granted("b#7", 5.1, 2, "t4", 2, 2),
        Effect(5.2, "b", 2, "event-2", "mail", 2, 2, "start"),
        Effect(5.3, "b", 2, "event-2", "mail", 2, 2, "done"),
        settle("b#8", 5.4, "b", Subject(2, None, "t4", 2, "complete")),
        Ok("b#8", 5.5, (Subject(2, what="COMPLETED"),)),
        claim("b#9", 6.0, "b", "t5"),
        granted("b#9", 6.1, 3, "t5", 1, 1),
        Effect(6.2, "b", 3, "event-3", "mail", 1, 1, "start"),
        Effect(6.3, "b", 3, "event-3", "mail", 1, 1, "done"),
        settle("b#10", 6.4, "b", Subject(3, None, "t5", 1, "complete")),
        Ok("b#10", 6.5, (Subject(3, what="COMPLETED"),)),
        Invoke("p#2", 6.6, "p", "get_event", (Subject(event_id="event-3"),)),
        Ok("p#2", 6.7, (Subject(3, "event-3", fence=1, what="COMPLETED", attempts=1, generation=0),)),
        Invoke("r#2", 7.0, "reader", "read_log", after="4", limit=100),
        Ok("r#2", 7.1, positions=tuple(str(n) for n in range(5, 14)), next="13"),
        entry(1, 0.1, Action.PUBLISHED, 1, PENDING, 0, 0),
        entry(2, 0.1, Action.PUBLISHED, 2, PENDING, 0, 0),
        entry(3, 0.1, Action.PUBLISHED, 3, PENDING, 0, 0),
        entry(4, 1.0, Action.PICKED, 1, PROCESSING, 1, 1),
        entry(5, 1.5, Action.PICKED, 2, PROCESSING, 1, 1),
        entry(6, 1.9, Action.FAILED, 2, PENDING, 1, 1, error="no"),
        entry(7, 3.05, Action.ABANDONED, 1, PENDING, 1, 1, error="lease expired (worker a)"),
        entry(8, 3.05, Action.PICKED, 1, PROCESSING, 2, 2),
        entry(9, 4.3, Action.COMPLETED, 1, COMPLETED, 2, 2),
        entry(10, 5.05, Action.PICKED, 2, PROCESSING, 2, 2),
        entry(11, 5.45, Action.COMPLETED, 2, COMPLETED, 2, 2),
        entry(12, 6.05, Action.PICKED, 3, PROCESSING, 1, 1),
        entry(13, 6.45, Action.COMPLETED, 3, COMPLETED, 1, 1),
        final(1, fence=2, attempts=2, errors=("lease expired (worker a)",)),
        final(2, fence=2, attempts=2, errors=("no",), key="k"),
        final(3, fence=1, attempts=1, key="k"),
    ]

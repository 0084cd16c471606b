"""Late but not overtaken counts: the checker allows exactly that, and nothing more."""

import pytest
from tests.simulation.counts import late_settlements, takeovers
from tests.simulation.story import COMPLETED, LEASE, PENDING, PROCESSING, claim, entry, final, granted, settle

from durabus.model.statuses import Action
from durabus.testing.history.checker import check
from durabus.testing.history.history import Effect, History, Invoke, Line, Ok, RunSettings
from durabus.testing.history.subjects import Subject

LOST = "lease expired (worker a)"


def late(
    *, abandoned: float = 3.1, since: list[Line] | None = None, errors: tuple[str, ...] = (), fence: int = 1
) -> list[Line]:
    """Return a history: ``a`` claims event 1, the store takes it back after the lease, and ``a`` still completes it."""
    return [
        RunSettings(handlers=("mail",)),
        Invoke("p#1", 0.0, "p", "add_events", (Subject(event_id="event-1", delay=0.0, bus="orders"),)),
        Ok("p#1", 0.2, (Subject(1, "event-1", fence=0, what="PENDING", attempts=0),)),
        claim("a#1", 0.9, "a", "t1"),
        granted("a#1", 1.0, 1, "t1", 1, 1),
        Effect(1.1, "a", 1, "event-1", "mail", 1, 1, "start"),
        Effect(3.2, "a", 1, "event-1", "mail", 1, 1, "done"),
        settle("a#2", 3.4, "a", Subject(1, None, "t1", 1, "complete")),
        Ok("a#2", 3.6, (Subject(1, what="COMPLETED"),)),
        entry(1, 0.1, Action.PUBLISHED, 1, PENDING, 0, 0),
        entry(2, 1.0, Action.PICKED, 1, PROCESSING, 1, 1),
        entry(3, abandoned, Action.ABANDONED, 1, PENDING, 1, 1, error=LOST),
        *(since or []),
        entry(9, 3.5, Action.COMPLETED, 1, COMPLETED, 1, 1),
        final(1, fence=fence, attempts=1, errors=errors),
    ]


def test_a_settlement_after_the_abandonment_is_clean() -> None:
    assert check(late()) == []
    known = History(late())
    assert (takeovers(known), late_settlements(known)) == (1, 1)


RENEWED: list[Line] = [
    Invoke("a#9", 3.2, "a", "renew_event_claims", (Subject(1, None, "t1", 1),), None, LEASE),
    Ok("a#9", 3.3, (Subject(expires=5.25),)),
]
MUTATIONS: dict[str, tuple[str, list[Line]]] = {
    "after a newer grant": (
        "stale write",
        late(since=[entry(4, 3.2, Action.PICKED, 1, PROCESSING, 2, 2)], fence=2, errors=(LOST,)),
    ),
    "after another entry": (
        "stale write",
        late(since=[entry(4, 3.2, Action.RELEASED, 1, PENDING, 1, 0)]),
    ),
    "with the error of the abandonment left": ("log = state", late(errors=(LOST,))),
    "abandoned before the lease was over": ("exclusive", late(abandoned=2.5)),
    "renewed after it was abandoned": ("stale write", [*late(), *RENEWED]),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_other_late_settlement_is_flagged(name: str) -> None:
    expected, lines = MUTATIONS[name]
    found = check(lines)
    assert expected in {violation.check for violation in found}, [str(violation) for violation in found]

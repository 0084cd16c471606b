"""Which events a requeue takes."""

from __future__ import annotations

from durabus.errors import NotADeadLetter
from durabus.model.event import Event
from durabus.model.statuses import DEAD_LETTER, LIVE


def check_requeue(ref: int | str, event: Event) -> None:
    """Refuse what is no dead letter, unless the call repeats a requeue whose event has not ended since."""
    is_repeat = event.generation > 0 and event.status in LIVE
    if event.status not in DEAD_LETTER and not is_repeat:
        raise NotADeadLetter(ref, event.status)

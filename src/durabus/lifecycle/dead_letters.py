"""Which events can be requeued."""

from __future__ import annotations

from durabus.errors import NotADeadLetter
from durabus.model.event import Event
from durabus.model.statuses import DEAD_LETTER, LIVE


def check_requeue(ref: int | str, event: Event) -> None:
    """Raise ``NotADeadLetter`` unless the event is one, or the call repeats a requeue and the event has not ended
    since.
    """
    is_repeat = event.generation > 0 and event.status in LIVE
    if event.status not in DEAD_LETTER and not is_repeat:
        raise NotADeadLetter(ref, event.status)

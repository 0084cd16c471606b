"""How a claim ends: completed, failed or released. One batch may mix all three.

A settlement changes its texts, when it is made, into texts that every store can hold. So no store needs its own rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import force_setattr

from durabus.errors import LeaseLost
from durabus.model.claim import ClaimRef
from durabus.model.limits import stored_text, stored_texts
from durabus.model.log_entry import LogEntry
from durabus.model.result import HandlerResult
from durabus.model.statuses import EventStatus

NO_HANDLER = "no handler"
"""The reason of an event that completed, or was released, because no node had a handler for it."""


class Complete(msgspec.Struct, frozen=True, gc=False):
    """Every handler is done. The event becomes COMPLETED, or COMPLETED_WITH_ERRORS.

    It becomes the latter if there are ``errors`` or an UNRECOVERABLE result.
    """

    ref: ClaimRef
    results: tuple[HandlerResult, ...] = ()
    errors: tuple[str, ...] = ()
    execution_time_ms: float | None = None
    status_code: int | None = None
    reason: str | None = None
    """Why the event completed without work, such as "no handler". The log entry carries it."""

    def __post_init__(self) -> None:
        """Change texts into those that every store can hold."""
        if self.errors:
            force_setattr(self, "errors", stored_texts(self.errors))
        if self.reason is not None:
            force_setattr(self, "reason", stored_text(self.reason))


class Fail(msgspec.Struct, frozen=True, gc=False):
    """The attempt failed. The event can be claimed again after ``delay``.

    It becomes FAILED if ``delay`` is None or no attempt is left.
    """

    ref: ClaimRef
    error: str
    delay: float | None
    results: tuple[HandlerResult, ...] = ()
    execution_time_ms: float | None = None
    status_code: int | None = None

    def __post_init__(self) -> None:
        """Change texts into those that every store can hold."""
        force_setattr(self, "error", stored_text(self.error))


class Release(msgspec.Struct, frozen=True, gc=False):
    """Give the event back without costing it an attempt. ``results`` keeps what its handlers did in the meantime."""

    ref: ClaimRef
    delay: float = 0.0
    results: tuple[HandlerResult, ...] = ()
    reason: str | None = None
    """Why the event is given back. The log entry carries it."""

    def __post_init__(self) -> None:
        """Change texts into those that every store can hold."""
        if self.reason is not None:
            force_setattr(self, "reason", stored_text(self.reason))


Settlement = Complete | Fail | Release


class Keep(msgspec.Struct, frozen=True, gc=False):
    """Results of handlers that have ended, while the claim on the event goes on."""

    ref: ClaimRef
    results: tuple[HandlerResult, ...]


class Settled(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a settlement."""

    id: int
    status: EventStatus
    next_retry_ts: float | None = None
    entry: LogEntry | None = None
    """The log entry that the settlement wrote, if the caller asked for it: see ``with_entries``."""


def add_entries(
    outcomes: Sequence[Settled | LeaseLost], settlements: Sequence[Settlement], written: Iterable[LogEntry]
) -> list[Settled | LeaseLost]:
    """Return the outcomes with the entries that the settlements wrote. A claim has one entry, a repeat gets none."""
    entries = {(entry.id, entry.fence): entry for entry in written}
    return [
        msgspec.structs.replace(outcome, entry=entries.pop((one.ref.id, one.ref.fence), None))
        if isinstance(outcome, Settled)
        else outcome
        for one, outcome in zip(settlements, outcomes, strict=True)
    ]

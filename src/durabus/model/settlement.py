"""How a claim ends: completed, failed, released or cancelled. One batch may mix all four.

A settlement changes its texts, when it is made, into texts that every store can hold. So no store needs its own rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import force_setattr

from durabus.errors import LeaseLost
from durabus.model.claim import ClaimRef, HandlerClaim
from durabus.model.event import NewEvent
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
    handler_id: str | None = None
    """The only handler of the event, if it succeeded at its first call and returned no value. Its result appears in
    the log entry only, because a stored result would tell no later claim anything."""
    children: tuple[NewEvent, ...] = ()
    """Events that the same step stores, if the settlement takes effect. ``Fail``, ``Release`` and ``Keep`` have them
    too: they belong to handlers whose success is among the ``results``."""

    def __post_init__(self) -> None:
        """Change texts into those that every store can hold."""
        if self.errors:
            force_setattr(self, "errors", stored_texts(self.errors))
        if self.reason is not None:
            force_setattr(self, "reason", stored_text(self.reason))

    @property
    def is_plain(self) -> bool:
        """Whether it says only which handler succeeded, and how long that took. Stores complete such events in bulk."""
        given = self.results or self.errors or self.children
        return not given and self.status_code is None and self.reason is None


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
    children: tuple[NewEvent, ...] = ()

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
    children: tuple[NewEvent, ...] = ()
    until_children: bool = False
    """The event is due when its last live child has ended, or after ``delay`` at the latest."""

    def __post_init__(self) -> None:
        """Change texts into those that every store can hold."""
        if self.reason is not None:
            force_setattr(self, "reason", stored_text(self.reason))


class Cancel(msgspec.Struct, frozen=True, gc=False):
    """End the event CANCELLED without running its handlers: it expired before the worker could begin it."""

    ref: ClaimRef
    reason: str
    """Why the event is cancelled. The log entry carries it."""
    results: tuple[HandlerResult, ...] = ()

    def __post_init__(self) -> None:
        """Change texts into those that every store can hold."""
        force_setattr(self, "reason", stored_text(self.reason))

    @property
    def children(self) -> tuple[NewEvent, ...]:
        """None: no handler has run."""
        return ()


Settlement = Complete | Fail | Release | Cancel


class Keep(msgspec.Struct, frozen=True, gc=False):
    """Results that are written while the claim on the event, or on one of its handlers, goes on."""

    ref: ClaimRef | HandlerClaim
    results: tuple[HandlerResult, ...]
    children: tuple[NewEvent, ...] = ()

    @property
    def is_news(self) -> bool:
        """Whether workers of other nodes should look: a handler is offered, or one with its own claim has ended."""
        mine = self.ref.handler_id if isinstance(self.ref, HandlerClaim) else None
        return any(result.is_offered or result.handler_id == mine for result in self.results)


class HandlerSettlement(msgspec.Struct, frozen=True, gc=False):
    """How a claim on a handler ends: with an ``outcome``, or without one. Then it is offered again after ``delay``."""

    claim: HandlerClaim
    outcome: HandlerResult | None = None
    delay: float = 0.0


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

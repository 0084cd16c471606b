"""A claimed event: the claim that this process holds, and where the event is on its way through a slot."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from durabus.model.claim import Claim
from durabus.store.contract import EventStore
from durabus.worker.children.children import Child
from durabus.worker.heartbeat import HeldClaim
from durabus.worker.threads import is_in_thread

EventLock = tuple[EventStore, str]
"""The store and the key of the lock that an event of a serial bus holds while it runs."""


class ClaimedEvent(HeldClaim):
    """A claim on its way through a slot."""

    __slots__ = (
        "child_turn",
        "children",
        "claim",
        "held",
        "locks",
        "lost",
        "owed",
        "returning",
        "task",
        "waits_next",
    )

    def __init__(self, claim: Claim, deadline: float) -> None:
        self.ref = claim.ref
        self.deadline = deadline
        self.claim = claim
        self.task: asyncio.Task[None] | None = None
        """The slot's task while the event is inside its handlers, else None: cancelling the task later would stop the
        next event."""
        self.lost = False
        """Another claim may hold the event: the worker writes nothing of this one."""
        self.returning = False
        """The event goes back to the queue, whatever the handler does about its cancellation."""
        self.waits_next = False
        """The event goes back to the queue. The worker then claims it without the lock and keeps it waiting."""
        self.held = False
        """The worker keeps the claim while the event only waits for handlers."""
        self.children: list[Child] | None = None
        """The events that its handlers emitted."""
        self.owed: Sequence[Child] = ()
        """The children that the settlement stores."""
        self.locks: tuple[EventLock, ...] = ()
        """The locks it runs under: its own in a serial mode, and those of the events whose handlers wait for it."""
        self.child_turn: asyncio.Lock | None = None
        """Makes the children that run under its lock run one at a time."""

    @property
    def has_begun(self) -> bool:
        """Whether it is inside its handlers."""
        return self.task is not None

    @property
    def has_no_limit(self) -> bool:
        """Whether it waits for a handler, or a function of it runs in a thread, which nothing can stop."""
        return self.held or is_in_thread(self.claim.event)

    def add_locks(self, locks: tuple[EventLock, ...]) -> None:
        """Let it run under these locks too, because their holder waits for it."""
        self.locks = (*self.locks, *(lock for lock in locks if lock not in self.locks))

    def end_children(self, *, stored: bool) -> None:
        """Report to the children of its settlement whether the store has them."""
        for child in self.owed:
            if stored:
                child.accept()
            elif not child.is_stored:
                child.drop()
        self.owed = ()

    def cancel_as_lost(self) -> None:
        """Stop the event and write nothing of it: another claim may hold it."""
        self.lost = True
        if self.task is not None:
            self.task.cancel()

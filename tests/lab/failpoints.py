"""Places where a process kills itself: right before or right after a call of its store."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any, cast

import msgspec

from durabus import EventStore

VERBS = (
    "add_events",
    "claim_next_events",
    "claim_offered_handlers",
    "keep_results",
    "list_handlers",
    "register_handlers",
    "renew_event_claims",
    "settle_events",
    "settle_handlers",
    "wait_for_work",
)
"""The verbs that a worker of the lab calls."""


class Failpoint(msgspec.Struct, frozen=True):
    """The ``nth`` call of ``verb``, either ``before`` the store sees it or after the store has replied."""

    verb: str
    nth: int
    before: bool

    def __str__(self) -> str:
        return f"{'before' if self.before else 'after'} {self.verb}"


def all_failpoints(nths: tuple[int, ...] = (1, 3)) -> list[Failpoint]:
    return [Failpoint(verb, nth, before) for verb in VERBS for nth in nths for before in (True, False)]


class FailingStore:
    """An ``EventStore`` on top of another one. It kills its process at a failpoint."""

    def __init__(self, store: EventStore, failpoint: Failpoint, dies: Callable[[], None]) -> None:
        self._store = store
        self._failpoint = failpoint
        self._dies = dies
        self._calls = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name != self._failpoint.verb or not asyncio.iscoroutinefunction(found):
            return found

        async def failing(*args: Any, **options: Any) -> Any:
            self._calls += 1
            now = self._calls == self._failpoint.nth
            if now and self._failpoint.before:
                self._die()
            answer = await found(*args, **options)
            if now:
                self._die()
            return answer

        return failing

    def _die(self) -> None:
        self._dies()
        os.kill(os.getpid(), signal.SIGKILL)


def failing_store(store: EventStore, failpoint: Failpoint | None, dies: Callable[[], None]) -> EventStore:
    """Return a failing store. ``dies`` records the moment of death, because others may notice it seconds later."""
    return store if failpoint is None else cast("EventStore", FailingStore(store, failpoint, dies))

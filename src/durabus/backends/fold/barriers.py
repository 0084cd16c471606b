"""Lets readers wait until the replica has all that was acknowledged before they asked."""

from __future__ import annotations

import asyncio

from durabus.backends.fold.callers import Call, Replies
from durabus.backends.fold.transport import BEGINNING, Position, Transport
from durabus.errors import DurabusError, StoreUnavailableError

RETRY_AFTER = 0.1


class Barriers:
    """Those who ask while the broker is asked share the next question. Lives in the node's loop."""

    def __init__(self, transport: Transport, replies: Replies) -> None:
        self._transport = transport
        self._replies = replies
        self._asking: list[Call] = []
        self._asked: list[Call] = []
        """For whom the broker is being asked."""
        self._behind: list[tuple[Position, list[Call]]] = []
        self._reached: Position = BEGINNING
        self.running = False

    @property
    def needed(self) -> bool:
        """Whether ``run`` must be started."""
        return bool(self._asking) and not self.running

    def add(self, call: Call) -> None:
        """Somebody wants to read."""
        self._asking.append(call)

    async def run(self) -> None:
        """Ask where the log ends, for all who wait, until nobody does."""
        try:
            while self._asking:
                self._asked, self._asking = self._asking, []
                try:
                    head = await self._transport.head()
                except StoreUnavailableError:
                    self._asking[:0], self._asked = self._asked, []
                    await asyncio.sleep(RETRY_AFTER)
                    continue
                self._behind.append((head, self._asked))
                self._asked = []
                self.reached(self._reached)
                self._replies.send()
        finally:
            self.running = False

    def reached(self, position: Position) -> None:
        """The replica is here now."""
        self._reached = position
        if not self._behind:
            return
        for head, calls in self._behind:
            if position >= head:
                for call in calls:
                    self._replies.add(call, None)
        self._behind = [(head, calls) for head, calls in self._behind if position < head]

    def give_up_late(self, now: float, error: DurabusError) -> None:
        """Tell those who waited too long."""
        for waiting in self._waiting():
            for call in [call for call in waiting if call.expires < now]:
                waiting.remove(call)
                self._replies.add(call, error)
        self._behind = [(head, calls) for head, calls in self._behind if calls]

    def fail_all(self, error: DurabusError) -> None:
        """Answer everybody with an error."""
        for waiting in self._waiting():
            for call in waiting:
                self._replies.add(call, error)
            waiting.clear()

    def _waiting(self) -> list[list[Call]]:
        """Everybody who has no answer yet."""
        return [self._asking, self._asked, *(calls for _, calls in self._behind)]

"""The process watch shows the store that this process lives, and takes back what processes that have ended hold."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar
from weakref import WeakValueDictionary

from durabus.clock import monotonic
from durabus.errors import StoreClosedError, StoreError
from durabus.model.claim import new_incarnation
from durabus.model.statuses import Takeover
from durabus.store.contract import EventStore
from durabus.store.outage import LATE, SELDOM, Outage
from durabus.worker.heartbeat import heartbeat_loop, in_time

logger = logging.getLogger("durabus.worker")

SHOWN_WITHIN = 1.0
"""Seconds that a worker waits before its first claim: later claims are free when their leases are over."""
STOP_TIMEOUT = 2.0
"""Seconds that a shutdown of the last user waits for a store that does not reply."""
AWAY_TIMEOUT = 0.5
"""Seconds that a shutdown of the last user waits if the store is already known to be away."""
TAKEN_AT_ONCE = 1_000
LONGEST_PAUSE = 10.0

T = TypeVar("T")
HoldsClaims = Callable[[], bool]
"""Returns whether a user of the watch holds claims. The heartbeat thread calls it."""


class ProcessWatch:
    """Runs in the heartbeat thread as long as it has users: workers and held locks of one store object.

    ``incarnation`` is the beginning of tokens. It is empty while the store would not see the end of this process.
    """

    _of_store: ClassVar[WeakValueDictionary[int, ProcessWatch]] = WeakValueDictionary()
    """Maps the identity of a store object to its watch. The object lives as long as the watch."""

    def __init__(self, store: EventStore, *, active: bool = True) -> None:
        self._store = store
        self._active = active and store.features.sees_ended_processes
        self._renewed_every = store.features.presence_renewed_every
        self._gate = threading.Lock()
        self._users: list[HoldsClaims] = []
        self._outage = Outage(logger, "the watch for ended processes fails", first_line=LATE, second_line=SELDOM)
        self.incarnation = ""
        self._name = ""
        self._first_look: Future[None] = Future()
        self._watching: asyncio.Task[None] | None = None
        self._look_at = 0.0

    @classmethod
    def of(cls, store: EventStore, takeover: Takeover = Takeover.PRESENCE) -> ProcessWatch:
        """Return the watch of a store object; with ``lease``, one that never runs."""
        if takeover is Takeover.LEASE:
            return cls(store, active=False)
        return cls._of_store.setdefault(id(store), cls(store))

    def join(self, holds: HoldsClaims) -> None:
        """Add a user. The first one starts the watch, with a new incarnation."""
        if not self._active:
            return
        with self._gate:
            self._users.append(holds)
            if len(self._users) == 1:
                self._name, self._first_look = new_incarnation(), Future()
                self._spawn(self._keep_watching(self._name, self._first_look))

    @contextmanager
    def held_too(self) -> Iterator[None]:
        """Keep the watch running inside the block, as if claims were held, if it runs already."""

        def holds() -> bool:
            return True

        if self.incarnation:
            self.join(holds)
        try:
            yield
        finally:
            self.drop(holds, tell=True)

    async def shown(self) -> None:
        """Wait until the store will see the end of this process, at most a second."""
        if self._users and not self._first_look.done():
            await asyncio.wait({asyncio.wrap_future(self._first_look)}, timeout=SHOWN_WITHIN)

    async def leave(self, holds: HoldsClaims, *, tell: bool = True) -> bool:
        """Remove a user. The last one ends the watch; with ``tell``, it withdraws the presence of this process.

        Returns False if the store did not reply in time: it is away, and nothing should wait for it again.
        """
        ended = self.drop(holds, tell=tell)
        if ended is None:
            return True
        ending = asyncio.wrap_future(ended)
        await asyncio.wait({ending}, timeout=STOP_TIMEOUT if tell else AWAY_TIMEOUT)
        return ending.done() and ending.result()

    def drop(self, holds: HoldsClaims, *, tell: bool = False) -> Future[bool] | None:
        """Remove a user without waiting. Returns the end of the watch if it was the last one.

        Its result is whether the store replied.
        """
        with self._gate:
            if holds not in self._users:
                return None
            self._users.remove(holds)
            if self._users:
                return None
            name, self._name, self.incarnation = self._name, "", ""
            return self._spawn(self._end(name, tell=tell))

    def _spawn(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a task in the heartbeat thread."""
        # An empty context: nothing of the caller's, such as its trace, may live as long as the watch.
        return contextvars.Context().run(asyncio.run_coroutine_threadsafe, work, heartbeat_loop())

    async def _end(self, name: str, *, tell: bool) -> bool:
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.wait({watching}, timeout=STOP_TIMEOUT)
        if not tell:
            return True
        try:
            await in_time(self._store.withdraw_presence(name), STOP_TIMEOUT)
        except StoreError as error:
            logger.debug("the end of this process was not announced: %s", error)
        except TimeoutError:
            logger.debug("the end of this process was not announced: no answer from the store")
            return False
        return True

    async def _keep_watching(self, name: str, first_look: Future[None]) -> None:
        self._watching, self._look_at, shown_at = asyncio.current_task(), 0.0, float("-inf")
        while name == self._name:
            pause = self._renewed_every or LONGEST_PAUSE
            try:
                if self._renewed_every is None or self._must_renew(shown_at):
                    shown_at = monotonic()
                    await self._show(name)
                if monotonic() >= self._look_at:
                    await self._look()
                pause = min(pause, max(self._look_at - monotonic(), 0.0))
                self._outage.answered()
            except StoreClosedError:
                return
            except Exception as error:  # noqa: BLE001  (whatever it was, the watch goes on)
                failed = self._outage.failed(error, unforeseen=not isinstance(error, StoreError))
                pause = min(pause, failed)
            finally:
                if not first_look.done():
                    first_look.set_result(None)
            await asyncio.sleep(pause)

    def _must_renew(self, shown_at: float) -> bool:
        """Whether the presence must be shown again. A claim shows it too, so a process without claims need not."""
        return shown_at == float("-inf") or any(holds() for holds in list(self._users))

    async def _show(self, name: str) -> None:
        shown = await self._store.show_presence(name)
        self.incarnation = name if shown and name == self._name else ""

    async def _look(self) -> None:
        found = await self._store.ended_processes()
        for incarnation in found.incarnations:
            await self._take_back(incarnation)
        self._look_at = monotonic() + found.look_again_in

    async def _take_back(self, incarnation: str) -> None:
        taken = 0
        while True:
            some = await self._store.end_process(incarnation, limit=TAKEN_AT_ONCE)
            taken += some
            if some < TAKEN_AT_ONCE:
                break
        if taken:
            logger.info("a process has ended: %d of its events are back in the queue", taken)

"""The poller decides when the worker claims: after a hint of the store, and at the latest after the poll interval."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from durabus.clock import monotonic
from durabus.errors import StoreClosedError
from durabus.store.contract import EventStore
from durabus.store.outage import Outage

logger = logging.getLogger("durabus.worker")

POLL_FLOOR = 1.0
SHORTEST_POLL = 0.75
"""The least part of the poll interval that a wait for hints lasts."""
HINT_PAUSE = 0.05
IN_VAIN_DOUBLINGS = 2
"""A worker that keeps getting hints of events that it may not claim doubles its pause this many times at most. The
pause stays short, because the event that holds the lock may wait for this worker."""
AT_ONCE = 3
"""Maximum number of idle workers of a bus that claim at once after a shared hint. If there are more, each waits a
random moment first."""
STAGGER = 0.005
"""Seconds by which each further worker makes the longest such wait longer."""
LONGEST_STAGGER = 0.25
"""Maximum seconds of such a wait."""
LOOK = 0.03
"""Seconds that a worker waits for a hint that there is still something to claim."""


class Poller:
    """Tells the worker to claim as long as claims bring full batches; once they do not, it waits for hints.

    ``nodes`` returns how many nodes serve the bus. ``polls`` returns whether to claim after a wait without a hint;
    the wait itself has looked for events that are due. ``first_line`` is the age in seconds at which missing hints are
    first logged.
    """

    def __init__(
        self,
        store: EventStore,
        bus: str,
        *,
        poll_interval: float,
        wake: Callable[[], None],
        nodes: Callable[[], int],
        outage: Outage | None = None,
        polls: Callable[[], bool] = lambda: True,
        first_line: float = 0.0,
    ) -> None:
        self._store = store
        self._bus = bus
        self._polls = polls
        self._poll_interval = poll_interval
        self._wake = wake
        self._nodes = nodes
        self._outage = outage
        self.heard: Callable[[], None] | None = None
        """Called after each hint and each poll."""
        what = f"the store gives no hints of new work, bus {bus!r} is polled"
        self._no_hints = Outage(logger, what, first_line=first_line)
        # It begins with a wait for hints: most buses are empty at the start, and that wait costs less than a claim.
        self._should_look = False
        self._rests = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._hinted = False
        self._hinted_in_vain = False
        self._in_vain = 0
        """The number of hints in a row that came at once and after which a claim brought nothing."""

    @property
    def hinted_in_vain(self) -> bool:
        """Whether the last hint brought no event to claim: it may have been about a handler."""
        return self._hinted_in_vain

    @property
    def should_claim(self) -> bool:
        """Whether there may be something to claim for this worker now."""
        return self._should_look and not self._rests

    def nudge(self) -> None:
        """Let the worker claim: there may be something."""
        self._should_look = True
        self._idle.clear()
        self._wake()

    def on_claimed(self, found: int, limit: int) -> None:
        """A claim brought ``found`` of at most ``limit`` events."""
        self._hinted_in_vain, self._hinted = self._hinted and not found, False
        if found < limit:
            self._should_look = False
            self._idle.set()
        elif not self._should_look:
            self.nudge()  # another claim brought less, but it was sent earlier

    def skip(self) -> None:
        """Do not claim now: there may be work, but not for this worker."""
        self._should_look, self._hinted_in_vain = False, True
        self._idle.set()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Claim nothing inside the block."""
        self._begin_rest()
        try:
            yield
        finally:
            self._end_rest()

    def _begin_rest(self) -> None:
        self._rests += 1

    def _end_rest(self) -> None:
        self._rests -= 1
        self._wake()

    async def listen(self) -> None:
        """Wake the worker after each hint of the store, and at the latest after the poll interval."""
        polled = monotonic()
        while True:
            await self._idle.wait()
            asked = monotonic()
            # Not in step with other workers: one that is always a little later would never get what they give back.
            poll = self._poll_interval * random.uniform(SHORTEST_POLL, 1)
            heard = await self._hint(poll)
            if self.heard is not None:
                self.heard()
            if not heard and not self._polls():
                continue
            # The second hint may fail to come though there is work, as on a slow store: the poll interval still holds.
            if heard and not await self._is_for_us() and monotonic() - polled < poll:
                continue
            at_once = heard and self._hinted_in_vain and monotonic() - asked < HINT_PAUSE
            self._in_vain = self._in_vain + 1 if at_once else 0
            if self._in_vain:
                # There is work that this worker may not claim, such as behind a lock: do not claim in circles.
                doublings = min(self._in_vain - 1, IN_VAIN_DOUBLINGS)
                await asyncio.sleep(HINT_PAUSE * random.uniform(1, 2) * 2.0**doublings)
            self._hinted, polled = heard, monotonic()
            self.nudge()

    async def _is_for_us(self) -> bool:
        """Whether something is left to claim after a pause. The more workers got the same hint, the longer it is."""
        further = self._nodes() - AT_ONCE
        if further <= 0:
            return True
        await asyncio.sleep(random.uniform(0, min(further * STAGGER, LONGEST_STAGGER)))
        return await self._hint(LOOK)

    async def _hint(self, seconds: float) -> bool:
        try:
            heard = await self._store.wait_for_work(self._bus, timeout=seconds)
        except StoreClosedError:
            raise
        except Exception as error:  # noqa: BLE001  (hints may fail in any way; the poll interval still holds)
            if self._outage is None or self._outage.since is None:  # else it has logged that the store fails
                self._no_hints.failed(error)
            await asyncio.sleep(self._poll_interval)
            return False
        self._no_hints.answered()
        return heard

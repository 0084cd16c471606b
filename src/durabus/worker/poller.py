"""Whether there may be something to claim: the store's hints, and the poll floor behind them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from durabus.clock import monotonic
from durabus.errors import StoreClosedError
from durabus.store.contract import EventStore
from durabus.worker.outage import Outage

logger = logging.getLogger("durabus.worker")

POLL_FLOOR = 1.0
SHORTEST_POLL = 0.75
"""The part of the poll interval that a wait for hints lasts at least."""
HINT_PAUSE = 0.05
IN_VAIN_DOUBLINGS = 2
"""A worker that keeps hearing of what it may not have pauses longer each time. But not long: an event under that lock
may wait for it."""
REST_BEFORE = 0.9
"""The part of the delay of an event for another node after which this one rests: their clocks may differ a little."""
LONGEST_REST = 1.0
AT_ONCE = 3
"""So many idle workers of a bus may ask for what a hint told all of them; if there are more, they take turns."""
TURN = 0.005
LONGEST_TURN = 0.25
LOOK = 0.03
"""How long a look may take whether there is still something to be had."""


class Poller:
    """A worker asks as long as it is hungry, and listens for hints once it is not.

    ``nodes`` tells how many serve the bus.
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
    ) -> None:
        self._store = store
        self._bus = bus
        self._poll_interval = poll_interval
        self._wake = wake
        self._nodes = nodes
        self._outage = outage
        self._no_hints = Outage(logger, f"the store gives no hints of new work, bus {bus!r} is polled")
        # It begins with a look: most buses have nothing when they start, and a look costs less than a claim.
        self._hungry = False
        self._rests = 0
        self._sated = asyncio.Event()
        self._sated.set()
        self._hinted = False
        self._hinted_in_vain = False
        self._in_vain = 0
        """How many hints in a row came at once and brought nothing."""

    @property
    def hungry(self) -> bool:
        """Whether there may be something to claim for this worker."""
        return self._hungry and not self._rests

    def nudge(self) -> None:
        """There may be something to claim."""
        self._hungry = True
        self._sated.clear()
        self._wake()

    def ate(self, found: int, limit: int) -> None:
        """A claim brought ``found`` of at most ``limit`` events."""
        self._hinted_in_vain, self._hinted = self._hinted and not found, False
        if found < limit:
            self._hungry = False
            self._sated.set()
        elif not self._hungry:
            self.nudge()  # another claim found less, but that was earlier

    def leave_it(self) -> None:
        """There may be work, but not for this worker now."""
        self._hungry, self._hinted_in_vain = False, True
        self._sated.set()

    def rest(self, delay: float) -> None:
        """An event went back for a handler of another node, and is due again after ``delay`` seconds.

        When it is due, that node claims first. Otherwise the one whose clock runs slightly ahead would win every race.
        """
        loop = asyncio.get_running_loop()
        seconds = min(delay, LONGEST_REST) * random.uniform(1, 2)
        loop.call_later(delay * REST_BEFORE, self._begin_rest)
        loop.call_later(delay + seconds, self._end_rest)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Claim nothing meanwhile."""
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
        """Turn the store's hints into wake-ups; without any, wake at the poll floor."""
        polled = monotonic()
        while True:
            await self._sated.wait()
            asked = monotonic()
            # Not in step with others: whoever is always a little later would never get what the others give back.
            poll = self._poll_interval * random.uniform(SHORTEST_POLL, 1)
            heard = await self._hint(poll)
            # The look may be in vain though there is work, as on a store that answers late: the poll floor stands.
            if heard and not await self._is_for_us() and monotonic() - polled < poll:
                continue
            at_once = heard and self._hinted_in_vain and monotonic() - asked < HINT_PAUSE
            self._in_vain = self._in_vain + 1 if at_once else 0
            if self._in_vain:
                # There is work that this worker may not have, such as behind a lock: do not ask in circles.
                doublings = min(self._in_vain - 1, IN_VAIN_DOUBLINGS)
                await asyncio.sleep(HINT_PAUSE * random.uniform(1, 2) * 2.0**doublings)
            self._hinted, polled = heard, monotonic()
            self.nudge()

    async def _is_for_us(self) -> bool:
        """Whether something is left after a while that is the longer, the more workers heard the same hint."""
        turns = self._nodes() - AT_ONCE
        if turns <= 0:
            return True
        await asyncio.sleep(random.uniform(0, min(turns * TURN, LONGEST_TURN)))
        return await self._hint(LOOK)

    async def _hint(self, seconds: float) -> bool:
        try:
            heard = await self._store.wait_for_work(self._bus, timeout=seconds)
        except StoreClosedError:
            raise
        except Exception as error:  # noqa: BLE001  (hints may fail in any way; the poll floor stands behind them)
            if self._outage is None or self._outage.since is None:  # else it is told already that the store fails
                self._no_hints.failed(error)
            await asyncio.sleep(self._poll_interval)
            return False
        self._no_hints.answered()
        return heard

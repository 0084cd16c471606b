"""How many events a worker of a serial bus takes under one lock."""

from __future__ import annotations

from durabus.clock import monotonic

QUICK = 0.05
"""Seconds that all handlers of a batch may take: so long it keeps other nodes, and larger priorities, waiting."""
OVERDUE = 4 * QUICK
"""Then the rest of the batch goes back to the queue."""


class SerialBatch:
    """Grows while batches are quick, and shrinks at once when one is not: long handlers get their events one by one.

    So does a handler that waits for other events: what waits behind it goes back, because one of them may be what it
    waits for, here or on another node.
    """

    def __init__(self, most: int) -> None:
        self.size = 1
        self._most = most
        self._began = 0.0
        self._ran: int | None = None
        """How many of the present batch did; None between batches."""
        self._may_grow = False

    def begin(self, count: int) -> None:
        """So many events were claimed and begin."""
        self._began, self._ran, self._may_grow = monotonic(), 0, count >= self.size

    @property
    def is_overdue(self) -> bool:
        """Whether its events take so long that the rest of them should not wait for their turn here."""
        return monotonic() - self._began > OVERDUE

    def one_ran(self) -> None:
        """One of them is done."""
        if self._ran is not None:
            self._ran += 1

    def wait(self) -> None:
        """One of its handlers waits for another event."""
        self.size, self._may_grow = 1, False

    def end(self) -> None:
        """All of them are done, or went back."""
        if self._ran is None:
            return
        took, ran, self._ran = monotonic() - self._began, self._ran, None
        if took > QUICK:
            self.size = min(self.size, max(1, int(ran * QUICK / took)))
        elif self._may_grow:
            self.size = min(2 * self.size, self._most)

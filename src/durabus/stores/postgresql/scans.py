"""Where in the queue claims begin to look.

A row that was claimed stays in the index as a dead entry until PostgreSQL may clean it up, and a transaction that
somebody keeps open forbids that. Then each claim would walk past everything that was claimed meanwhile. So a store
object remembers how far it has come; under load, when claims find all they ask for, it looks everywhere only now and
then.
"""

from __future__ import annotations

import msgspec

from durabus.clock import monotonic
from durabus.model.claim import Claim, ClaimRequest

SHARE = 20
"""Under load, looking everywhere is done once in so many times as long as it took..."""
POSTPONED_AT_MOST = 1.0
"""... but after so many seconds at the latest: whoever lost a claim, or became due, waits for such a look."""
_REMEMBERED_BUSES = 10_000


class Scan(msgspec.Struct, frozen=True):
    """Where in the queue a claim begins to look. Everything before ``floor`` was seen claimed already."""

    floor: int = 0
    thorough: bool = True
    """Look for leases that are over, events that became due and events below the floor, even if the claim is full."""


WHOLE = Scan()


class Scans:
    """One for each store object. ``always_whole`` is for tests, whose clock stands still."""

    def __init__(self, *, always_whole: bool) -> None:
        self._always_whole = always_whole
        self._floors: dict[str, int] = {}
        self._whole_again: dict[str, float] = {}

    def begin(self, request: ClaimRequest) -> tuple[Scan, float]:
        """How to look this time, and when it began."""
        began = monotonic()
        if self._always_whole or began >= self._whole_again.get(request.bus, 0.0):
            return WHOLE, began
        return Scan(self._floors.get(request.bus, 0), thorough=False), began

    def end(self, request: ClaimRequest, scan: Scan, began: float, claims: list[Claim]) -> None:
        """Learn from how long it took, and from where the claims were."""
        if len(self._floors) > _REMEMBERED_BUSES:
            self._floors.clear()
            self._whole_again.clear()
        if len(claims) < request.limit:
            self._whole_again.pop(request.bus, None)  # it looked everywhere, by itself if it was not told to
        elif scan.thorough:
            now = monotonic()
            self._whole_again[request.bus] = now + min(SHARE * (now - began), POSTPONED_AT_MOST)
        if claims:
            last = claims[-1].event
            # Only what was never claimed, delayed or preferred is in the lane that has a floor; claims are in order.
            if last.fence == 1 and last.priority == 0 and last.due_ts == last.created_ts:
                self._floors[request.bus] = last.id

"""Where in the queue a claim begins its scan.

A claimed row stays in the index as a dead entry until vacuum removes it, and an open transaction blocks vacuum. Then
each claim would walk past everything that was claimed meanwhile. So a store object remembers the last id that it has
claimed and begins there. Under load, when claims get all the events they ask for, it scans the whole queue only now and
then.
"""

from __future__ import annotations

import msgspec

from durabus.clock import monotonic
from durabus.model.claim import Claim, ClaimRequest

SHARE = 20
"""Under load, the next whole scan follows after this many times its duration..."""
POSTPONED_AT_MOST = 1.0
"""... but after this many seconds at the latest: expired and newly due events wait for a whole scan."""
_REMEMBERED_BUSES = 10_000


class Scan(msgspec.Struct, frozen=True):
    """Where in the queue a claim begins its scan. Every event up to ``floor`` was claimed already."""

    floor: int = 0
    thorough: bool = True
    """Also look for expired leases, newly due events and events below the floor, even if the claim is full."""


WHOLE = Scan()


class Scans:
    """Chooses the scan of each claim of a store object. ``always_whole`` is for tests with a manual clock."""

    def __init__(self, *, always_whole: bool) -> None:
        self._always_whole = always_whole
        self._floors: dict[str, int] = {}
        self._whole_again: dict[str, float] = {}

    def begin(self, request: ClaimRequest) -> tuple[Scan, float]:
        """Return the scan for a claim, and the instant at which it begins."""
        began = monotonic()
        if self._always_whole or began >= self._whole_again.get(request.bus, 0.0):
            return WHOLE, began
        return Scan(self._floors.get(request.bus, 0), thorough=False), began

    def end(self, request: ClaimRequest, scan: Scan, began: float, claims: list[Claim]) -> None:
        """Remember how long the scan took and which id it reached."""
        if len(self._floors) > _REMEMBERED_BUSES:
            self._floors.clear()
            self._whole_again.clear()
        if len(claims) < request.limit:
            self._whole_again.pop(request.bus, None)  # a claim that is not full has scanned the whole queue
        elif scan.thorough:
            now = monotonic()
            self._whole_again[request.bus] = now + min(SHARE * (now - began), POSTPONED_AT_MOST)
        if claims:
            last = claims[-1].event
            # Only lane 1 has a floor: events of priority 0 that were never claimed or delayed. Claims are in order.
            if last.fence == 1 and last.priority == 0 and last.due_ts == last.created_ts:
                self._floors[request.bus] = last.id

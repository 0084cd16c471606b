"""How many wrong tokens a peer may send.

Only the answer to a wrong token changes, so nobody with a valid one suffers from who shares an address. The answer
comes at once: a server that makes guessers wait would hold a connection for each of them.
"""

from __future__ import annotations

from collections.abc import Callable

from durabus.clock import monotonic
from durabus.server.peers import network

ALLOWED = 60
"""Wrong tokens at once; then one a second."""
KEPT_PEERS = 10_000


class WrongTokens:
    """A bucket for each peer that fills with wrong tokens and leaks one a second."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._buckets: dict[str, tuple[float, float]] = {}

    def too_many(self, host: str) -> bool:
        """Count a wrong token; whether this peer has sent too many."""
        peer, now = network(host), self._now()
        level, since = self._buckets.pop(peer, (0.0, now))
        level = max(level - (now - since), 0.0) + 1
        self._buckets[peer] = (min(level, ALLOWED + 1.0), now)  # last, so that the first is the one longest unheard of
        if len(self._buckets) > KEPT_PEERS:
            del self._buckets[next(iter(self._buckets))]
        return level > ALLOWED

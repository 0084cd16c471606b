"""durabus itself, on Redis."""

from __future__ import annotations

from benchmarks.peers.durabus import Durabus


class DurabusOnRedis(Durabus):
    unfinished = (
        "for _, name in ipairs({'ready', 'delayed', 'blocked', 'leases'}) do "
        "if redis.call('ZCARD', '{durabus}:events:' .. name) > 0 then return 1 end end return 0"
    )


PEER = DurabusOnRedis()

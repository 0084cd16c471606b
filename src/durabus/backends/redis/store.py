"""The Redis store, put together from its parts."""

from __future__ import annotations

from durabus.backends.redis.address import parse_url
from durabus.backends.redis.claims import RedisClaims
from durabus.backends.redis.dead_letters import RedisDeadLetters
from durabus.backends.redis.events import RedisEvents
from durabus.backends.redis.locks import RedisLocks
from durabus.backends.redis.log import RedisLog
from durabus.backends.redis.registrations import RedisRegistrations
from durabus.backends.redis.results import RedisResults
from durabus.clock import Clock


class RedisStore(RedisRegistrations, RedisEvents, RedisClaims, RedisResults, RedisLocks, RedisLog, RedisDeadLetters):
    """One Redis or Valkey server, or one slot of a cluster, shared by any number of processes and hosts."""

    @classmethod
    def from_url(cls, url: str, clock: Clock | None = None) -> RedisStore:
        """The store behind ``redis://host:port/database``, not opened yet."""
        return cls(parse_url(url), clock)

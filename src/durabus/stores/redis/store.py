"""The Redis store, put together from its parts."""

from __future__ import annotations

from durabus.clock import Clock
from durabus.stores.redis.claims import RedisClaims
from durabus.stores.redis.connection import parse_url
from durabus.stores.redis.dead_letters import RedisDeadLetters
from durabus.stores.redis.events import RedisEvents
from durabus.stores.redis.locks import RedisLocks
from durabus.stores.redis.log import RedisLog
from durabus.stores.redis.registrations import RedisRegistrations
from durabus.stores.redis.results import RedisResults


class RedisStore(RedisRegistrations, RedisEvents, RedisClaims, RedisResults, RedisLocks, RedisLog, RedisDeadLetters):
    """One Redis or Valkey server, or one slot of a cluster, shared by any number of processes and hosts."""

    @classmethod
    def from_url(cls, url: str, clock: Clock | None = None) -> RedisStore:
        """Return the store for ``redis://host:port/database``. It is not open yet."""
        return cls(parse_url(url), clock)

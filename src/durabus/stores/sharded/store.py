"""The sharded store: several stores under one contract."""

from __future__ import annotations

from durabus.clock import Clock
from durabus.stores.sharded.claims import ShardedClaims
from durabus.stores.sharded.events import ShardedEvents
from durabus.stores.sharded.log import ShardedLog
from durabus.stores.sharded.registrations import ShardedRegistrations


class ShardedStore(ShardedEvents, ShardedClaims, ShardedLog, ShardedRegistrations):
    """An event is on shard ``event_id % N``, and so is everything about it.

    Of the contract then

    - holds as on one store: claims, leases, fences and locks; everything about one event; ``event_id`` names one event;
      filters, pages, totals and counts; an exact repeat of a call takes effect once.
    - holds among the events of one shard only (``one_order=False``): ids that follow the order of publishing, the
      order of claims, commit order of the log, batches that are stored, requeued or settled all or none, "oldest first"
      of a purge or trim with a limit. A batch that spans shards and fails half-way raises; a repeat does the rest.
    - is refused with ``UnsupportedByStore``: the serial modes, ordering keys, idempotency keys, caller transactions.

    A position of the log is a vector: where each shard's log was. Following it gives every entry once, and those of one
    event in their order; entries of different shards come by time as far as they can be read at that moment, so two
    readers may see them in different order. Leases are judged by the clock of the event's shard, ``now`` is the first
    one's. ``counts`` and lists are sums over shards read at nearly the same moment. While a shard is down its events
    wait, and calls that need it raise (lists, counts, the log, registrations); the events of the others are claimed and
    settled as ever.
    """

    @classmethod
    def from_url(cls, url: str, clock: Clock | None = None) -> ShardedStore:
        """The store behind ``sharded://…|…``. How many shards there are, and their order, is for ever."""
        return cls(cls.shards_from_url(url, clock))

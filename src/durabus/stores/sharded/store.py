"""The sharded store: its parts as one class."""

from __future__ import annotations

from durabus.clock import Clock
from durabus.stores.sharded.claims import ShardedClaims
from durabus.stores.sharded.events import ShardedEvents
from durabus.stores.sharded.log import ShardedLog
from durabus.stores.sharded.registrations import ShardedRegistrations


class ShardedStore(ShardedEvents, ShardedClaims, ShardedLog, ShardedRegistrations):
    """Several stores as one. An event and everything about it is on shard ``event_id % N``.

    Of the contract

    - these hold as on one store: claims, leases, fences and locks; everything about one event; one event for each
      ``event_id``; filters, pages, totals and counts; an exact repeat of a call takes effect once.
    - these hold only among the events of one shard (``one_order=False``): ids in the order of publishing, the order of
      claims, commit order of the log, batches that are stored, requeued or settled all or none, "oldest first" of a
      purge or trim with a limit. A batch that spans shards and fails half-way raises; a repeat does the rest.
    - these raise ``UnsupportedByStore``: the serial modes, ordering keys, idempotency keys, caller transactions.

    A position of the log is a vector of the positions of all shards. A reader gets every entry once, and those of one
    event in their order. Entries of different shards come by time as far as they can be read at that moment, so two
    readers may see them in different order. The clock of the event's shard decides leases; ``now`` is that of the first
    shard. ``counts`` and lists are sums over shards that are read at nearly the same moment. While a shard is down, its
    events wait, and calls that need it raise (lists, counts, the log, registrations). Workers still claim and settle
    the events of the other shards.
    """

    @classmethod
    def from_url(cls, url: str, clock: Clock | None = None) -> ShardedStore:
        """Return the store of ``sharded://…|…``. The number and order of its shards can never change."""
        return cls(cls.shards_from_url(url, clock))

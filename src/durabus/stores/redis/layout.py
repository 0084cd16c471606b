"""The keys of the Redis store, drawn.

::

    publish ──> ┌──────────────────────────────────┐  claim   ┌──────────────────┐
                │ ready     bus 0 priority id      │ ───────> │ leases           │ bus 0 expiry id
                │ ready_tags bus 0 tag 0 priority… │ <─────── │ held  token -> ids (the repeat of a claim)
                │ delayed   bus 0 due id           │  return  └──────────────────┘
                └──────────────────────────────────┘                  │ settle
                                  ^                                   v
                                  │ requeue        ┌──────────────────────────────────────────┐
                                  └─────────────── │ dead, dead_by_bus   (bus 0) created id   │
                                                   │ counts              status (0 bus) -> n  │
                                                   └──────────────────────────────────────────┘
    events:fronts   bus 0 ordering key -> id of the one live event that may be ready, delayed or leased
    events:blocked  bus 0 ordering key 0 id, of those behind it: no claim looks at them
    events:state   id -> what changes: status, claim, times, errors, positions of its log entries, last settlement
    events:data    id -> what does not: when it was created, and what the publisher said, the payload last
    events:order   all ids;  events:by_bus   bus 0 id      find, trim
    events:ids     event_id -> id;  events:idempotency_keys   bus 0 key -> id      publishing twice stores one
    event_results:data   id -> its handlers, only where one left news;  event_results:done   what cleanup_results takes

    event_log            a stream: position-0 -> id, transition. Written in the same step as what it tells of.
    event_log:blocks     thousand positions -> how many entries are left there: counting without reading
    event_log:orphans    id -> data, of purged and removed events whose entries stay; :trails, :order   their positions

    locks:data   key -> fence, worker, token, expiry …;  locks:order   held keys;  locks:ends   when to forget one
    event_buses:data, :order, :stopped      event_handlers:data   bus -> what its nodes announced      positions
    meta         schema, and the counts of ids, positions, lock fences and revisions. Never delete it.
    hints:BUS    a channel (sharded): something on that bus may be claimed. hints: alone speaks to all buses.

Every key is one key for the whole store: the number of keys does not grow with buses or events. What belongs to one bus
is a range of an index ordered by bytes. All keys carry the prefix as their hash tag, ``{durabus}:…``, so on a cluster
they share one slot: ids, log positions and the global lock count for all buses, and settling, logging and claiming are
one step, which only one slot allows. A store that outgrows a node becomes two stores with two prefixes.

A record is a MessagePack array. ``functions/`` holds one Lua file for each verb and, under ``shared/``, what they
share; ``library`` makes them one function library, named after its content, so that two versions of durabus can be at
work on one server.
"""

from __future__ import annotations

SCHEMA = "2"
OLDER_SCHEMAS = ("1",)
"""They know fewer keys, and their records are good as they are: opening a store marks it as the newer one."""

KEYS = {
    "META": "meta",
    "STATE": "events:state",
    "DATA": "events:data",
    "ORDER": "events:order",
    "BY_BUS": "events:by_bus",
    "IDS": "events:ids",
    "IDEMPOTENCY": "events:idempotency_keys",
    "READY": "events:ready",
    "READY_TAGS": "events:ready_tags",
    "DELAYED": "events:delayed",
    "LEASES": "events:leases",
    "FRONTS": "events:fronts",
    "BLOCKED": "events:blocked",
    "HELD": "events:held",
    "DEAD_LETTERS": "events:dead",
    "DEAD_BY_BUS": "events:dead_by_bus",
    "COUNTS": "events:counts",
    "RESULTS": "event_results:data",
    "RESULTS_DONE": "event_results:done",
    "LOG": "event_log",
    "LOG_BLOCKS": "event_log:blocks",
    "ORPHANS": "event_log:orphans",
    "ORPHAN_TRAILS": "event_log:orphans:trails",
    "ORPHAN_ORDER": "event_log:orphans:order",
    "LOCKS": "locks:data",
    "LOCK_ORDER": "locks:order",
    "LOCK_ENDS": "locks:ends",
    "POSITIONS": "positions",
    "BUSES": "event_buses:data",
    "BUS_ORDER": "event_buses:order",
    "STOPPED": "event_buses:stopped",
    "BUS_HANDLERS": "event_handlers:data",
    "HINTS": "hints:",
}
"""What Lua calls a key, and its name after the prefix, in the order in which every function is given them."""

TYPES = {
    "event_log": "stream",
    **dict.fromkeys(
        [
            "events:order",
            "events:by_bus",
            "events:ready",
            "events:ready_tags",
            "events:delayed",
            "events:leases",
            "events:blocked",
            "events:dead",
            "events:dead_by_bus",
            "event_results:done",
            "event_log:orphans:order",
            "locks:order",
            "locks:ends",
            "event_buses:order",
            "event_buses:stopped",
        ],
        "zset",
    ),
}
"""The Redis type of a key, where it is not a hash."""


def key_names(prefix: str) -> list[str]:
    """All keys of a store, in the order of ``KEYS``. The braces make the prefix their hash tag."""
    return [f"{{{prefix}}}:{name}" for name in KEYS.values()]

"""A drawing of the keys of the Redis store.

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
    events:blocked  bus 0 ordering key 0 id of the events behind it: no claim looks at them
    events:children  event_id of a parent -> number of its live children
    events:waiting   event_id of a parent -> its id and fence, if it was released until its children have ended
    events:state   id -> fields that change: status, claim, times, errors, positions of log entries, last settlement
    events:data    id -> fields that do not change: creation time, what the publisher gave, and the payload at the end
    events:order   all ids;  events:by_bus   bus 0 id      for find and trim
    events:ids     event_id -> id;  events:idempotency_keys   bus 0 key -> id      publishing twice stores one event
    event_results:data   id 0 place -> result of a handler or step;  id 1 handler id -> its place, from 1 upwards
    event_results:done   ids for cleanup_results
    event_results:waits  bus, type, names of fields, values, id and result of each wait
    event_results:offered   bus 0 handler id 0 expiry id: handlers that are offered or claimed
                            1 token 0 handler id 0 id: claims
                            2 lock 0 expiry id handler id: claims that were made under the lock of a serial mode

    event_log            a stream: position-0 -> id, transition. Written in the same step as the transition.
    event_log:blocks     block of 1,000 positions -> number of its entries, to count without reading
    event_log:deleted    id -> data of purged and removed events whose entries stay; :trails, :order   their positions

    locks:data   key -> fence, worker, token, expiry …;  locks:order   held keys;  locks:ends   when to delete a lock
    event_buses:data, :order, :stopped      event_handlers:data   bus -> what its nodes registered      positions
    processes    incarnation -> when the process last claimed something or showed its presence
    meta         schema, and the counters of ids, positions, lock fences and revisions. Never delete it.
    hints:BUS    a channel (sharded): something on that bus may be claimed. hints: alone is for all buses.

The whole store uses one key of each kind: the number of keys does not grow with buses or events. The part of one bus is
a range of an index that is ordered by bytes. All keys carry the prefix as their hash tag, ``{durabus}:…``, so on a
cluster they share one slot. They must: ids, log positions and the global lock are shared by all buses, and settling,
logging and claiming are one step, which Redis allows within one slot only. A store that outgrows one node must be
divided into two stores with two prefixes.

A record is a MessagePack array. ``functions/`` holds one Lua file for each verb; ``functions/shared/`` holds the parts
that they share. ``library`` joins them into one function library whose name depends on its content, so that two
versions of durabus can use one server.
"""

from __future__ import annotations

SCHEMA = "3"

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
    "CHILDREN": "events:children",
    "WAITING": "events:waiting",
    "DEAD_LETTERS": "events:dead",
    "DEAD_BY_BUS": "events:dead_by_bus",
    "COUNTS": "events:counts",
    "RESULTS": "event_results:data",
    "RESULTS_DONE": "event_results:done",
    "WAITS": "event_results:waits",
    "OFFERED": "event_results:offered",
    "LOG": "event_log",
    "LOG_BLOCKS": "event_log:blocks",
    "DELETED": "event_log:deleted",
    "DELETED_TRAILS": "event_log:deleted:trails",
    "DELETED_ORDER": "event_log:deleted:order",
    "LOCKS": "locks:data",
    "LOCK_ORDER": "locks:order",
    "LOCK_ENDS": "locks:ends",
    "POSITIONS": "positions",
    "BUSES": "event_buses:data",
    "BUS_ORDER": "event_buses:order",
    "STOPPED": "event_buses:stopped",
    "BUS_HANDLERS": "event_handlers:data",
    "PROCESSES": "processes",
    "HINTS": "hints:",
}
"""The name of each key in Lua, and its name after the prefix, in the order in which every function gets them."""

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
            "event_results:waits",
            "event_results:offered",
            "event_log:deleted:order",
            "locks:order",
            "locks:ends",
            "event_buses:order",
            "event_buses:stopped",
            "processes",
        ],
        "zset",
    ),
}
"""The Redis type of a key, where it is not a hash."""


def key_names(prefix: str) -> list[str]:
    """Return all keys of a store, in the order of ``KEYS``. The braces make the prefix their hash tag."""
    return [f"{{{prefix}}}:{name}" for name in KEYS.values()]

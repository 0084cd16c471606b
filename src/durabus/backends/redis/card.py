"""What the Redis store promises."""

from durabus.store.guarantees import Card

CARD = Card(
    title="Redis and Valkey",
    durability=(
        "in the server's memory, and in its append-only file as `appendfsync` says: always, within a second, or "
        "whenever."
    ),
    lost=(
        "with `appendonly yes`: nothing by kill -9 of the server, up to a second by a power cut with `everysec`, "
        "nothing with `always`. A failover may take the newest writes, because replication is asynchronous; fences "
        "then may repeat. Without the append-only file a restart loses all since the last dump."
    ),
    order="claims by priority, then by id. The log is a stream: the order in which the functions ran.",
    unknown_outcome=(
        "the call is made again until `timeout`, and takes effect once; then `StoreUnavailableError`: repeat it."
    ),
    clock="the server's, never backwards.",
    wake_up="pub/sub, with the worker's poll behind it.",
    limits="all data in memory and in one hash slot; `maxmemory-policy` must be `noeviction`; trim the history.",
    not_for="what must survive a failover without loss, caller transactions, histories larger than memory.",
)

"""What the sharded store promises."""

from durabus.store.guarantees import Card

CARD = Card(
    title="sharded",
    durability="where the event's shard keeps it: see the shards' own cards. Shard = `event_id % N` = `id % N`.",
    lost=(
        "what its shards lose. While a shard is down its events wait and lists and counts raise; the events of the "
        "others are worked on."
    ),
    order=(
        "of ids, claims and log only among the events of one shard. A position of the log is a vector of all shards'; "
        "following it gives every entry once, those of one event in order, others by time as far as they can be read."
    ),
    unknown_outcome=(
        "as on the shard. A batch that spans shards may be done in part (`one_order=False`): it raises, and a repeat "
        "does the rest, once."
    ),
    clock="that of the event's shard; `now` is the first one's.",
    wake_up="by whichever shard hears of work first.",
    limits=(
        "2 to 16 shards; their number and order are part of every id, written into each shard, and cannot be changed; "
        "a claim asks every shard."
    ),
    not_for=(
        "serial modes, ordering keys, idempotency keys (give an `event_id` made from the key) and caller transactions, "
        "all of which are refused; brokers as shards."
    ),
)

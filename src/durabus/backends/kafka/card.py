"""What the Kafka store promises."""

from durabus.store.guarantees import Card

CARD = Card(
    title="Kafka",
    durability=(
        "acknowledged by all replicas in sync (`acks=all`, idempotent producer): with one broker in its page cache."
    ),
    lost=(
        "nothing by kill -9 of clients or broker. With `replication=1` a power cut takes the newest records; with 3 "
        "and `min.insync.replicas=2` nothing, unless all copies go at once."
    ),
    order="one log for all buses of a prefix (one partition): its order decides every claim, by priority, then by id.",
    unknown_outcome=(
        "the record is sent again until `timeout`; sender and number make a repeat void. Then "
        "`StoreUnavailableError`: repeat the call, which takes effect once."
    ),
    clock="the time that the broker wrote on each record (`LogAppendTime`), never backwards.",
    wake_up="at once: every node reads the log.",
    limits=(
        "every node has all live events and `max_history` COMPLETED ones of each bus in memory; records of 8 MiB; one"
        " partition's throughput for all buses of a prefix."
    ),
    not_for="histories larger than memory, caller transactions, leases below a second.",
)

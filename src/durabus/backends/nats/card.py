"""What the NATS store promises."""

from durabus.store.guarantees import Card

CARD = Card(
    title="NATS",
    durability="in a JetStream stream: with one server in its page cache, with `replicas=3` on a majority of servers.",
    lost=(
        "nothing by kill -9 of clients or server. A power cut of all copies takes up to the server's `sync_interval` "
        "(2 minutes unless set; `always` loses nothing)."
    ),
    order="one log for all buses of a prefix: its order decides every claim, by priority, then by id.",
    unknown_outcome=(
        "the record is sent again until `timeout`; sender and number make a repeat void. Then "
        "`StoreUnavailableError`: repeat the call, which takes effect once."
    ),
    clock="the time that the server wrote on each record, never backwards.",
    wake_up="at once: every node reads the log.",
    limits=(
        "every node has all live events and `max_history` COMPLETED ones of each bus in memory; events up to the "
        "server's `max_payload`; one log's throughput for all buses of a prefix."
    ),
    not_for="histories larger than memory, caller transactions, leases below half a second.",
)

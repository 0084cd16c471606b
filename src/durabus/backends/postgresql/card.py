"""What the PostgreSQL store promises."""

from durabus.store.guarantees import Card

CARD = Card(
    title="PostgreSQL",
    durability=(
        "committed by the server: on its disk with `fsync=on` and `synchronous_commit=on`, which are its defaults."
    ),
    lost=(
        "nothing by kill -9 or a power cut of clients or server. A failover to an asynchronous standby may take the "
        "newest commits."
    ),
    order=(
        "claims by priority, then by id, among those that nobody else is claiming at that moment. The log is the "
        "order of the commits; a transaction that commits late is not skipped."
    ),
    unknown_outcome=(
        "a call whose connection broke is made again on a new one, and takes effect once; if that fails too, "
        "`StoreUnavailableError`: repeat it."
    ),
    clock="the server's.",
    wake_up="LISTEN/NOTIFY, with the worker's poll behind it; `?pooler=on` leaves only the poll.",
    limits="readers of the log wait for the oldest open transaction; vacuum must run.",
    not_for="a read-only standby as the store.",
)

"""What the SQLite store promises."""

from durabus.store.guarantees import Card

CARD = Card(
    title="SQLite",
    durability="on the disk: WAL with `synchronous=FULL`, one commit shared by all who wait.",
    lost=(
        "nothing by kill -9 or a power cut, as far as the disk keeps what it confirmed. With `?synchronous=normal` a "
        "power cut may take the newest commits."
    ),
    order="claims by priority, then by id. The log is the order of the commits.",
    unknown_outcome=(
        "only if the disk fails in the middle of a commit: the error says so, and the call can be repeated."
    ),
    clock="the host's, carried on when it is set back: never backwards, never standing still.",
    wake_up="within milliseconds, from any process of the host.",
    limits="one host, one writer at a time; a call behind a frozen writer fails after 30 s and names its pid.",
    not_for="network file systems, several hosts, use across `fork()`.",
)

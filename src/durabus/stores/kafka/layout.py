"""Topics, for a store with ``prefix=shop`` (and without one). Each has one partition: its order is the store's.

::

    events.shop          (events)             public lane: one record is one event, keyed by its id, its type a header
    shop.control         (durabus.control)    control lane: one record is a batch of commands, and says up to which
                                              public record it has read: those come before it in the order of all
    shop.event_buses, .event_handlers, .events, .event_results, .locks, .event_log, .sessions, .replica, .snapshots
                                              compacted: the newest snapshot by table and key, written in transactions
"""

from __future__ import annotations

import msgspec

from durabus.stores.replicated_log.options import DEFAULT_PREFIX

KEPT = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "LogAppendTime",
}
"""What the lanes rest on: the broker's time on every record, and nothing lost but by trimming."""
LARGEST = 8 * 1024 * 1024
"""Bytes of a record."""
ROOM = 64 * 1024
"""Bytes for a record's headers and its batch."""


class KafkaLayout(msgspec.Struct, frozen=True):
    """The names."""

    prefix: str

    @property
    def control(self) -> str:
        """The control lane."""
        return f"{self.prefix}.control"

    @property
    def public(self) -> str:
        """The public lane."""
        return "events" if self.prefix == DEFAULT_PREFIX else f"events.{self.prefix}"

    @property
    def manifest(self) -> str:
        """What the snapshot in the state topics is of."""
        return f"{self.prefix}.snapshots"

    def table(self, name: str) -> str:
        """The topic of a table of the state."""
        return f"{self.prefix}.{name}"

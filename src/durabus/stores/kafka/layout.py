"""A drawing of the topics of a store with ``prefix=shop`` (in brackets: without a prefix). Each has one partition.

::

    events.shop          (events)             public lane: one record is one event, keyed by its id, its type a header
    shop.control         (durabus.control)    control lane: one record is a batch of commands. It names the last public
                                              record that its sender had read: those up to it come first in the order
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
"""Settings that the lanes need: the broker writes its time on every record, and only trimming deletes records."""
LARGEST = 8 * 1024 * 1024
"""The maximum size of a record in bytes."""
ROOM = 64 * 1024
"""Bytes that are reserved for the headers of a record and its batch."""


class KafkaLayout(msgspec.Struct, frozen=True):
    """The names of the topics of a store."""

    prefix: str

    @property
    def control(self) -> str:
        """The topic of the control lane."""
        return f"{self.prefix}.control"

    @property
    def public(self) -> str:
        """The topic of the public lane."""
        return "events" if self.prefix == DEFAULT_PREFIX else f"events.{self.prefix}"

    @property
    def manifest(self) -> str:
        """The topic of the manifest of the snapshot."""
        return f"{self.prefix}.snapshots"

    def table(self, name: str) -> str:
        """Return the topic of a table of the snapshot."""
        return f"{self.prefix}.{name}"

"""A drawing of the streams and subjects of a store with ``prefix=shop`` (in brackets: without a prefix).

::

    stream   shop              (durabus)              the log: both lanes in one order, kept until trimmed
      subject  shop.events.{type}  (events.{type})      public lane: one message is one event
      subject  shop.control        (durabus.control)    control lane: one message is a batch of commands
    stream   shop-snapshots    (durabus-snapshots)    the newest snapshot
      subject  shop.snapshot.manifest                   its position; replaced by compare-and-set on its sequence
      subject  shop.snapshot.chunk.{name}.{n}           its pieces
"""

from __future__ import annotations

from urllib.parse import quote, unquote

import msgspec

from durabus.stores.replicated_log.options import DEFAULT_PREFIX

_PLAIN = "!#$&'()+,-/:;<=?@[]^_`{|}~"
"""Characters that a subject may hold besides letters and digits. ``*``, ``>``, ``%`` and spaces are quoted."""


class NatsLayout(msgspec.Struct, frozen=True):
    """The names of the streams and subjects of a store."""

    prefix: str

    @property
    def stream(self) -> str:
        """The stream of the log."""
        return self.prefix

    @property
    def snapshots(self) -> str:
        """The stream of snapshots."""
        return f"{self.prefix}-snapshots"

    @property
    def control(self) -> str:
        """The subject of the control lane."""
        return f"{self.prefix}.control"

    @property
    def public(self) -> str:
        """The beginning of the subjects of the public lane."""
        return "events." if self.prefix == DEFAULT_PREFIX else f"{self.prefix}.events."

    @property
    def subjects(self) -> list[str]:
        """All subjects of the log."""
        return [self.control, f"{self.public}>"]

    @property
    def manifest(self) -> str:
        """The subject of the manifest."""
        return f"{self.prefix}.snapshot.manifest"

    def chunk(self, name: str, number: int | str) -> str:
        """Return the subject of a piece. The number ``>`` stands for all pieces of a snapshot."""
        return f"{self.prefix}.snapshot.chunk.{name}.{number}"

    def subject(self, type_: str) -> str:
        """Return the subject of events of this type. A type that is not a valid subject is quoted as in a URL."""
        quoted = quote(type_, safe=_PLAIN + ".")
        if "" in quoted.split("."):
            quoted = quoted.replace(".", "%2E")
        return self.public + quoted

    def type_of(self, subject: str) -> str | None:
        """Return the type of the events of a subject; None for the control lane."""
        return unquote(subject[len(self.public) :]) if subject.startswith(self.public) else None

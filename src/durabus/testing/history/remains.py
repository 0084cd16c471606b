"""What a store holds when all is over."""

from __future__ import annotations

from durabus.model.query import EventQuery
from durabus.store.contract import EventStore
from durabus.testing.history.lines import Final, Line, Logged

PAGE = 1000


async def remains(store: EventStore, bus: str) -> list[Line]:
    """The whole log, then every event of a bus."""
    lines: list[Line] = []
    position = ""
    while (page := await store.read_log(after=position, limit=PAGE)).next != position:
        lines += [Logged(entry) for entry in page.entries]
        position = page.next
    before: int | None = None
    while True:
        found = await store.find(EventQuery(bus=bus, before_id=before, limit=500))
        lines += [Final(event) for event in found.events]
        before = found.next_before_id
        if before is None:
            return lines

"""Tells other nodes that events they wait for have ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from durabus.errors import StoreError
from durabus.model.event import Event, reply_to_of
from durabus.store.contract import EventStore

logger = logging.getLogger("durabus.worker")


class EndHints:
    """Sends the hints for all events that ended in one turn of the event loop in one call of the store."""

    def __init__(self, store: EventStore, here: str | None) -> None:
        self._store = store
        self._here = here
        """The node of the worker itself, which needs no hint."""
        self._nodes: set[str] = set()
        self.tasks: set[asyncio.Task[None]] = set()

    def ended(self, event: Event) -> None:
        """An event with metadata has ended. If a node waits for it, wake that node."""
        metadata = event.metadata_json
        if metadata is None or (self._here is not None and self._here in metadata):
            return
        node = reply_to_of(metadata)
        if node is None:
            return
        self._nodes.add(node)
        if len(self._nodes) == 1:
            task = asyncio.get_running_loop().create_task(self._send())
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _send(self) -> None:
        nodes, self._nodes = sorted(self._nodes), set()
        await _tell(self._store, nodes)


async def tell_of_ends(store: EventStore, metadata: Iterable[str | None]) -> None:
    """Tell the nodes that wait for events that have ended outside of a worker. Takes the metadata of these events."""
    nodes = {node for one in metadata if one is not None and (node := reply_to_of(one)) is not None}
    if nodes:
        await _tell(store, sorted(nodes))


async def _tell(store: EventStore, nodes: Sequence[str]) -> None:
    try:
        await store.tell_ends(nodes)
    except StoreError as error:
        logger.debug("a hint was lost, nodes that wait for the ends of events will look: %s", error)

"""Proof that a bus which trims its history leaves the results that another node has yet to read."""

from __future__ import annotations

from msgspec.structs import replace

from durabus.model.event import UNREAD_FOR, new_event, with_reply_to
from durabus.model.settlement import Complete
from durabus.store.contract import EventStore
from durabus.testing.conformance.lab import BUS, Lab

HERE, THERE = "a" * 32, "b" * 32
"""The addresses of two nodes."""


class UnreadResultTests:
    """Deleting by count, while nodes wait for results."""

    async def test_a_trim_stops_at_an_event_whose_result_another_node_has_yet_to_read(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """With it, the call stops at the first event that ended less than ``UNREAD_FOR`` seconds ago and carries the
        address of another node: that node has yet to read the result.
        """
        last = THERE if lab.store.features.scheme == "sharded" else None  # each shard stops at its own events
        events = await _ended(lab, None, HERE, THERE, last)
        assert await lab.store.cleanup_excess_events(BUS, keep=0, node=HERE) == 2
        assert await lab.store.cleanup_excess_events(BUS, keep=0, node=HERE) == 0
        assert [await other_node.has_event(id_) for id_ in events] == [False, False, True, True]
        if not lab.manual:
            return
        await lab.advance(UNREAD_FOR)
        assert await lab.store.cleanup_excess_events(BUS, keep=0, node=HERE) == 2

    async def test_a_trim_that_no_node_asks_for_stops_nowhere(self, lab: Lab) -> None:
        """``node`` is the address of the caller."""
        await _ended(lab, None, HERE, THERE, None)
        assert await lab.store.cleanup_excess_events(BUS, keep=0) == 4


async def _ended(lab: Lab, *nodes: str | None) -> list[int]:
    """Publish an event for each of the nodes that waits, and complete it. Return the numbers."""
    plain = new_event("price.quote", bus=BUS, metadata={"by": "shop"})
    new = [
        replace(
            new_event("price.quote", bus=BUS),
            metadata_json=plain.metadata_json if node is None else with_reply_to(plain.metadata_json, node),
        )
        for node in nodes
    ]
    events = await lab.store.add_events(new)
    claims = await lab.claim(limit=len(new))
    await lab.settle(*(Complete(claim.ref) for claim in claims))
    return [event.id for event in events]

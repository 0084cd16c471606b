"""Proof of ``durabus.store.registrations``."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from durabus.model.handler import HandlerInfo
from durabus.model.statuses import LIVE, EventStatus
from durabus.store.contract import EventStore
from durabus.testing.conformance.lab import BUS, OTHER_BUS, Lab, ending

INVOICE = HandlerInfo(handler_id="invoice", pattern="order.*")
AUDIT = HandlerInfo(handler_id="audit", pattern="*")
EVERY_STATUS = pytest.mark.parametrize("status", list(EventStatus))


async def register(lab: Lab, bus: str, *handlers: HandlerInfo, node: str = "n1", kept_for: float | None = None) -> None:
    """Register the handlers of ``node``."""
    await lab.store.register_handlers(bus, node, handlers, kept_for=kept_for)


async def handlers(node: EventStore, bus: str = BUS) -> list[HandlerInfo]:
    """Return the handlers as ``node`` lists them."""
    return (await node.list_handlers(bus)).handlers


class RegistrationTests:
    """Handlers of buses: registered, renewed, listed and over."""

    async def test_a_registered_bus_and_its_handlers_are_listed_on_every_node(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """Register ``bus``, and exactly these handlers of ``node`` for it."""
        await register(lab, BUS, INVOICE, AUDIT)
        assert [info.bus for info in await other_node.list_buses()] == [BUS]
        listed = [(info.handler_id, info.pattern, info.node) for info in await handlers(other_node)]
        assert listed == [("audit", "*", "n1"), ("invoice", "order.*", "n1")]

    async def test_a_bus_without_handlers_can_be_registered(self, lab: Lab, other_node: EventStore) -> None:
        """Register ``bus``, and exactly these handlers of ``node`` for it."""
        await register(lab, BUS)
        assert [info.bus for info in await lab.store.list_buses()] == [BUS]
        assert await handlers(other_node) == []

    async def test_a_node_has_exactly_the_handlers_it_named_last(self, lab: Lab, other_node: EventStore) -> None:
        """Register ``bus``, and exactly these handlers of ``node`` for it."""
        await register(lab, BUS, INVOICE, AUDIT)
        await register(lab, BUS, AUDIT)
        assert [info.handler_id for info in await handlers(other_node)] == ["audit"]
        await register(lab, BUS)
        assert await handlers(other_node) == []

    async def test_a_node_changes_only_its_own_registrations(self, lab: Lab, other_node: EventStore) -> None:
        """The registrations of other nodes stay as they are, even under the same handler ids."""
        await register(lab, BUS, INVOICE, node="n2")
        before = await handlers(other_node)
        await lab.advance(5 * lab.moment)
        await register(lab, BUS, HandlerInfo(handler_id="invoice", pattern="*"))
        assert [(info.node, info.pattern) for info in await handlers(other_node)] == [("n1", "*"), ("n2", "order.*")]
        await register(lab, BUS)
        assert await handlers(other_node) == before

    async def test_registering_again_keeps_created_and_replaces_the_pattern(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """A handler that the node had already keeps its ``created_ts``; pattern and ``last_seen_ts`` are replaced."""
        await register(lab, BUS, INVOICE)
        (before,) = await handlers(other_node)
        await lab.advance(5 * lab.moment)
        await register(lab, BUS, HandlerInfo(handler_id="invoice", pattern="invoice.*"))
        (after,) = await handlers(other_node)
        assert after.created_ts == before.created_ts
        assert after.last_seen_ts > before.last_seen_ts
        assert after.pattern == "invoice.*"

    async def test_instants_and_nodes_sent_along_are_ignored(self, lab: Lab, other_node: EventStore) -> None:
        """``last_seen_ts`` is the store's present time."""
        now = await lab.store.now()
        await register(lab, BUS, HandlerInfo(handler_id="h", pattern="*", node="x", created_ts=5.0, last_seen_ts=7.0))
        (handler,) = await handlers(other_node)
        (bus,) = await lab.store.list_buses()
        assert handler.node == "n1"
        for instant in (handler.created_ts, handler.last_seen_ts, bus.created_ts, bus.last_seen_ts):
            assert lab.same_time(instant, now)

    async def test_registering_makes_a_stopped_bus_active_again(self, lab: Lab) -> None:
        """A stopped bus becomes active again."""
        await register(lab, BUS, INVOICE)
        await lab.store.stop_bus(BUS)
        await lab.advance(5 * lab.moment)
        await register(lab, BUS, INVOICE)
        (info,) = await lab.store.list_buses()
        assert info.stopped_ts is None
        assert await lab.store.archive_buses(stopped_for=0) == 0

    async def test_a_repeat_changes_only_when_it_was_last_seen(self, lab: Lab) -> None:
        """A repeat changes nothing else."""
        await register(lab, BUS, INVOICE)
        before = await lab.store.list_handlers(BUS)
        (bus,) = await lab.store.list_buses()
        await lab.advance(5 * lab.moment)
        await register(lab, BUS, INVOICE)
        after = await lab.store.list_handlers(BUS)
        seen = after.handlers[0].last_seen_ts
        assert after == replace(before, handlers=[replace(before.handlers[0], last_seen_ts=seen)])
        assert (await lab.store.list_buses())[0].created_ts == bus.created_ts

    async def test_a_registration_that_is_not_repeated_is_over(self, lab: Lab, other_node: EventStore) -> None:
        """A registration that is not repeated for ``kept_for`` seconds ends, as if it were withdrawn.

        With None it has no end.
        """
        await register(lab, BUS, AUDIT, node="n2", kept_for=None)
        await register(lab, BUS, INVOICE, kept_for=10 * lab.moment)
        await lab.advance(5 * lab.moment)
        await register(lab, BUS, INVOICE, kept_for=10 * lab.moment)
        await lab.advance(9 * lab.moment)
        (_, kept) = await handlers(other_node)
        await lab.advance(2 * lab.moment)
        assert [info.handler_id for info in await handlers(other_node)] == ["audit"]
        assert await lab.store.unregister_handler(BUS, "invoice") is False
        await register(lab, BUS, INVOICE)
        (_, again) = await handlers(other_node)
        assert again.created_ts > kept.last_seen_ts

    async def test_an_unregistered_handler_is_forgotten_once_on_all_nodes(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """Delete a handler's registrations on every node. Returns False if there were none: a repeat is harmless."""
        await register(lab, BUS, INVOICE, AUDIT)
        await register(lab, BUS, INVOICE, node="n2")
        assert await lab.store.unregister_handler(BUS, "invoice") is True
        assert await lab.store.unregister_handler(BUS, "invoice") is False
        assert [info.handler_id for info in await handlers(other_node)] == ["audit"]

    async def test_unregistering_on_an_unknown_bus_is_harmless(self, lab: Lab) -> None:
        """Returns False if there were none: a repeat is harmless."""
        assert await lab.store.unregister_handler("nowhere", "invoice") is False
        assert await lab.store.list_buses() == []

    async def test_handlers_are_listed_by_id_node_and_bus(self, lab: Lab, other_node: EventStore) -> None:
        """The handlers of ``bus`` in order of ``handler_id``, then ``node``."""
        for node in ("n2", "n1"):
            await register(lab, BUS, *(HandlerInfo(handler_id=name, pattern="*") for name in "ba"), node=node)
        await register(lab, OTHER_BUS, HandlerInfo(handler_id="a", pattern="mail.*"))
        listed = [(info.handler_id, info.node) for info in await handlers(other_node)]
        assert listed == [("a", "n1"), ("a", "n2"), ("b", "n1"), ("b", "n2")]
        assert [info.pattern for info in await handlers(other_node, OTHER_BUS)] == ["mail.*"]

    async def test_every_change_gives_a_revision_never_seen_before(self, lab: Lab, other_node: EventStore) -> None:
        """``revision`` becomes a new value, never used before, when a handler is added, is removed or changes its
        pattern on any node. A handler whose ``kept_for`` is over changes it with the next registration. A repeated
        registration keeps it.
        """
        wide = HandlerInfo(handler_id="invoice", pattern="*")
        seen = [(await lab.store.list_handlers(BUS)).revision]
        for node, changed, kept_for in (
            ("n1", [INVOICE], None),
            ("n2", [INVOICE], 10 * lab.moment),
            ("n2", [wide], 10 * lab.moment),
            ("n1", [INVOICE, AUDIT], None),
            ("n1", [INVOICE], None),
        ):
            await register(lab, BUS, *changed, node=node, kept_for=kept_for)
            seen.append((await lab.store.list_handlers(BUS)).revision)
        await register(lab, BUS, INVOICE)
        assert (await other_node.list_handlers(BUS)).revision == seen[-1]
        await lab.advance(10 * lab.moment)
        await register(lab, BUS, INVOICE)
        seen.append((await lab.store.list_handlers(BUS)).revision)
        await lab.store.unregister_handler(BUS, "invoice")
        seen.append((await lab.store.list_handlers(BUS)).revision)
        await lab.store.stop_bus(BUS)
        await lab.store.archive_buses(stopped_for=0)
        await register(lab, BUS, INVOICE)
        seen.append((await lab.store.list_handlers(BUS)).revision)
        assert len(set(seen)) == len(seen)

    async def test_the_revision_of_an_unknown_bus_is_empty(self, lab: Lab) -> None:
        """It is empty for an unknown bus."""
        listed = await lab.store.list_handlers("nowhere")
        assert (listed.revision, listed.handlers) == ("", [])

    async def test_a_claim_carries_the_revision_it_was_granted_at(self, lab: Lab) -> None:
        """``Claim.revision`` is the revision of the bus's handlers at this moment: a worker that has read that revision
        knows every handler that was registered before.
        """
        await lab.publish(3)
        assert (await lab.claim_one()).revision == ""
        await register(lab, BUS, INVOICE)
        first = (await lab.store.list_handlers(BUS)).revision
        claim = await lab.claim_one()
        assert claim.revision == first
        await register(lab, BUS, AUDIT, node="n2")
        second = (await lab.store.list_handlers(BUS)).revision
        answer = await lab.store.settle_events([ending(claim, EventStatus.COMPLETED)], then_claim=lab.request())
        assert [one.revision for one in answer.claims] == [second]


class BusTests:
    """Buses: listed, active, stopped and archived."""

    async def test_buses_are_listed_in_pages_by_name(self, lab: Lab) -> None:
        """Registered buses with a name above ``after``, in order of name."""
        for name in ("delta", "alpha", "charlie", "bravo"):
            await register(lab, name)
        first = [info.bus for info in await lab.store.list_buses(limit=3)]
        assert first == ["alpha", "bravo", "charlie"]
        assert [info.bus for info in await lab.store.list_buses(after="charlie", limit=3)] == ["delta"]
        assert await lab.store.list_buses(after="delta") == []

    @EVERY_STATUS
    async def test_a_bus_is_active_while_it_has_live_events(
        self, lab: Lab, other_node: EventStore, status: EventStatus
    ) -> None:
        """Return the names above ``after`` of buses with PENDING or PROCESSING events, without scanning others."""
        await lab.ended(status)
        assert await other_node.active_buses() == ([BUS] if status in LIVE else [])

    async def test_active_buses_are_listed_in_pages_by_name_without_registration(self, lab: Lab) -> None:
        """Return the names above ``after`` of buses with PENDING or PROCESSING events, without scanning others."""
        for name in ("delta", "alpha", "charlie"):
            await lab.publish(2, bus=name)
        assert await lab.store.active_buses(limit=2) == ["alpha", "charlie"]
        assert await lab.store.active_buses(after="charlie") == ["delta"]

    async def test_a_bus_is_active_until_its_last_live_event_ends_and_again_after_a_requeue(self, lab: Lab) -> None:
        """Return the names above ``after`` of buses with PENDING or PROCESSING events, without scanning others."""
        await lab.publish(2)
        first, second = await lab.claim(limit=2)
        await lab.settle_one(ending(first, EventStatus.FAILED))
        assert await lab.store.active_buses() == [BUS]
        await lab.settle_one(ending(second, EventStatus.COMPLETED))
        assert await lab.store.active_buses() == []
        await lab.store.requeue_dead_letters([first.event.id])
        assert await lab.store.active_buses() == [BUS]
        await lab.store.remove_event(first.event.id)
        assert await lab.store.active_buses() == []

    async def test_events_of_a_stopped_bus_stay_and_can_be_claimed(self, lab: Lab) -> None:
        """Mark a bus as stopped now. Its events stay and can still be claimed."""
        await register(lab, BUS, INVOICE)
        event = await lab.publish_one()
        await lab.advance(5 * lab.moment)
        now = await lab.store.now()
        await lab.store.stop_bus(BUS)
        (info,) = await lab.store.list_buses()
        assert lab.same_time(info.stopped_ts, now)
        assert (await lab.claim_one()).event.id == event.id

    async def test_stopping_an_unknown_bus_does_nothing(self, lab: Lab) -> None:
        """An unknown bus is ignored."""
        await lab.store.stop_bus("nowhere")
        assert await lab.store.list_buses() == []

    async def test_a_bus_stopped_long_enough_is_archived_with_its_handlers(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """Delete buses that were stopped ``stopped_for`` seconds ago or longer, and their handlers."""
        for name in (BUS, OTHER_BUS, "running"):
            await register(lab, name, INVOICE)
        await lab.store.stop_bus(BUS)
        await lab.advance(10 * lab.moment)
        await lab.store.stop_bus(OTHER_BUS)
        assert await lab.store.archive_buses(stopped_for=10 * lab.moment) == 1
        assert [info.bus for info in await other_node.list_buses()] == [OTHER_BUS, "running"]
        assert await handlers(other_node) == []
        assert await lab.store.archive_buses(stopped_for=10 * lab.moment) == 0

    @EVERY_STATUS
    async def test_a_bus_with_live_events_is_never_archived(
        self, lab: Lab, other_node: EventStore, status: EventStatus
    ) -> None:
        """A bus with PENDING or PROCESSING events is never deleted."""
        await register(lab, BUS, INVOICE)
        event = await lab.ended(status)
        await lab.store.stop_bus(BUS)
        assert await lab.store.archive_buses(stopped_for=0) == (0 if status in LIVE else 1)
        assert len(await handlers(other_node)) == (1 if status in LIVE else 0)
        assert await lab.event(event) == event

    async def test_archiving_forgets_at_most_limit_buses(self, lab: Lab) -> None:
        """A bus with PENDING or PROCESSING events is never deleted. Returns how many were deleted."""
        for number in range(5):
            await register(lab, f"bus-{number}")
            await lab.store.stop_bus(f"bus-{number}")
        assert await lab.store.archive_buses(stopped_for=0, limit=3) == 3
        assert len(await lab.store.list_buses()) == 2
        assert await lab.store.archive_buses(stopped_for=0, limit=3) == 2

"""Proof of ``durabus.store.registrations``."""

from __future__ import annotations

import pytest

from durabus.conformance.lab import BUS, OTHER_BUS, Lab, ending
from durabus.model.handler import HandlerInfo
from durabus.model.statuses import LIVE, EventStatus

INVOICE = HandlerInfo(handler_id="invoice", pattern="order.*")
AUDIT = HandlerInfo(handler_id="audit", pattern="*")
EVERY_STATUS = pytest.mark.parametrize("status", list(EventStatus))


class RegistrationTests:
    """Buses and handlers."""

    async def test_a_registered_bus_and_its_handlers_are_listed_on_every_node(self, lab: Lab) -> None:
        """Make ``bus`` known, and these handlers with it."""
        await lab.store.register_handlers(BUS, [INVOICE, AUDIT])
        assert [info.bus for info in await lab.other.list_buses()] == [BUS]
        patterns = {info.handler_id: info.pattern for info in await lab.other.list_handlers(BUS)}
        assert patterns == {"audit": "*", "invoice": "order.*"}

    async def test_a_bus_without_handlers_can_be_registered(self, lab: Lab) -> None:
        """Make ``bus`` known, and these handlers with it."""
        await lab.store.register_handlers(BUS, [])
        assert [info.bus for info in await lab.store.list_buses()] == [BUS]
        assert await lab.store.list_handlers(BUS) == []

    async def test_registering_again_keeps_created_and_replaces_the_pattern(self, lab: Lab) -> None:
        """A handler id that is known already keeps its ``created_ts``; pattern and ``last_seen_ts`` are replaced."""
        await lab.store.register_handlers(BUS, [INVOICE])
        (before,) = await lab.store.list_handlers(BUS)
        await lab.advance(5 * lab.moment)
        await lab.store.register_handlers(BUS, [HandlerInfo(handler_id="invoice", pattern="invoice.*")])
        (after,) = await lab.store.list_handlers(BUS)
        assert after.created_ts == before.created_ts
        assert after.last_seen_ts > before.last_seen_ts
        assert after.pattern == "invoice.*"

    async def test_instants_sent_along_are_ignored_for_the_stores_clock(self, lab: Lab) -> None:
        """``last_seen_ts`` is the store's clock."""
        now = await lab.store.now()
        await lab.store.register_handlers(
            BUS, [HandlerInfo(handler_id="invoice", pattern="*", created_ts=5.0, last_seen_ts=7.0)]
        )
        (handler,) = await lab.store.list_handlers(BUS)
        (bus,) = await lab.store.list_buses()
        for instant in (handler.created_ts, handler.last_seen_ts, bus.created_ts, bus.last_seen_ts):
            assert lab.same_time(instant, now)

    async def test_registering_makes_a_stopped_bus_active_again(self, lab: Lab) -> None:
        """A stopped bus becomes active again."""
        await lab.store.register_handlers(BUS, [INVOICE])
        await lab.store.stop_bus(BUS)
        await lab.advance(5 * lab.moment)
        await lab.store.register_handlers(BUS, [INVOICE])
        (info,) = await lab.store.list_buses()
        assert info.stopped_ts is None
        assert await lab.store.archive_buses(stopped_for=0) == 0

    async def test_registering_one_handler_leaves_the_others_alone(self, lab: Lab) -> None:
        """A repeat changes nothing else."""
        await lab.store.register_handlers(BUS, [INVOICE, AUDIT])
        audit, invoice = await lab.store.list_handlers(BUS)
        (bus,) = await lab.store.list_buses()
        await lab.advance(5 * lab.moment)
        await lab.store.register_handlers(BUS, [INVOICE])
        assert (await lab.store.list_handlers(BUS))[0] == audit
        assert (await lab.store.list_handlers(BUS))[1].created_ts == invoice.created_ts
        assert (await lab.store.list_buses())[0].created_ts == bus.created_ts

    async def test_an_unregistered_handler_is_forgotten_once(self, lab: Lab) -> None:
        """Forget a handler. False if it was not known: a repeat is harmless."""
        await lab.store.register_handlers(BUS, [INVOICE, AUDIT])
        assert await lab.store.unregister_handler(BUS, "invoice") is True
        assert await lab.store.unregister_handler(BUS, "invoice") is False
        assert [info.handler_id for info in await lab.other.list_handlers(BUS)] == ["audit"]

    async def test_unregistering_on_an_unknown_bus_is_harmless(self, lab: Lab) -> None:
        """False if it was not known: a repeat is harmless."""
        assert await lab.store.unregister_handler("nowhere", "invoice") is False
        assert await lab.store.list_buses() == []

    async def test_handlers_are_listed_by_id_and_by_bus(self, lab: Lab) -> None:
        """The handlers of ``bus`` in order of ``handler_id``."""
        await lab.store.register_handlers(BUS, [HandlerInfo(handler_id=name, pattern="*") for name in "cab"])
        await lab.store.register_handlers(OTHER_BUS, [HandlerInfo(handler_id="a", pattern="mail.*")])
        assert [info.handler_id for info in await lab.store.list_handlers(BUS)] == ["a", "b", "c"]
        assert [info.pattern for info in await lab.store.list_handlers(OTHER_BUS)] == ["mail.*"]
        assert await lab.store.list_handlers("nowhere") == []

    async def test_buses_are_listed_in_pages_by_name(self, lab: Lab) -> None:
        """Registered buses with a name above ``after``, in order of name."""
        for name in ("delta", "alpha", "charlie", "bravo"):
            await lab.store.register_handlers(name, [])
        first = [info.bus for info in await lab.store.list_buses(limit=3)]
        assert first == ["alpha", "bravo", "charlie"]
        assert [info.bus for info in await lab.store.list_buses(after="charlie", limit=3)] == ["delta"]
        assert await lab.store.list_buses(after="delta") == []

    @EVERY_STATUS
    async def test_a_bus_is_active_while_it_has_live_events(self, lab: Lab, status: EventStatus) -> None:
        """Names above ``after`` of the buses that have PENDING or PROCESSING events, without scanning cold ones."""
        await lab.ended(status)
        assert await lab.other.active_buses() == ([BUS] if status in LIVE else [])

    async def test_active_buses_are_listed_in_pages_by_name_without_registration(self, lab: Lab) -> None:
        """Names above ``after`` of the buses that have PENDING or PROCESSING events, without scanning cold ones."""
        for name in ("delta", "alpha", "charlie"):
            await lab.publish(2, bus=name)
        assert await lab.store.active_buses(limit=2) == ["alpha", "charlie"]
        assert await lab.store.active_buses(after="charlie") == ["delta"]

    async def test_a_bus_is_active_until_its_last_live_event_ends_and_again_after_a_requeue(self, lab: Lab) -> None:
        """Names above ``after`` of the buses that have PENDING or PROCESSING events, without scanning cold ones."""
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
        """Mark a bus as stopped now. Its events stay; they can still be claimed."""
        await lab.store.register_handlers(BUS, [INVOICE])
        event = await lab.publish_one()
        await lab.advance(5 * lab.moment)
        now = await lab.store.now()
        await lab.store.stop_bus(BUS)
        (info,) = await lab.store.list_buses()
        assert lab.same_time(info.stopped_ts, now)
        assert (await lab.claim_one()).event.id == event.id

    async def test_stopping_an_unknown_bus_does_nothing(self, lab: Lab) -> None:
        """Unknown bus: nothing happens."""
        await lab.store.stop_bus("nowhere")
        assert await lab.store.list_buses() == []

    async def test_a_bus_stopped_long_enough_is_archived_with_its_handlers(self, lab: Lab) -> None:
        """Forget buses, and their handlers, that were stopped ``stopped_for`` seconds ago or longer."""
        for name in (BUS, OTHER_BUS, "running"):
            await lab.store.register_handlers(name, [INVOICE])
        await lab.store.stop_bus(BUS)
        await lab.advance(10 * lab.moment)
        await lab.store.stop_bus(OTHER_BUS)
        assert await lab.store.archive_buses(stopped_for=10 * lab.moment) == 1
        assert [info.bus for info in await lab.other.list_buses()] == [OTHER_BUS, "running"]
        assert await lab.store.list_handlers(BUS) == []
        assert await lab.store.archive_buses(stopped_for=10 * lab.moment) == 0

    @EVERY_STATUS
    async def test_a_bus_with_live_events_is_never_archived(self, lab: Lab, status: EventStatus) -> None:
        """A bus with PENDING or PROCESSING events is never forgotten."""
        await lab.store.register_handlers(BUS, [INVOICE])
        event = await lab.ended(status)
        await lab.store.stop_bus(BUS)
        assert await lab.store.archive_buses(stopped_for=0) == (0 if status in LIVE else 1)
        assert len(await lab.store.list_handlers(BUS)) == (1 if status in LIVE else 0)
        assert await lab.event(event) == event

    async def test_archiving_forgets_at_most_limit_buses(self, lab: Lab) -> None:
        """A bus with PENDING or PROCESSING events is never forgotten. Returns how many were."""
        for number in range(5):
            await lab.store.register_handlers(f"bus-{number}", [])
            await lab.store.stop_bus(f"bus-{number}")
        assert await lab.store.archive_buses(stopped_for=0, limit=3) == 3
        assert len(await lab.store.list_buses()) == 2
        assert await lab.store.archive_buses(stopped_for=0, limit=3) == 2

"""Proof of ``durabus.store.contract``: opening, closing, restarting."""

from __future__ import annotations

import anyio
import pytest

from durabus.errors import StoreClosedError
from durabus.model.claim import ClaimRef, ClaimRequest, HandlerClaim, HandlerClaimRequest, LockClaim, OfferRequest
from durabus.model.query import EventQuery
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, HandlerSettlement, Keep
from durabus.model.statuses import EventStatus, ResultStatus
from durabus.store.contract import EventStore
from durabus.testing.conformance.lab import ALICE, BOB, BUS, Lab, VerbCall, batch, numbers

INCARNATION = "~0123456789a"
REF = ClaimRef(1, "t", 1)
HANDLER = HandlerClaim(id=1, handler_id="a", token="t", fence=1, attempts=1, expires_ts=1.0)  # noqa: S106
LOCK = LockClaim(key="k", worker_id=ALICE, token="t", fence=1, expires_ts=1.0)  # noqa: S106
DONE = HandlerResult(handler_id="a", status=ResultStatus.SUCCEEDED)
CALLS: dict[str, VerbCall] = {
    "register_handlers": lambda store: store.register_handlers(BUS, "n1", [], kept_for=60.0),
    "unregister_handler": lambda store: store.unregister_handler(BUS, "a"),
    "list_handlers": lambda store: store.list_handlers(BUS),
    "list_buses": lambda store: store.list_buses(),
    "active_buses": lambda store: store.active_buses(),
    "stop_bus": lambda store: store.stop_bus(BUS),
    "archive_buses": lambda store: store.archive_buses(stopped_for=0),
    "add_events": lambda store: store.add_events(batch(1)),
    "get_event": lambda store: store.get_event(1),
    "get_events": lambda store: store.get_events([1]),
    "has_event": lambda store: store.has_event(1),
    "remove_event": lambda store: store.remove_event(1),
    "find": lambda store: store.find(EventQuery()),
    "trim_event_history": lambda store: store.trim_event_history(BUS, older_than=0),
    "cleanup_excess_events": lambda store: store.cleanup_excess_events(BUS, keep=0),
    "counts": lambda store: store.counts(),
    "claim_next_events": lambda store: store.claim_next_events(
        ClaimRequest(bus=BUS, worker_id=ALICE, token="t")  # noqa: S106
    ),
    "start_events": lambda store: store.start_events([REF]),
    "renew_event_claims": lambda store: store.renew_event_claims([REF], lease=1.0),
    "settle_events": lambda store: store.settle_events([Complete(REF)]),
    "expire_events": lambda store: store.expire_events(),
    "reset_event": lambda store: store.reset_event(1, reason="stuck"),
    "cancel_event": lambda store: store.cancel_event(1, reason="not wanted"),
    "cancel_events": lambda store: store.cancel_events([1], reason="not wanted"),
    "list_results": lambda store: store.list_results(1),
    "keep_results": lambda store: store.keep_results([Keep(REF, (DONE,))]),
    "claim_next_handler_result": lambda store: store.claim_next_handler_result(
        HandlerClaimRequest(event=REF, handler_ids=("a",), worker_id=ALICE, token="t")  # noqa: S106
    ),
    "renew_handler_claims": lambda store: store.renew_handler_claims([HANDLER], lease=1.0),
    "claim_offered_handlers": lambda store: store.claim_offered_handlers(
        OfferRequest(bus=BUS, handler_ids=("a",), worker_id=ALICE, token="t")  # noqa: S106
    ),
    "settle_handlers": lambda store: store.settle_handlers([HandlerSettlement(HANDLER, DONE)]),
    "read_results": lambda store: store.read_results([1]),
    "release_handler_claim": lambda store: store.release_handler_claim(HANDLER),
    "complete_handler_result": lambda store: store.complete_handler_result(HANDLER, DONE),
    "complete_event_if_done": lambda store: store.complete_event_if_done(REF, []),
    "cleanup_results": lambda store: store.cleanup_results(),
    "claim_lock": lambda store: store.claim_lock("k", worker_id=ALICE, token="t", lease=1.0),  # noqa: S106
    "renew_lock": lambda store: store.renew_lock(LOCK, lease=1.0),
    "release_lock": lambda store: store.release_lock(LOCK),
    "list_locks": lambda store: store.list_locks(),
    "show_presence": lambda store: store.show_presence(INCARNATION),
    "withdraw_presence": lambda store: store.withdraw_presence(INCARNATION),
    "ended_processes": lambda store: store.ended_processes(),
    "end_process": lambda store: store.end_process(INCARNATION),
    "read_log": lambda store: store.read_log(),
    "log_head": lambda store: store.log_head(),
    "log_lag": lambda store: store.log_lag(""),
    "log_hold": lambda store: store.log_hold(),
    "make_log_partitions": lambda store: store.make_log_partitions(),
    "read_event_log": lambda store: store.read_event_log(1),
    "save_position": lambda store: store.save_position("r", "", lock=LOCK),
    "read_position": lambda store: store.read_position("r"),
    "read_archives": lambda store: store.read_archives(),
    "list_dead_letters": lambda store: store.list_dead_letters(),
    "requeue_dead_letters": lambda store: store.requeue_dead_letters([1]),
    "purge_dead_letters": lambda store: store.purge_dead_letters(created_until_ts=1.0),
    "purge_dead_letters_by_id": lambda store: store.purge_dead_letters_by_id([1]),
    "verify": lambda store: store.verify(),
    "now": lambda store: store.now(),
    "wait_for_work": lambda store: store.wait_for_work(BUS, timeout=0.01),
    "wait_for_ends": lambda store: store.wait_for_ends("node", timeout=0.01),
    "tell_ends": lambda store: store.tell_ends(["node"]),
}


async def _restart(lab: Lab, store: EventStore) -> EventStore:
    """Return the node after ``store``. If data outlive their process, the object is closed and opened again."""
    if not lab.store.features.survives_process_kill:
        return store
    await store.close()
    return await lab.open_another()


class LifecycleTests:
    """A store object from open to close, and the one after it."""

    @pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
    async def test_a_closed_store_refuses_every_call(self, lab: Lab, call: VerbCall) -> None:
        """A repeat does nothing. Any other call afterwards raises ``StoreClosedError``."""
        await lab.store.close()
        await lab.store.close()
        with pytest.raises(StoreClosedError):
            await call(lab.store)

    async def test_closing_one_node_leaves_the_other_open(self, lab: Lab, other_node: EventStore) -> None:
        """Finish the calls that were accepted, then release every resource."""
        if not lab.shared:
            assert other_node is lab.store
            return
        await lab.publish(2)
        await lab.store.close()
        assert len(await lab.claim(other_node, limit=5)) == 2

    async def test_closing_finishes_what_was_accepted(self, lab: Lab) -> None:
        """Finish the calls that were accepted, then release every resource."""
        node = await lab.open_another()
        stored: list[int] = []

        async def publish() -> None:
            try:
                stored.extend(event.id for event in await node.add_events(batch(50)))
            except StoreClosedError:
                return

        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(publish)
            await anyio.lowlevel.checkpoint()
            await node.close()
        if lab.shared:
            assert sorted(stored) == sorted(event.id for event in await lab.all_events())
        else:
            assert len(stored) % 50 == 0

    async def test_close_wakes_waiting_workers(self, lab: Lab) -> None:
        """Finish the calls that were accepted, then release every resource."""
        node = await lab.open_another()

        async def wait() -> None:
            try:
                await node.wait_for_work(BUS, timeout=60)
            except StoreClosedError:
                return

        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                await anyio.sleep(0.05)
                await node.close()

    async def test_an_open_store_verifies(self, lab: Lab, other_node: EventStore) -> None:
        """Check that the schema is exactly the one this version works with."""
        await lab.store.verify()
        await lab.publish(1)
        await other_node.verify()

    async def test_the_stores_clock_is_the_one_that_counts(self, lab: Lab, other_node: EventStore) -> None:
        """Only the store's own clock judges leases: callers send durations, never instants."""
        before = await lab.store.now()
        await lab.advance(10 * lab.moment)
        after = await other_node.now()
        assert after - before >= 9.99 * lab.moment
        if lab.manual:
            assert after == lab.clock.now()

    async def test_work_left_by_a_worker_that_is_gone_is_done_once(self, lab: Lab) -> None:
        """In one atomic step, each event gets status PROCESSING, ``attempts + 1``, ``fence + 1``, the request's token,
        worker and lease.
        """
        node = await lab.open_another() if lab.shared else lab.store
        await lab.publish(3)
        lost = await lab.claim(node, limit=3)
        await node.start_events([claim.ref for claim in lost])
        await node.settle_events([Complete(lost[0].ref)])
        node = await _restart(lab, node)
        try:
            assert await lab.claim(node, limit=3, worker_id=BOB) == []
            await lab.let_the_lease_end()
            again = await lab.claim(node, limit=3, worker_id=BOB)
            assert numbers(again) == [1, 2]
            assert {(claim.event.attempts, claim.event.fence) for claim in again} == {(2, 2)}
            await node.settle_events([Complete(claim.ref) for claim in again])
            assert (await node.counts()).completed == 3
            completed = [entry.id for entry in await lab.log(node) if entry.status is EventStatus.COMPLETED]
            assert sorted(completed) == sorted(claim.event.id for claim in lost)
        finally:
            if node is not lab.store:
                await node.close()

    async def test_a_worker_that_comes_back_in_time_goes_on_with_its_claim(self, lab: Lab) -> None:
        """Every call is safe to repeat with the same arguments after a lost reply: it either takes effect once, or
        returns what the first call returned.
        """
        node = await lab.open_another() if lab.shared else lab.store
        await lab.publish(1)
        request = lab.request()
        claims = await node.claim_next_events(request)
        node = await _restart(lab, node)
        try:
            assert await node.claim_next_events(request) == claims
            answer = await node.settle_events([Complete(claims[0].ref)])
            node = await _restart(lab, node)
            assert await node.settle_events([Complete(claims[0].ref)]) == answer
        finally:
            if node is not lab.store:
                await node.close()

    async def test_everything_is_as_it_was_after_a_restart(self, lab: Lab, other_node: EventStore) -> None:
        """When the call returns, the events survive what ``features`` say that the store survives."""
        for status in EventStatus:
            await lab.ended(status, tags=["eu"], metadata={"ü": 1})
        await lab.store.claim_lock("report", worker_id=ALICE, token="t" * 32, lease=lab.lease)
        before = await lab.picture()
        if not lab.store.features.survives_process_kill:
            assert await lab.picture() == before
            return
        await lab.store.close()
        await other_node.close()
        lab.store = await lab.open_another()
        assert await lab.picture() == before
        new = await lab.publish_one()
        assert new.id not in {event.id for event in before.events}
        if lab.store.features.one_order:
            assert new.id > max(event.id for event in before.events)
        await lab.store.close()

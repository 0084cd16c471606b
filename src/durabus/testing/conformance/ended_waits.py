"""Waits of events that end, repeats, refusals, and very many waits."""

from __future__ import annotations

import pytest

from durabus.clock import perf_counter
from durabus.errors import LeaseLost, UnsupportedByStore
from durabus.model.settlement import Complete, Fail, Release
from durabus.store.contract import EventStore
from durabus.testing.conformance.lab import BUS, Lab
from durabus.testing.conformance.waits import LONG, NAME, WaitsOrRefusal, outcome, payment, wait_for, wait_result

MANY = 10_000
QUICK = 1.0


class EndedWaitTests(WaitsOrRefusal):
    """When a wait is over, and what the store refuses."""

    async def test_a_store_without_waits_refuses_them(self, lab: Lab, waits: Lab | None) -> None:
        """(Refused without ``waits``.)"""  # noqa: D400
        claim = await lab.claimed()
        if waits is None:
            with pytest.raises(UnsupportedByStore, match="waits=False"):
                await lab.settle(Release(claim.ref, LONG, (wait_result(claim),)))
            return
        await wait_for(lab, claim)
        assert await outcome(lab, claim) is None

    @pytest.mark.parametrize("how", ["complete", "fail", "cancel", "remove"])
    async def test_an_event_that_has_ended_waits_no_more(self, lab: Lab, waits: Lab | None, how: str) -> None:
        """An event that has ended or was removed waits no more."""
        if waits is None:
            return
        claim = await lab.claimed()
        await lab.settle_one(Release(claim.ref, 0.0, (wait_result(claim),)))
        if how == "remove":
            assert await lab.store.remove_event(claim.event.id)
        elif how == "cancel":
            await lab.store.cancel_event(claim.event.id, reason="not wanted")
        else:
            again = await lab.claim_one()
            await lab.settle_one(Complete(again.ref) if how == "complete" else Fail(again.ref, "no", None))
        before = await lab.store.list_results(claim.event.id)
        assert NAME not in [result.handler_id for result in before]
        await lab.store.add_events([payment()])
        assert await lab.store.list_results(claim.event.id) == before
        if how == "fail":
            await lab.store.requeue_dead_letters([claim.event.id])
            await lab.store.add_events([payment()])
            assert await lab.store.list_results(claim.event.id) == []

    async def test_a_stale_claim_adds_no_wait_and_a_repeat_adds_no_second_one(
        self, lab: Lab, waits: Lab | None
    ) -> None:
        """If it comes again, it is not begun anew; if it was met meanwhile, the event that met it stays."""
        if waits is None:
            return
        claim = await lab.claimed()
        settlement = Release(claim.ref, LONG, (wait_result(claim, {"n": 1}),))
        await lab.settle_one(settlement)
        before = await lab.picture()
        await lab.settle_one(settlement)
        assert await lab.picture() == before
        (paid,) = await lab.store.add_events([payment(n=1)])
        await lab.settle_one(settlement)
        found = await outcome(lab, claim)
        assert found is not None
        assert found.id == paid.id
        again = await lab.claim_one()
        await lab.settle_one(Release(again.ref, LONG))
        stale = wait_result(claim, name="stale > wait_for")
        (lost,) = await lab.settle(Release(claim.ref, LONG, (stale,)))
        assert isinstance(lost, LeaseLost)
        assert [one.handler_id for one in await lab.store.list_results(claim.event.id)] == [NAME]
        assert again.event.fence == 2

    async def test_an_event_that_is_published_twice_meets_waits_once(self, lab: Lab, waits: Lab | None) -> None:
        """It is met by the first event of its bus and type that is stored after the waiting event."""
        if waits is None:
            return
        paid = payment(n=1)
        (stored,) = await lab.store.add_events([paid])
        claim = await lab.claim_one()
        later = await lab.claimed()
        await lab.settle_one(Complete(claim.ref))
        await wait_for(lab, later, {"n": 1})
        (known, _) = await lab.store.add_events([paid, payment(n=2)])
        assert known.id == stored.id
        assert await outcome(lab, later) is None

    async def test_a_waiting_event_wakes_workers_on_other_nodes(
        self, lab: Lab, other_node: EventStore, waits: Lab | None
    ) -> None:
        """Makes the waiting event due if that is PENDING, and wakes the workers of its bus."""
        if waits is None:
            return
        claim = await lab.claimed()
        await wait_for(lab, claim)
        await other_node.add_events([payment()])
        assert await lab.store.wait_for_work(BUS, timeout=20)
        due = await lab.claim(limit=10)
        assert claim.event.id in [one.event.id for one in due]

    async def test_very_many_waits_do_not_slow_a_publish(self, lab: Lab, waits: Lab | None) -> None:
        """The step that stores such an event does so."""
        if waits is None:
            return
        many = MANY if lab.manual else MANY // 10
        await lab.publish(many)
        claims = await lab.claim(limit=many)
        for start in range(0, many, 1000):
            part = claims[start : start + 1000]
            await lab.settle(*(Release(one.ref, LONG, (wait_result(one, {"order": one.event.id}),)) for one in part))
        began = perf_counter()
        wanted = claims[many // 2].event.id
        await lab.store.add_events([payment(order=wanted), payment(order=-1)])
        assert perf_counter() - began < QUICK
        assert await outcome(lab, claims[many // 2]) is not None
        assert wanted in [one.event.id for one in await lab.claim(limit=10)]

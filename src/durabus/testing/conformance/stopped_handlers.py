"""Proof of ``settle_events``: handlers that a settlement stops on other nodes."""

from __future__ import annotations

import pytest

from durabus.model.event import new_event
from durabus.model.result import HandlerResult
from durabus.model.settlement import Fail, Release
from durabus.model.statuses import HandlerMode, ResultStatus
from durabus.model.wait import new_wait, waiting
from durabus.store.contract import EventStore
from durabus.testing.conformance.handler_claims import handler_claim
from durabus.testing.conformance.lab import BUS, Lab


class StoppedHandlerTests:
    """A handler whose claim a settlement ends may run until its lease is over."""

    @pytest.mark.parametrize("settlement", ["fail", "release"])
    async def test_an_event_waits_for_a_handler_that_its_settlement_stops(
        self, lab: Lab, other_node: EventStore, settlement: str
    ) -> None:
        """This ends the claims on these handlers. After a ``Fail`` or ``Release``, the event is not due before their
        leases are over, because until then a worker may still run the handler.
        """
        claim = await lab.claimed()
        running = await handler_claim(lab, claim, ("mail",), HandlerMode.PARALLEL)
        await handler_claim(lab, claim, ("audit",), HandlerMode.PARALLEL)
        (lease_end,) = await lab.store.renew_handler_claims([running], lease=lab.lease)
        stopped = (HandlerResult(handler_id="mail", status=ResultStatus.TIMED_OUT, error="the event timed out"),)
        if settlement == "fail":
            assert (await lab.settle_one(Fail(claim.ref, "no", 0.0, stopped))).next_retry_ts == lease_end
        else:
            await lab.settle_one(Release(claim.ref, 0.0, stopped))
        assert (await lab.event(claim)).due_ts == lease_end
        assert await lab.claim(other_node) == []
        await lab.advance(lab.lease)
        assert (await lab.claim_one(other_node)).event.id == claim.event.id

    async def test_a_retry_does_not_wait_for_a_handler_that_stays_claimed(self, lab: Lab) -> None:
        """``Fail``: the event gets one more error. It becomes PENDING and due after ``delay``."""
        claim = await lab.claimed()
        running = await handler_claim(lab, claim, ("mail",), HandlerMode.PARALLEL)
        await lab.settle_one(
            Fail(claim.ref, "no", 0.0, (HandlerResult(handler_id="audit", status=ResultStatus.TRANSIENT),))
        )
        again = await lab.claim_one()
        held = {result.handler_id: result.expires_ts for result in again.results}
        assert held["mail"] == running.expires_ts

    async def test_a_wait_that_is_met_does_not_wait_for_a_stopped_handler(self, lab: Lab) -> None:
        """Only a wait that is met, or the end of the last child, makes it due before."""
        if not lab.store.features.waits:
            return
        claim = await lab.claimed()
        running = await handler_claim(lab, claim, ("mail",), HandlerMode.PARALLEL)
        stopped = HandlerResult(handler_id="mail", status=ResultStatus.TIMED_OUT, error="the event timed out")
        wait = waiting("audit > wait_for", new_wait(BUS, "payment.settled", None, None))
        await lab.settle_one(Release(claim.ref, 0.0, (stopped, wait)))
        assert (await lab.event(claim)).due_ts == running.expires_ts
        await lab.store.add_events([new_event("payment.settled", bus=BUS)])
        released = await lab.event(claim)
        assert released.due_ts == released.updated_ts

"""Proof that a call can be repeated when its reply was lost: (applied, reply lost, repeated) equals one call."""

from __future__ import annotations

import pytest

from durabus.conformance.lab import BOB, BUS, Lab
from durabus.conformance.repeatable_calls import ANSWERED_ALIKE, EFFECTIVE_ONCE, Scenario, claimed_handler, spoken
from durabus.errors import LeaseLost
from durabus.model.handler import HandlerInfo
from durabus.model.settlement import Complete, Fail, Release, Settlement
from durabus.store.contract import EventStore


class RepeatTests:
    """The outcome of a call is unknown, so it is made again, perhaps by way of another node."""

    @pytest.mark.parametrize("scenario", ANSWERED_ALIKE, ids=spoken)
    async def test_a_repeat_answers_as_the_first_time_did(
        self, lab: Lab, other_node: EventStore, scenario: Scenario
    ) -> None:
        """Every call is safe to repeat with the same arguments after a lost reply: it either takes effect once, or
        answers as the first time did.
        """
        call = await scenario(lab)
        first = await call(lab.store)
        before = await lab.picture()
        for node in (lab.store, other_node):
            await lab.advance(lab.moment)
            assert await call(node) == first
        assert await lab.picture() == before

    @pytest.mark.parametrize("scenario", EFFECTIVE_ONCE, ids=spoken)
    async def test_a_repeat_takes_effect_once(self, lab: Lab, other_node: EventStore, scenario: Scenario) -> None:
        """Every call is safe to repeat with the same arguments after a lost reply: it either takes effect once, or
        answers as the first time did.
        """
        call = await scenario(lab)
        assert await call(lab.store) == 1
        before = await lab.picture()
        for node in (lab.store, other_node):
            assert await call(node) == 0
        assert await lab.picture() == before

    @pytest.mark.parametrize("then", ["claimed", "completed", "reset", "requeued"])
    async def test_a_repeated_settlement_is_answered_until_a_newer_one(
        self, lab: Lab, other_node: EventStore, then: str
    ) -> None:
        """An exact repeat of the newest settlement of an event (same token and fence, same kind) answers as the
        first time did and writes nothing. A store that lost the answer repeats by itself; if the event was settled
        again since, that repeat too is answered with ``LeaseLost``.
        """
        claim = await lab.claimed()
        settlement = Fail(claim.ref, "no", None if then == "requeued" else 0.0)
        (first,) = await lab.settle(settlement)
        if then == "requeued":
            await lab.store.requeue_dead_letters([claim.event.id])
        else:
            taken = await lab.claim_one(other_node, worker_id=BOB)
            if then == "completed":
                await lab.settle_one(Complete(taken.ref))
            if then == "reset":
                await lab.store.reset_event(claim.event.id, reason="stuck")
        before = await lab.picture()
        (again,) = await lab.settle(settlement)
        if then == "completed":
            assert isinstance(again, LeaseLost)
        else:
            assert again == first
        assert await lab.picture() == before

    @pytest.mark.parametrize("first", ["complete", "fail", "release"])
    @pytest.mark.parametrize("second", ["complete", "fail", "release"])
    async def test_another_kind_of_settlement_is_no_repeat(self, lab: Lab, first: str, second: str) -> None:
        """An exact repeat of the newest settlement of an event (same token and fence, same kind) answers as the
        first time did and writes nothing.
        """
        claim = await lab.claimed()
        kinds: dict[str, Settlement] = {
            "complete": Complete(claim.ref),
            "fail": Fail(claim.ref, "no", 0.0),
            "release": Release(claim.ref),
        }
        settled = await lab.settle_one(kinds[first])
        before = await lab.picture()
        (outcome,) = await lab.settle(kinds[second])
        if first == second:
            assert outcome == settled
        else:
            assert isinstance(outcome, LeaseLost)
        assert await lab.picture() == before

    async def test_a_repeated_renewal_extends_from_the_new_now(self, lab: Lab, other_node: EventStore) -> None:
        """Extend leases to ``lease`` seconds from the store's now; answers the new expiry for each."""
        _, handler = await claimed_handler(lab)
        (held,) = await lab.store.list_locks()
        await lab.advance(5 * lab.moment)
        now = await lab.store.now()
        for node in (lab.store, other_node):
            (expiry,) = await node.renew_handler_claims([handler], lease=lab.lease)
            assert isinstance(expiry, float)
            assert lab.same_time(expiry, now + lab.lease)
        (renewed,) = await lab.store.list_locks()
        assert renewed.expires_ts > held.expires_ts
        assert renewed.fence == held.fence

    async def test_registering_and_stopping_again_keeps_one_registration(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """Every call is safe to repeat with the same arguments after a lost reply: it either takes effect once, or
        answers as the first time did.
        """
        handlers = [HandlerInfo(handler_id="a", pattern="*")]
        for node in (lab.store, other_node):
            await node.register_handlers(BUS, "n1", handlers, kept_for=None)
        assert len((await lab.store.list_handlers(BUS)).handlers) == 1
        for node in (lab.store, other_node):
            await node.stop_bus(BUS)
        (info,) = await lab.store.list_buses()
        assert info.stopped_ts is not None

"""Proof of ``connection``: the caller's own transaction, or a clear refusal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from durabus.conformance.lab import CallerTransaction, Lab, batch
from durabus.errors import DurabusError, UnsupportedByStore
from durabus.model.settlement import Complete, Settled
from durabus.model.statuses import EventStatus
from durabus.store.contract import EventStore


@asynccontextmanager
async def _transaction(lab: Lab) -> AsyncIterator[CallerTransaction]:
    begun = await lab.begin()
    try:
        yield begun
    finally:
        await begun.close()


class CallerTransactionTests:
    """Publishing and settling together with the caller's own writes."""

    async def test_events_become_claimable_with_the_callers_commit(self, lab: Lab, other_node: EventStore) -> None:
        """``connection``: the caller's own connection with its open transaction. The events become visible, durable
        and claimable with its commit, and vanish with its rollback. Refused without ``caller_transactions``.
        """
        if not lab.store.features.caller_transactions:
            with pytest.raises(UnsupportedByStore):
                await lab.store.add_events(batch(2), connection=object())
            assert await lab.all_events() == []
            return
        async with _transaction(lab) as transaction:
            events = await lab.store.add_events(batch(2), connection=transaction.connection)
            assert await other_node.get_event(events[0].event_id) is None
            assert await lab.log(other_node) == []
            await transaction.commit()
        claims = await lab.claim(other_node, limit=5)
        assert [claim.event.event_id for claim in claims] == [event.event_id for event in events]
        assert len(await lab.log(other_node)) == 4

    async def test_events_vanish_with_the_callers_rollback(self, lab: Lab) -> None:
        """The events become visible, durable and claimable with its commit, and vanish with its rollback."""
        new = batch(1, idempotency_key="k")
        if not lab.store.features.caller_transactions:
            with pytest.raises(UnsupportedByStore):
                await lab.store.add_events(new, connection=object())
        else:
            async with _transaction(lab) as transaction:
                await lab.store.add_events(new, connection=transaction.connection)
                await transaction.rollback()
        assert await lab.all_events() == []
        assert await lab.log() == []
        (again,) = await lab.store.add_events(new)
        assert again.status is EventStatus.PENDING

    @pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
    async def test_a_settlement_follows_the_callers_transaction(
        self, lab: Lab, other_node: EventStore, *, commit: bool
    ) -> None:
        """``connection``: as in ``add_events``; effect and completion are one commit."""
        claim = await lab.claimed()
        before = await lab.picture()
        if not lab.store.features.caller_transactions:
            with pytest.raises(UnsupportedByStore):
                await lab.store.settle_events([Complete(claim.ref)], connection=object())
            assert await lab.picture() == before
            return
        async with _transaction(lab) as transaction:
            answer = await lab.store.settle_events([Complete(claim.ref)], connection=transaction.connection)
            (outcome,) = answer.outcomes
            assert isinstance(outcome, Settled)
            assert await lab.event(claim, other_node) == claim.event
            await (transaction.commit() if commit else transaction.rollback())
        if not commit:
            assert await lab.picture() == before
            return
        assert (await lab.event(claim, other_node)).status is EventStatus.COMPLETED
        assert len(await lab.log()) == len(before.log) + 1

    async def test_a_callers_transaction_does_not_claim(self, lab: Lab) -> None:
        """Not together with ``then_claim``."""
        await lab.publish(1)
        before = await lab.picture()
        if not lab.store.features.caller_transactions:
            with pytest.raises(UnsupportedByStore):
                await lab.store.settle_events([], then_claim=lab.request(), connection=object())
        else:
            async with _transaction(lab) as transaction:
                with pytest.raises(DurabusError):
                    await lab.store.settle_events([], then_claim=lab.request(), connection=transaction.connection)
                await transaction.rollback()
        assert await lab.picture() == before

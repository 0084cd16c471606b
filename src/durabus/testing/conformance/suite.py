"""The whole suite; and the proof of ``connection``: the caller's own transaction, or a clear refusal."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from durabus.clock import ManualClock
from durabus.errors import DurabusError, UnsupportedByStore
from durabus.model.settlement import Complete, Settled
from durabus.model.statuses import EventStatus
from durabus.store.contract import EventStore
from durabus.testing.conformance.cancelling import CancelTests
from durabus.testing.conformance.children import ChildrenTests, WaitingParentTests
from durabus.testing.conformance.claims import ClaimTests, HeldClaimTests
from durabus.testing.conformance.dead_letters import DeadLetterTests, PurgeTests
from durabus.testing.conformance.dedupe import DedupeTests
from durabus.testing.conformance.ended_waits import EndedWaitTests
from durabus.testing.conformance.events import EventTests, PagingTests
from durabus.testing.conformance.expiry import ExpiryTests
from durabus.testing.conformance.handler_claims import HandlerClaimTests, SerialLockTests
from durabus.testing.conformance.handler_results import HandlerResultTests, KeptResultTests
from durabus.testing.conformance.lab import CallerTransaction, Lab, batch
from durabus.testing.conformance.late_settlements import LateSettlementTests
from durabus.testing.conformance.lifecycle import LifecycleTests
from durabus.testing.conformance.locks import LockTests, SignalTests
from durabus.testing.conformance.log import LogPieceTests, LogTests
from durabus.testing.conformance.log_entries import LogEntryTests, SettledEntryTests
from durabus.testing.conformance.modes import ModeTests, SerialBatchTests
from durabus.testing.conformance.offers import OfferTests
from durabus.testing.conformance.ordering import OrderingTests, OrderTests
from durabus.testing.conformance.processes import EndedProcessTests, ProcessTests
from durabus.testing.conformance.registrations import BusTests, RegistrationTests
from durabus.testing.conformance.repeats import RepeatTests, obeying
from durabus.testing.conformance.settlement import SettlementTests
from durabus.testing.conformance.stale_writers import StaleWriterTests
from durabus.testing.conformance.stopped_handlers import StoppedHandlerTests
from durabus.testing.conformance.trim import ArchiveTests, TrimLogTests, TrimTests
from durabus.testing.conformance.unread_results import UnreadResultTests
from durabus.testing.conformance.waits import WaitTests, outcome, payment, wait_for


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
        """``connection`` is the caller's own connection with an open transaction.

        The events become visible, durable and claimable with its commit, and vanish with its rollback. Refused without
        ``caller_transactions``.
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
        """``connection``: as in ``add_events``. The caller's writes and the settlement are one commit."""
        claim = await lab.claimed()
        before = await lab.picture()
        if not lab.store.features.caller_transactions:
            with pytest.raises(UnsupportedByStore):
                await lab.store.settle_events([Complete(claim.ref)], connection=object())
            assert await lab.picture() == before
            return
        async with _transaction(lab) as transaction:
            answer = await lab.store.settle_events(
                [Complete(claim.ref)], connection=transaction.connection, with_entries=True
            )
            (outcome,) = answer.outcomes
            assert isinstance(outcome, Settled)
            assert await lab.event(claim, other_node) == claim.event
            await (transaction.commit() if commit else transaction.rollback())
        if not commit:
            assert await lab.picture() == before
            return
        assert (await lab.event(claim, other_node)).status is EventStatus.COMPLETED
        assert len(await lab.log()) == len(before.log) + 1
        assert outcome.entry == (await other_node.read_event_log(claim.event.id))[-1]

    async def test_an_event_of_an_open_transaction_meets_a_wait_that_begins_meanwhile(self, lab: Lab) -> None:
        """Stored after the waiting event is what has a larger ``id``, and what is stored after this step. If a
        transaction that is open in this step stores the event, a claim on the bus meets the wait soon after its end.
        """
        if not (lab.store.features.caller_transactions and lab.store.features.waits):
            return
        waiter = await lab.claimed()
        async with _transaction(lab) as transaction:
            (paid,) = await lab.store.add_events([payment(n=1)], connection=transaction.connection)
            waiting = asyncio.create_task(wait_for(lab, waiter, {"n": 1}))
            await asyncio.wait([waiting], timeout=lab.moment)  # a store with one writer lets it wait for the commit
            await transaction.commit()
            await waiting
        async with asyncio.timeout(20):
            while (found := await outcome(lab, waiter)) is None:
                await lab.claim()
        assert found.id == paid.id

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


class StoreUnderTest:
    """Opens and closes the stores of the suite."""

    pytestmark = pytest.mark.anyio

    def __init_subclass__(cls) -> None:
        """Skip tests that need a feature which the store declares missing. Other tests prove that it is refused."""
        super().__init_subclass__()
        for name, test in inspect.getmembers(cls, inspect.iscoroutinefunction):
            if name.startswith("test_") and not hasattr(test, "__wrapped__"):
                setattr(cls, name, obeying(test))

    async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
        """Open the store that belongs to ``place``: a new one for a new place, the same data for a known one.

        ``place`` is an empty folder of the test's own; a server's store may take its name for a schema or a prefix.
        A store that declares ``manual_clock`` must use ``clock``; any other ignores it.
        """
        raise NotImplementedError("override open_store(place, clock) in your subclass of StoreConformance")

    async def begin(self, place: Path) -> CallerTransaction:
        """Begin a transaction of the caller's own on the data of ``place``, if ``caller_transactions`` is declared."""
        raise NotImplementedError("override begin(place): the store declares caller_transactions")

    async def forget(self, place: Path) -> None:
        """Delete what ``open_store`` made for ``place``. It is called after the stores of the test are closed."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Return the event loop that durabus runs on."""
        return "asyncio"

    @pytest.fixture
    async def lab(self, tmp_path: Path) -> AsyncIterator[Lab]:
        """Yield a fresh store and its clock."""
        clock = ManualClock()

        async def open_another() -> EventStore:
            return await self.open_store(tmp_path, clock)

        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.forget, tmp_path)
            store = await open_another()
            stack.push_async_callback(store.close)
            begin = partial(self.begin, tmp_path)
            yield Lab(store, clock=clock, open_another=open_another, begin=begin)

    @pytest.fixture
    async def other_node(self, lab: Lab) -> AsyncIterator[EventStore]:
        """Yield another store object on the same data, open from the beginning; ``lab.store`` if it is not shared."""
        node = await lab.open_another() if lab.shared else lab.store
        yield node
        await node.close()


class StoreConformance(
    StoreUnderTest,
    RegistrationTests,
    BusTests,
    EventTests,
    DedupeTests,
    PagingTests,
    CallerTransactionTests,
    ClaimTests,
    HeldClaimTests,
    ExpiryTests,
    CancelTests,
    ProcessTests,
    EndedProcessTests,
    LateSettlementTests,
    OrderTests,
    OrderingTests,
    ModeTests,
    SerialBatchTests,
    SettlementTests,
    StoppedHandlerTests,
    StaleWriterTests,
    RepeatTests,
    HandlerClaimTests,
    SerialLockTests,
    HandlerResultTests,
    KeptResultTests,
    ChildrenTests,
    WaitingParentTests,
    OfferTests,
    LockTests,
    LogTests,
    LogEntryTests,
    SettledEntryTests,
    LogPieceTests,
    DeadLetterTests,
    PurgeTests,
    TrimTests,
    TrimLogTests,
    ArchiveTests,
    SignalTests,
    WaitTests,
    EndedWaitTests,
    UnreadResultTests,
    LifecycleTests,
):
    """Every sentence of the store contract as a test. Subclass it, name it ``Test…``, and override ``open_store``."""

"""The suite as one class."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from durabus.clock import ManualClock
from durabus.conformance.caller_transactions import CallerTransactionTests
from durabus.conformance.claims import ClaimTests
from durabus.conformance.dead_letters import DeadLetterTests
from durabus.conformance.dedupe import DedupeTests
from durabus.conformance.events import EventTests
from durabus.conformance.expiry import ExpiryTests
from durabus.conformance.handler_claims import HandlerClaimTests
from durabus.conformance.handler_results import HandlerResultTests
from durabus.conformance.lab import CallerTransaction, Lab
from durabus.conformance.late_settlements import LateSettlementTests
from durabus.conformance.lifecycle import LifecycleTests
from durabus.conformance.locks import LockTests
from durabus.conformance.log import LogTests
from durabus.conformance.log_entries import LogEntryTests
from durabus.conformance.log_pieces import LogPieceTests
from durabus.conformance.modes import ModeTests
from durabus.conformance.order import OrderTests
from durabus.conformance.ordering import OrderingTests
from durabus.conformance.paging import PagingTests
from durabus.conformance.refusals import obeying
from durabus.conformance.registrations import RegistrationTests
from durabus.conformance.repeats import RepeatTests
from durabus.conformance.settlement import SettlementTests
from durabus.conformance.signals import SignalTests
from durabus.conformance.stale_writers import StaleWriterTests
from durabus.conformance.trim import TrimTests
from durabus.conformance.trim_log import TrimLogTests
from durabus.store.contract import EventStore


class StoreUnderTest:
    """How the suite comes to its stores."""

    pytestmark = pytest.mark.anyio

    def __init_subclass__(cls) -> None:
        """A test that meets a refusal its store has declared ends there: that it is refused has a test of its own."""
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
        """Drop what ``open_store`` made for ``place``; called after the test's stores were closed."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The event loop that durabus runs on."""
        return "asyncio"

    @pytest.fixture
    async def lab(self, tmp_path: Path) -> AsyncIterator[Lab]:
        """A fresh store and its clock."""
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
        """Another store object on the same data, open from the beginning; the same one where the store has no other."""
        node = await lab.open_another() if lab.shared else lab.store
        yield node
        await node.close()


class StoreConformance(
    StoreUnderTest,
    RegistrationTests,
    EventTests,
    DedupeTests,
    PagingTests,
    CallerTransactionTests,
    ClaimTests,
    ExpiryTests,
    LateSettlementTests,
    OrderTests,
    OrderingTests,
    ModeTests,
    SettlementTests,
    StaleWriterTests,
    RepeatTests,
    HandlerClaimTests,
    HandlerResultTests,
    LockTests,
    LogTests,
    LogEntryTests,
    LogPieceTests,
    DeadLetterTests,
    TrimTests,
    TrimLogTests,
    SignalTests,
    LifecycleTests,
):
    """Every sentence of the store contract as a test. Subclass it, name it ``Test…``, and override ``open_store``."""

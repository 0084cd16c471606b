"""The HTTP API and its client keep the contract as far as they can say it: a store behind a server is the store."""

import asyncio
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from tests.conformance.http_store import HttpStore

from durabus.client import Client
from durabus.clock import ManualClock
from durabus.http import create_app
from durabus.http.serving import listen, serve
from durabus.http.settings import Settings
from durabus.model.limits import MAX_ATTEMPTS
from durabus.store.connect import open_store
from durabus.store.contract import EventStore
from durabus.testing.conformance import StoreConformance
from durabus.testing.conformance.claims import ClaimTests, HeldClaimTests
from durabus.testing.conformance.dead_letters import DeadLetterTests, PurgeTests
from durabus.testing.conformance.dedupe import DedupeTests
from durabus.testing.conformance.events import EventTests
from durabus.testing.conformance.expiry import ExpiryTests
from durabus.testing.conformance.late_settlements import LateSettlementTests
from durabus.testing.conformance.log_entries import LogEntryTests
from durabus.testing.conformance.modes import ModeTests, SerialBatchTests
from durabus.testing.conformance.ordering import OrderingTests, OrderTests
from durabus.testing.conformance.repeats import RepeatTests
from durabus.testing.conformance.settlement import SettlementTests
from durabus.testing.conformance.stale_writers import StaleWriterTests
from durabus.testing.conformance.suite import StoreUnderTest

SETTINGS = Settings(max_retries=MAX_ATTEMPTS, scan_every=3600.0)
"""The store has no attempt limit by default; the API must have one, so it is large. Only claims find orphans."""


DIFFERENT = {
    "payloads are stored without the spaces around them, and metadata is an object": [
        "test_a_payload_and_metadata_come_back_byte_for_byte",
    ],
    "every event has a limit of its own: the server's, if it came with none": [
        "test_each_life_leaves_the_entries_of_the_kernel",
        "test_expiring_ends_events_without_attempts_left",
    ],
    "tags, keys and claim tokens are made of fewer characters": [
        "test_every_field_comes_back_as_it_was_sent",
        "test_keys_are_compared_exactly",
        "test_starts_and_renewals_are_judged_one_by_one",
    ],
    "a request claims a thousand events at most": ["test_ten_thousand_events_are_one_batch"],
}
"""Where the API differs from the store, and the tests of that. docs/reference/http.md lists it for users."""


class Worked(StoreUnderTest, DedupeTests, ClaimTests, HeldClaimTests, SettlementTests, StaleWriterTests, RepeatTests):
    """The suite for publishers and workers, without the tests of what the API does differently."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in (name for names in DIFFERENT.values() for name in names):
            hidden: Any = None
            setattr(cls, name, hidden)


class TestMemoryBehindTheApi(Worked):
    async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
        inner = await open_store("memory://", clock=clock)
        app = create_app(inner, settings=SETTINGS)
        client = Client("http://127.0.0.1", transport=httpx2.ASGITransport(app=cast("Any", app)))
        return cast("EventStore", HttpStore(inner, client))


@pytest.mark.long
class TestSQLiteBehindTwoServers(
    Worked,
    EventTests,
    ExpiryTests,
    LateSettlementTests,
    OrderTests,
    OrderingTests,
    ModeTests,
    SerialBatchTests,
    LogEntryTests,
    DeadLetterTests,
    PurgeTests,
):
    async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
        inner = await open_store(f"sqlite:///{place}/bus.db", clock=clock)
        app, listening, ready = create_app(inner, settings=SETTINGS), listen("127.0.0.1", 0), asyncio.Event()
        server = asyncio.create_task(serve(app, listening, stop_within=1, ready=ready.set))

        async def stop() -> None:
            app.stop()
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)
            listening.close()

        await ready.wait()
        client = Client(f"http://127.0.0.1:{listening.getsockname()[1]}")
        return cast("EventStore", HttpStore(inner, client, stop))


def test_what_differs_is_part_of_the_suite() -> None:
    assert {name for names in DIFFERENT.values() for name in names} <= set(dir(StoreConformance))

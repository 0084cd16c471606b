"""The suite can wait in real time for stores that judge leases by a server's clock."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from durabus.clock import ManualClock
from durabus.store.contract import EventStore
from durabus.stores.memory.store import MemoryStore
from durabus.testing.conformance.claims import ClaimTests
from durabus.testing.conformance.expiry import ExpiryTests
from durabus.testing.conformance.suite import StoreUnderTest


@pytest.mark.slow
class TestMemoryStoreInRealTime(StoreUnderTest):
    """One test for each way in which the suite looks at the clock."""

    test_a_second_caller_never_gets_an_event_whose_lease_is_not_over = (
        ExpiryTests.test_a_second_caller_never_gets_an_event_whose_lease_is_not_over
    )
    test_another_worker_takes_over_when_the_lease_is_over = (
        ExpiryTests.test_another_worker_takes_over_when_the_lease_is_over
    )
    test_expired_claims_are_taken_from_every_bus_without_claiming_them = (
        ExpiryTests.test_expired_claims_are_taken_from_every_bus_without_claiming_them
    )
    test_a_claim_moves_the_event_in_one_step = ClaimTests.test_a_claim_moves_the_event_in_one_step

    async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
        store = MemoryStore()
        store.features = replace(store.features, manual_clock=False)
        await store.open()
        return store

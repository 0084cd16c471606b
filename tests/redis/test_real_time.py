"""Leases by the server's own clock. tests/conformance shows all else about them with a manual clock."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.redis.server import forget_keys

from durabus.clock import ManualClock
from durabus.store.contract import EventStore
from durabus.stores.redis.store import RedisStore
from durabus.testing.conformance.claims import ClaimTests
from durabus.testing.conformance.expiry import ExpiryTests
from durabus.testing.conformance.modes import ModeTests
from durabus.testing.conformance.suite import StoreUnderTest


@pytest.mark.slow
class TestRedisStoreInRealTime(StoreUnderTest):
    test_a_claim_moves_the_event_in_one_step = ClaimTests.test_a_claim_moves_the_event_in_one_step
    test_a_delayed_event_is_not_claimed_before_it_is_due = (
        ClaimTests.test_a_delayed_event_is_not_claimed_before_it_is_due
    )
    test_a_second_caller_never_gets_an_event_whose_lease_is_not_over = (
        ExpiryTests.test_a_second_caller_never_gets_an_event_whose_lease_is_not_over
    )
    test_another_worker_takes_over_when_the_lease_is_over = (
        ExpiryTests.test_another_worker_takes_over_when_the_lease_is_over
    )
    test_expired_claims_are_taken_from_every_bus_without_claiming_them = (
        ExpiryTests.test_expired_claims_are_taken_from_every_bus_without_claiming_them
    )
    test_the_lock_is_renewed_with_the_claim = ModeTests.test_the_lock_is_renewed_with_the_claim
    test_the_lock_of_an_expired_claim_can_be_taken = ModeTests.test_the_lock_of_an_expired_claim_can_be_taken

    @pytest.fixture(autouse=True)
    def server(self, url: str) -> None:
        self.url = url

    async def open_store(self, place: Path, clock: ManualClock) -> EventStore:
        store = RedisStore.from_url(self.url)
        store.features = replace(store.features, manual_clock=False)
        await store.open()
        return store

    async def forget(self, place: Path) -> None:
        forget_keys(self.url)

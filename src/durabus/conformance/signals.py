"""Proof of ``wait_for_work``."""

from __future__ import annotations

import anyio
import pytest

from durabus.conformance.lab import BUS, OTHER_BUS, Lab, batch
from durabus.model.settlement import Complete, Release
from durabus.store.contract import EventStore

LONG = 60.0
SHORT = 0.05


class SignalTests:
    """A hint that saves latency and is needed for nothing."""

    async def test_an_idle_wait_ends_with_its_timeout(self, lab: Lab, other_node: EventStore) -> None:
        """Wait until ``bus`` may have something to claim, at most ``timeout`` seconds; False if nothing was heard."""
        with anyio.fail_after(LONG / 2):
            assert await lab.store.wait_for_work(BUS, timeout=SHORT) is False
            assert await other_node.wait_for_work(BUS, timeout=0) is False

    @pytest.mark.parametrize("published_on", ["the same node", "the other node"])
    async def test_a_publish_wakes_who_waits(self, lab: Lab, other_node: EventStore, published_on: str) -> None:
        """Wait until ``bus`` may have something to claim, at most ``timeout`` seconds; False if nothing was heard."""
        publisher = lab.store if published_on == "the same node" else other_node

        async def publish() -> None:
            await anyio.sleep(SHORT)
            await publisher.add_events(batch(1))

        with anyio.fail_after(LONG / 2):
            async with anyio.create_task_group() as group:
                group.start_soon(publish)
                assert await lab.store.wait_for_work(BUS, timeout=LONG) is True

    async def test_all_who_wait_are_woken(self, lab: Lab) -> None:
        """Wait until ``bus`` may have something to claim, at most ``timeout`` seconds; False if nothing was heard."""
        heard: list[bool] = []

        async def wait() -> None:
            heard.append(await lab.store.wait_for_work(BUS, timeout=LONG))

        with anyio.fail_after(LONG / 2):
            async with anyio.create_task_group() as group:
                for _ in range(5):
                    group.start_soon(wait)
                await anyio.sleep(SHORT)
                await lab.publish(1)
        assert heard == [True] * 5

    async def test_what_is_there_already_ends_the_wait_at_once(self, lab: Lab) -> None:
        """What is there already ends the wait at once."""
        await lab.publish(1)
        with anyio.fail_after(LONG / 2):
            assert await lab.store.wait_for_work(BUS, timeout=LONG) is True

    async def test_a_released_event_wakes_who_waits(self, lab: Lab) -> None:
        """Wait until ``bus`` may have something to claim, at most ``timeout`` seconds; False if nothing was heard."""
        claim = await lab.claimed()

        async def release() -> None:
            await anyio.sleep(SHORT)
            await lab.settle_one(Release(claim.ref))

        with anyio.fail_after(LONG / 2):
            async with anyio.create_task_group() as group:
                group.start_soon(release)
                assert await lab.store.wait_for_work(BUS, timeout=LONG) is True

    async def test_an_event_that_becomes_due_ends_the_wait(self, lab: Lab) -> None:
        """It also comes when an event of ``bus`` becomes due or its lease ends, if this store object knows of it."""
        await lab.publish_one(delay=2 * SHORT)
        with anyio.fail_after(LONG / 2):
            assert await lab.store.wait_for_work(BUS, timeout=LONG) is True

    async def test_a_lease_that_ends_ends_the_wait(self, lab: Lab) -> None:
        """It also comes when an event of ``bus`` becomes due or its lease ends, if this store object knows of it."""
        await lab.publish(1)
        await lab.claim_one(lease=max(2 * SHORT, lab.store.features.minimum_lease))
        with anyio.fail_after(LONG / 2):
            assert await lab.store.wait_for_work(BUS, timeout=LONG) is True

    async def test_without_any_hint_every_event_is_still_claimed(self, lab: Lab, other_node: EventStore) -> None:
        """A hint: it may come too early, for nothing, or not at all; with all hints lost only latency changes."""
        await lab.publish(3)
        await other_node.add_events(batch(3, bus=OTHER_BUS))
        for bus in (BUS, OTHER_BUS):
            claims = await lab.claim(bus=bus, limit=10)
            assert len(claims) == 3
            await lab.settle(*(Complete(claim.ref) for claim in claims))
        assert await lab.store.active_buses() == []

    async def test_a_cancelled_wait_leaves_nothing_behind(self, lab: Lab) -> None:
        """A hint: it may come too early, for nothing, or not at all; with all hints lost only latency changes."""
        with anyio.move_on_after(SHORT) as scope:
            await lab.store.wait_for_work(BUS, timeout=LONG)
        assert scope.cancelled_caught
        with anyio.fail_after(LONG / 2):
            await lab.publish(1)
            assert len(await lab.claim()) == 1

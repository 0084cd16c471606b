"""Proof of ``trim_log``: what an archive has verified may go, and nothing else."""

from __future__ import annotations

import pytest

from durabus.conformance.lab import BUS, OTHER_BUS, Lab
from durabus.errors import InvalidEventError
from durabus.model.event import new_event_id
from durabus.model.settlement import Complete
from durabus.model.statuses import EventStatus
from durabus.store.contract import EventStore
from durabus.store.log import START

COMPLETED = EventStatus.COMPLETED


class TrimLogTests:
    """The archive gate."""

    async def test_events_that_ended_up_to_the_position_go_with_their_entries(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """COMPLETED events go with all their entries, as in ``trim_event_history``."""
        first = await lab.ended(COMPLETED, idempotency_key="k")
        verified = await lab.store.log_head()
        second = await lab.ended(COMPLETED, bus=OTHER_BUS)
        kept = [entry for entry in await lab.log() if entry.id == second.id]
        assert await lab.store.trim_log(until=verified) == 3
        assert await lab.log(other_node) == kept
        assert await lab.store.get_event(first.event_id) is None
        assert await lab.store.get_event(second.id) == second
        again = await lab.publish_one(event_id=first.event_id, idempotency_key="k")
        assert again.id > first.id

    async def test_an_event_that_ends_beyond_the_position_stays_whole(self, lab: Lab) -> None:
        """Forget what ended at or before position ``until``, ``older_than`` seconds ago or longer, on every bus."""
        claim = await lab.claimed()
        verified = await lab.store.log_head()
        await lab.settle_one(Complete(claim.ref))
        before = await lab.picture()
        assert await lab.store.trim_log(until=verified) == 0
        assert await lab.picture() == before
        assert await lab.store.trim_log(until=await lab.store.log_head()) == 3
        assert await lab.log() == []

    @pytest.mark.parametrize("status", [status for status in EventStatus if status is not COMPLETED])
    async def test_live_events_and_dead_letters_keep_everything(self, lab: Lab, status: EventStatus) -> None:
        """Live events and dead letters keep all of theirs."""
        await lab.ended(status)
        before = await lab.picture()
        assert await lab.store.trim_log(until=await lab.store.log_head()) == 0
        assert await lab.picture() == before

    async def test_every_bus_is_trimmed(self, lab: Lab) -> None:
        """Forget what ended at or before position ``until``, ``older_than`` seconds ago or longer, on every bus."""
        await lab.ended(COMPLETED)
        await lab.ended(COMPLETED, bus=OTHER_BUS)
        assert await lab.store.trim_log(until=await lab.store.log_head()) == 6
        assert (await lab.store.counts()).completed == 0

    async def test_younger_events_stay(self, lab: Lab) -> None:
        """Forget what ended at or before position ``until``, ``older_than`` seconds ago or longer, on every bus."""
        await lab.ended(COMPLETED)
        await lab.advance(20 * lab.moment)
        young = await lab.ended(COMPLETED)
        head = await lab.store.log_head()
        assert await lab.store.trim_log(until=head, older_than=10 * lab.moment) == 3
        assert await lab.all_events() == [young]

    @pytest.mark.parametrize("gone_by", ["purge", "remove"])
    async def test_entries_that_purged_and_removed_events_left_go_up_to_the_position(
        self, lab: Lab, gone_by: str
    ) -> None:
        """Entries that purged or removed events left there go too."""
        dead = await lab.ended(EventStatus.FAILED)
        entries = await lab.log()
        if gone_by == "purge":
            assert await lab.store.purge_dead_letters(created_until_ts=dead.created_ts, bus=BUS) == 1
        else:
            assert await lab.store.remove_event(dead.id)
        assert await lab.log() == entries
        assert await lab.store.trim_log(until=entries[1].position) == 2
        assert await lab.log() == entries[2:]
        assert await lab.store.trim_log(until=entries[2].position) == 1
        assert await lab.log() == []

    async def test_an_event_published_again_under_its_old_id_is_not_the_old_one(self, lab: Lab) -> None:
        """Entries that purged or removed events left there go too."""
        old = await lab.publish_one(event_id=new_event_id())
        await lab.store.remove_event(old.id)
        new = await lab.publish_one(event_id=old.event_id)
        assert await lab.store.trim_log(until=await lab.store.log_head()) == 1
        assert [entry.id for entry in await lab.log()] == [new.id]
        assert await lab.store.get_event(new.event_id) == new

    async def test_the_oldest_go_first_and_at_most_limit(self, lab: Lab) -> None:
        """Oldest position first, at most ``limit`` events of each kind in one call. Returns how many entries went."""
        for _ in range(3):
            await lab.ended(COMPLETED)
        removed = await lab.publish(3)
        for event in removed:
            await lab.store.remove_event(event.id)
        head = await lab.store.log_head()
        newest = (await lab.all_events())[0]
        assert await lab.store.trim_log(until=head, limit=2) == 2 * 3 + 2
        assert await lab.all_events() == [newest]
        assert [entry.id for entry in await lab.log()] == [newest.id] * 3 + [removed[2].id]
        assert [await lab.store.trim_log(until=head, limit=2) for _ in range(2)] == [4, 0]

    @pytest.mark.parametrize("position", ["nonsense", "-1", "9" * 40])
    async def test_a_foreign_position_trims_nothing(self, lab: Lab, position: str) -> None:
        """Raises ``InvalidEventError`` for a position this store did not make."""
        await lab.ended(COMPLETED)
        with pytest.raises(InvalidEventError):
            await lab.store.trim_log(until=position)
        assert await lab.store.trim_log(until=START) == 0
        assert (await lab.store.counts()).completed == 1

"""Proof of the ways in which a store deletes COMPLETED and CANCELLED events."""

from __future__ import annotations

from functools import partial

import pytest

from durabus.errors import InvalidEventError
from durabus.model.event import Event, new_event_id
from durabus.model.log_entry import LogArchives
from durabus.model.settlement import Complete
from durabus.model.statuses import HISTORY, EventStatus
from durabus.store.contract import EventStore
from durabus.store.log import ARCHIVE, START
from durabus.testing.conformance.lab import BUS, OTHER_BUS, Lab, reader_lock

COMPLETED = EventStatus.COMPLETED
BY = pytest.mark.parametrize("by", ["age", "count"])


async def _forget(lab: Lab, by: str, bus: str = BUS, limit: int = 10_000) -> int:
    if by == "age":
        return await lab.store.trim_event_history(bus, older_than=0, limit=limit)
    return await lab.store.cleanup_excess_events(bus, keep=0, limit=limit)


async def _completed(lab: Lab, count: int, apart: float = 0.0) -> list[Event]:
    events = []
    for _ in range(count):
        events.append(await lab.ended(COMPLETED))
        if apart:
            await lab.advance(apart)
    return events


async def _left(node: EventStore, events: list[Event]) -> list[bool]:
    return [await node.has_event(event.id) for event in events]


class TrimTests:
    """Deleting by age and by count."""

    async def test_events_are_forgotten_by_the_time_they_ended(self, lab: Lab, other_node: EventStore) -> None:
        """Delete COMPLETED and CANCELLED events that ended ``older_than`` seconds ago or longer, and their entries."""
        events = await _completed(lab, 3, 10 * lab.moment)
        assert await lab.store.trim_event_history(BUS, older_than=35 * lab.moment) == 0
        assert await lab.store.trim_event_history(BUS, older_than=20 * lab.moment) == 2
        assert await _left(other_node, events) == [False, False, True]

    async def test_the_age_is_counted_from_the_end_not_from_publishing(self, lab: Lab) -> None:
        """Delete COMPLETED and CANCELLED events that ended ``older_than`` seconds ago or longer, and their entries."""
        claim = await lab.claimed()
        await lab.advance(20 * lab.moment)
        await lab.settle_one(Complete(claim.ref))
        assert await lab.store.trim_event_history(BUS, older_than=10 * lab.moment) == 0
        await lab.advance(10 * lab.moment)
        assert await lab.store.trim_event_history(BUS, older_than=10 * lab.moment) == 1

    @pytest.mark.parametrize(("keep", "gone"), [(0, 5), (1, 4), (4, 1), (5, 0), (50, 0)])
    async def test_events_beyond_the_newest_are_forgotten(
        self, lab: Lab, other_node: EventStore, keep: int, gone: int
    ) -> None:
        """Like ``trim_event_history``, but delete all such events except the ``keep`` newest by ``id``."""
        events = await _completed(lab, 5)
        assert await lab.store.cleanup_excess_events(BUS, keep=keep) == gone
        assert await _left(other_node, events) == [False] * gone + [True] * (5 - gone)

    async def test_newest_means_largest_id_whichever_ended_last(self, lab: Lab, other_node: EventStore) -> None:
        """Like ``trim_event_history``, but delete all such events except the ``keep`` newest by ``id``."""
        events = await lab.publish(3)
        claims = await lab.claim(limit=3)
        for claim in reversed(claims):
            await lab.settle_one(Complete(claim.ref))
            await lab.advance(lab.moment)
        assert await lab.store.cleanup_excess_events(BUS, keep=1) == 2
        assert await _left(other_node, events) == [False, False, True]

    @BY
    async def test_the_oldest_ids_go_first_and_at_most_limit(self, lab: Lab, other_node: EventStore, by: str) -> None:
        """Oldest ``id`` first, at most ``limit`` in one call. Live events and dead letters are never touched.

        Returns how many were deleted.
        """
        events = await lab.publish(5)
        claims = await lab.claim(limit=5)
        for claim in reversed(claims):
            await lab.settle_one(Complete(claim.ref))
            await lab.advance(lab.moment)
        assert await _forget(lab, by, limit=2) == 2
        assert await _left(other_node, events) == [False, False, True, True, True]
        assert [await _forget(lab, by, limit=2) for _ in range(3)] == [2, 1, 0]

    @BY
    @pytest.mark.parametrize("status", list(EventStatus))
    async def test_only_events_of_the_history_are_forgotten(self, lab: Lab, by: str, status: EventStatus) -> None:
        """Oldest ``id`` first, at most ``limit`` in one call; live events and dead letters are never touched."""
        event = await lab.ended(status)
        before = await lab.picture()
        gone = await _forget(lab, by)
        assert gone == (1 if status in HISTORY else 0)
        assert await lab.store.has_event(event.event_id) is not (status in HISTORY)
        if status not in HISTORY:
            assert await lab.picture() == before

    async def test_cancelled_events_count_as_kept(self, lab: Lab, other_node: EventStore) -> None:
        """Like ``trim_event_history``, but delete all such events except the ``keep`` newest by ``id``."""
        statuses = (COMPLETED, EventStatus.CANCELLED, COMPLETED, EventStatus.CANCELLED)
        events = sorted([await lab.ended(status) for status in statuses], key=lambda event: event.id)
        assert await lab.store.cleanup_excess_events(BUS, keep=2) == 2
        assert await _left(other_node, events) == [False, False, True, True]
        left, kept = await lab.store.counts(BUS), [event.status for event in events[2:]]
        assert (left.completed, left.cancelled) == (kept.count(COMPLETED), kept.count(EventStatus.CANCELLED))

    @BY
    async def test_live_events_and_dead_letters_do_not_count_as_kept(self, lab: Lab, by: str) -> None:
        """Oldest ``id`` first, at most ``limit`` in one call; live events and dead letters are never touched."""
        done = await lab.ended(COMPLETED)
        await lab.ended(EventStatus.FAILED)
        await lab.publish(3)
        if by == "count":
            assert await lab.store.cleanup_excess_events(BUS, keep=1) == 0
        assert await _forget(lab, by) == 1
        assert await lab.store.get_event(done.id) is None
        left = await lab.store.counts()
        assert (left.pending, left.failed, left.completed) == (3, 1, 0)

    @BY
    async def test_nodes_that_trim_side_by_side_delete_each_event_once(self, lab: Lab, by: str) -> None:
        """Returns how many were deleted."""
        await _completed(lab, 6)
        assert sum(await lab.race([partial(_forget, lab, by)] * 4)) == 6
        assert (await lab.store.counts()).completed == 0

    @BY
    async def test_other_buses_keep_their_history(self, lab: Lab, other_node: EventStore, by: str) -> None:
        """Delete COMPLETED and CANCELLED events that ended ``older_than`` seconds ago or longer, and their entries."""
        mine = await lab.ended(COMPLETED)
        theirs = await lab.ended(COMPLETED, bus=OTHER_BUS)
        assert await _forget(lab, by, "nowhere") == 0
        assert await _forget(lab, by) == 1
        assert await _left(other_node, [mine, theirs]) == [False, True]

    @BY
    async def test_the_log_entries_of_forgotten_events_go_too(self, lab: Lab, other_node: EventStore, by: str) -> None:
        """Delete COMPLETED and CANCELLED events that ended ``older_than`` seconds ago or longer, and their entries."""
        first = await lab.ended(COMPLETED)
        dead = await lab.ended(EventStatus.FAILED)
        second = await lab.ended(COMPLETED)
        kept = [entry for entry in await lab.log() if entry.id == dead.id]
        lag = await lab.store.log_lag("")
        assert await _forget(lab, by) == 2
        assert await lab.log(other_node) == kept
        assert await lab.store.log_lag("") == lag - 6
        assert await lab.store.log_head() == kept[-1].position
        for event in (first, second):
            assert await lab.store.read_event_log(event.event_id) == []
        assert await lab.store.read_event_log(dead.id) == kept

    @BY
    async def test_ids_and_keys_of_forgotten_events_are_free_again(self, lab: Lab, by: str) -> None:
        """Their ids and keys can be used again."""
        event = await lab.ended(COMPLETED, event_id=new_event_id(), idempotency_key="k")
        assert await _forget(lab, by) == 1
        assert await lab.store.get_event(event.event_id) is None
        again = await lab.publish_one(event_id=event.event_id, idempotency_key="k")
        assert again.id > event.id
        assert (again.status, again.attempts, again.fence) == (EventStatus.PENDING, 0, 0)
        assert [entry.action.value for entry in await lab.store.read_event_log(again.event_id)] == ["PUBLISHED"]

    @BY
    async def test_what_is_kept_keeps_its_order_and_content(self, lab: Lab, by: str) -> None:
        """Oldest ``id`` first, at most ``limit`` in one call; live events and dead letters are never touched."""
        await _completed(lab, 6)
        before = await lab.all_events()
        assert await _forget(lab, by, limit=4) == 4
        assert await lab.all_events() == before[:2]
        assert (await lab.store.counts()).completed == 2


class TrimLogTests:
    """Deleting up to a position of the log that is archived."""

    async def test_events_that_ended_up_to_the_position_go_with_their_entries(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """COMPLETED and CANCELLED events are deleted with all their entries, as in ``trim_event_history``."""
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
        """Delete what ended at or before position ``until``, ``older_than`` seconds ago or longer, on every bus."""
        claim = await lab.claimed()
        verified = await lab.store.log_head()
        await lab.settle_one(Complete(claim.ref))
        before = await lab.picture()
        assert await lab.store.trim_log(until=verified) == 0
        assert await lab.picture() == before
        assert await lab.store.trim_log(until=await lab.store.log_head()) == 3
        assert await lab.log() == []

    @pytest.mark.parametrize("status", [status for status in EventStatus if status not in HISTORY])
    async def test_live_events_and_dead_letters_keep_everything(self, lab: Lab, status: EventStatus) -> None:
        """Live events and dead letters keep all their entries."""
        await lab.ended(status)
        before = await lab.picture()
        assert await lab.store.trim_log(until=await lab.store.log_head()) == 0
        assert await lab.picture() == before

    async def test_cancelled_events_are_trimmed(self, lab: Lab) -> None:
        """COMPLETED and CANCELLED events are deleted with all their entries, as in ``trim_event_history``."""
        waiting = await lab.publish_one()
        await lab.store.cancel_event(waiting.id, reason="not wanted")
        await lab.ended(EventStatus.CANCELLED)
        assert await lab.store.trim_log(until=await lab.store.log_head()) == 5
        assert await lab.log() == []
        assert (await lab.store.counts()).cancelled == 0

    async def test_every_bus_is_trimmed(self, lab: Lab) -> None:
        """Delete what ended at or before position ``until``, ``older_than`` seconds ago or longer, on every bus."""
        await lab.ended(COMPLETED)
        await lab.ended(COMPLETED, bus=OTHER_BUS)
        assert await lab.store.trim_log(until=await lab.store.log_head()) == 6
        assert (await lab.store.counts()).completed == 0

    async def test_younger_events_stay(self, lab: Lab) -> None:
        """Delete what ended at or before position ``until``, ``older_than`` seconds ago or longer, on every bus."""
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
        """Entries that purged or removed events left there are deleted too."""
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
        """Entries that purged or removed events left there are deleted too."""
        old = await lab.publish_one(event_id=new_event_id())
        await lab.store.remove_event(old.id)
        new = await lab.publish_one(event_id=old.event_id)
        assert await lab.store.trim_log(until=await lab.store.log_head()) == 1
        assert [entry.id for entry in await lab.log()] == [new.id]
        assert await lab.store.get_event(new.event_id) == new

    async def test_the_oldest_go_first_and_at_most_limit(self, lab: Lab) -> None:
        """Oldest position first, at most ``limit`` events of each kind in one call.

        Returns how many entries it deleted.
        """
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
        """Raises ``InvalidEventError`` for a position that this store did not make."""
        await lab.ended(COMPLETED)
        with pytest.raises(InvalidEventError):
            await lab.store.trim_log(until=position)
        assert await lab.store.trim_log(until=START) == 0
        assert (await lab.store.counts()).completed == 1


async def _archive(lab: Lab, name: str, position: str | None) -> None:
    lock = await reader_lock(lab, name)
    await lab.store.save_position(f"{ARCHIVE}{name}", position, lock=lock)
    await lab.store.release_lock(lock)


async def _trim_all(lab: Lab, by: str) -> None:
    if by == "position":
        await lab.store.trim_log(until=await lab.store.log_head())
    else:
        await _forget(lab, by)


class ArchiveTests:
    """No way to trim passes an archive of the log."""

    @pytest.mark.parametrize("by", ["age", "count", "position"])
    async def test_what_an_archive_lacks_stays(self, lab: Lab, other_node: EventStore, by: str) -> None:
        """None forgets the reader. If its name begins with ``ARCHIVE``, no trim deletes an event that has an entry
        after ``position``.
        """
        await _archive(lab, "lake", START)
        events = await _completed(lab, 2)
        await _trim_all(lab, by)
        assert await _left(other_node, events) == [True, True]
        await _archive(lab, "lake", await lab.store.log_head())
        events += await _completed(lab, 1)
        await _trim_all(lab, by)
        assert await _left(other_node, events) == [False, False, True]
        await _archive(lab, "lake", None)
        await _trim_all(lab, by)
        assert await lab.log() == []

    @pytest.mark.parametrize("by", ["age", "count", "position"])
    async def test_the_archive_with_the_smallest_position_counts(self, lab: Lab, by: str) -> None:
        """The name of an archive begins with this: a reader that keeps a copy of the log, such as a lake."""
        positions = []
        events = []
        for _ in range(3):
            events += await _completed(lab, 1)
            positions.append(await lab.store.log_head())
        await _archive(lab, "far", positions[2])
        await _archive(lab, "near", positions[0])
        await _trim_all(lab, by)
        assert await _left(lab.store, events) == [False, True, True]

    @BY
    async def test_an_event_that_ended_late_stays_alone(self, lab: Lab, other_node: EventStore, by: str) -> None:
        """Events that ended after the position of an archive stay, see ``Log.save_position``."""
        events = await lab.publish(5)
        claims = await lab.claim(limit=5)
        await lab.settle(*(Complete(claim.ref) for claim in claims if claim.event.id != events[1].id))
        await _archive(lab, "lake", await lab.store.log_head())
        await lab.settle(*(Complete(claim.ref) for claim in claims if claim.event.id == events[1].id))
        if by == "age":
            assert await lab.store.trim_event_history(BUS, older_than=0, limit=2) == 2
        else:
            assert await lab.store.cleanup_excess_events(BUS, keep=2) == 2
        assert await _left(other_node, events) == [False, True, False, True, True]

    async def test_what_one_archive_lacks_can_be_trimmed(self, lab: Lab) -> None:
        """Nothing after the position of an archive is deleted.

        The archive with the name ``ignoring`` does not count.
        """
        await _archive(lab, "lake", START)
        await _archive(lab, "other", START)
        await _completed(lab, 2)
        dead = await lab.ended(EventStatus.FAILED)
        assert await lab.store.purge_dead_letters_by_id([dead.id]) == [dead.id]
        head = await lab.store.log_head()
        assert await lab.store.trim_log(until=head, ignoring=f"{ARCHIVE}lake") == 0
        await _archive(lab, "other", head)
        assert await lab.store.trim_log(until=head) == 0
        assert await lab.store.trim_log(until=head, ignoring=f"{ARCHIVE}lake") == 9
        assert await lab.log() == []

    async def test_a_new_archive_learns_whether_the_log_is_whole(self, lab: Lab, other_node: EventStore) -> None:
        """Return the position of each archive, and whether any entry was ever trimmed.

        A new archive of a log that was trimmed cannot be complete.
        """
        assert await lab.store.read_archives() == LogArchives(positions={}, trimmed=False)
        await _completed(lab, 1)
        head = await lab.store.log_head()
        await _archive(lab, "a", head)
        await _archive(lab, "b", START)
        positions = {f"{ARCHIVE}a": head, f"{ARCHIVE}b": START}
        assert await other_node.read_archives() == LogArchives(positions=positions, trimmed=False)
        assert await lab.store.read_position(f"{ARCHIVE}a") == head
        await _archive(lab, "b", None)
        await _trim_all(lab, "age")
        assert await other_node.read_archives() == LogArchives(positions={f"{ARCHIVE}a": head}, trimmed=True)

    @pytest.mark.parametrize("position", ["nonsense", "-1", "9" * 40])
    async def test_an_archive_has_a_position_of_this_log(self, lab: Lab, position: str) -> None:
        """Then the call raises ``InvalidEventError`` for a position that this store did not make."""
        with pytest.raises(InvalidEventError):
            await _archive(lab, "lake", position)
        assert (await lab.store.read_archives()).positions == {}

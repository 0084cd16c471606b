"""Proof of ``durabus.store.log``: reading, positions, readers."""

from __future__ import annotations

import anyio
import pytest

from durabus.errors import InvalidEventError, LeaseLost
from durabus.model.claim import LockClaim, new_token
from durabus.model.event import new_event_id
from durabus.model.log_entry import LogEntry, row_of
from durabus.model.settlement import Complete, Fail
from durabus.model.statuses import Action, EventStatus
from durabus.store.contract import EventStore
from durabus.store.log import START
from durabus.testing.conformance.lab import ALICE, BUS, Lab, batch, reader_lock

NOT_POSITIONS = ["nonsense", "-1", " ", "1.5", "0x10", "1; drop table", "\u0661", "9" * 40, "\x00"]


class LogTests:
    """The log as its readers see it."""

    async def test_an_empty_log_has_no_entries_and_no_head(self, lab: Lab) -> None:
        """The position of the newest readable entry; ``START`` if there is none."""
        page = await lab.store.read_log()
        assert (page.entries, page.next) == ([], START)
        assert await lab.store.log_head() == START
        assert await lab.store.log_lag(START) == 0

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 100])
    async def test_pages_give_every_entry_once_and_in_order(self, lab: Lab, other_node: EventStore, limit: int) -> None:
        """Return the entries after position ``after``, up to and including ``until``, in commit order, at most
        ``limit``.
        """
        await lab.publish(5)
        await lab.claim(limit=2)
        whole = (await lab.store.read_log()).entries
        assert len(whole) == 7
        assert await lab.log(other_node, limit=limit) == whole
        first = await lab.store.read_log(limit=limit)
        assert len(first.entries) == min(limit, 7)
        assert first.next == first.entries[-1].position

    async def test_the_start_is_before_the_first_entry(self, lab: Lab) -> None:
        """The position before the first entry."""
        first, second = await lab.publish(2)
        assert [entry.id for entry in (await lab.store.read_log(after=START)).entries] == [first.id, second.id]
        assert (await lab.store.read_log(until=START)).entries == []

    async def test_entries_can_be_read_up_to_a_position(self, lab: Lab) -> None:
        """Return the entries after position ``after``, up to and including ``until``, in commit order, at most
        ``limit``.
        """
        await lab.publish(6)
        entries = await lab.log()
        until = entries[3].position
        assert (await lab.store.read_log(until=until)).entries == entries[:4]
        middle = await lab.store.read_log(after=entries[1].position, until=until)
        assert middle.entries == entries[2:4]
        none = await lab.store.read_log(after=until, until=until)
        assert (none.entries, none.next) == ([], until)
        assert (await lab.store.read_log(after=until, until=entries[0].position)).entries == []

    async def test_with_nothing_new_the_position_stays(self, lab: Lab) -> None:
        """If there is nothing new, ``next`` is ``after``."""
        await lab.publish(2)
        head = await lab.store.log_head()
        page = await lab.store.read_log(after=head)
        assert (page.entries, page.next) == ([], head)

    async def test_head_and_lag_follow_the_log(self, lab: Lab, other_node: EventStore) -> None:
        """Return how many readable entries there are after position ``after``."""
        await lab.publish(5)
        entries = await lab.log()
        assert await other_node.log_head() == entries[-1].position
        assert await other_node.log_lag(START) == 5
        assert [await lab.store.log_lag(entry.position) for entry in entries] == [4, 3, 2, 1, 0]

    async def test_a_committed_publish_does_not_hold_back_the_log(self, lab: Lab) -> None:
        """Return the transaction that has hidden entries from readers for ``HELD_AFTER`` seconds or more, or None."""
        assert await lab.store.log_hold() is None
        await lab.publish(2)
        assert await lab.store.log_hold() is None

    async def test_log_partitions_are_made_once_and_change_no_entry(self, lab: Lab, other_node: EventStore) -> None:
        """Make the log partitions of the next days, and return how many were made.

        Any process may call this at any time: a repeat makes none. A store whose log has no partitions returns 0.
        """
        await lab.publish(2)
        entries = await lab.log()
        await lab.store.make_log_partitions()
        assert await other_node.make_log_partitions() == 0
        assert await lab.log(other_node) == entries

    async def test_every_entry_has_a_position_of_its_own_and_both_nodes_agree(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """A position is opaque, stays valid, and is never given to a second entry."""
        await lab.publish(3)
        await other_node.add_events(batch(3))
        entries = await lab.log()
        assert len({entry.position for entry in entries} - {START}) == 6
        assert await lab.log(other_node) == entries

    @pytest.mark.parametrize("gone_by", ["trim", "remove"])
    async def test_a_position_stays_valid_when_its_entry_is_gone(self, lab: Lab, gone_by: str) -> None:
        """A position is opaque, stays valid, and is never given to a second entry."""
        await lab.ended(EventStatus.COMPLETED)
        old = [entry.position for entry in await lab.log()]
        if gone_by == "trim":
            assert await lab.store.trim_event_history(BUS, older_than=0) == 1
            assert await lab.log() == []
        else:
            await lab.store.remove_event((await lab.all_events())[0].id)
        for position in old:
            assert await lab.store.log_lag(position) == len(await lab.log(after=position))
        await lab.publish(2)
        new = await lab.log(after=old[-1])
        assert [entry.action for entry in new] == [Action.PUBLISHED] * 2
        assert not {entry.position for entry in new} & set(old)
        assert (await lab.log(after=old[0]))[-2:] == new

    @pytest.mark.parametrize("position", NOT_POSITIONS)
    async def test_a_position_that_this_store_did_not_make_is_refused(self, lab: Lab, position: str) -> None:
        """Raises ``InvalidEventError`` for a position that this store did not make."""
        await lab.publish(2)
        with pytest.raises(InvalidEventError):
            await lab.store.read_log(after=position)
        with pytest.raises(InvalidEventError):
            await lab.store.read_log(until=position)
        with pytest.raises(InvalidEventError):
            await lab.store.log_lag(position)

    async def test_an_event_that_ends_late_is_not_skipped(self, lab: Lab) -> None:
        """A reader that follows ``LogPage.next`` gets every entry once, in order, even while others write."""
        await lab.publish(3)
        first, second, third = await lab.claim(limit=3)
        await lab.settle(Complete(third.ref), Complete(second.ref))
        head = await lab.store.log_head()
        await lab.settle(Complete(first.ref))
        (entry,) = await lab.log(after=head)
        assert (entry.action, entry.id) == (Action.COMPLETED, first.event.id)

    async def test_a_reader_misses_nothing_while_tasks_write(self, lab: Lab, other_node: EventStore) -> None:
        """A reader that follows ``LogPage.next`` gets every entry once, in order, even while others write."""
        seen: list[LogEntry] = []
        writing = anyio.Event()

        async def write(node: EventStore, turns: int) -> None:
            for _ in range(turns):
                await node.add_events(batch(3))
                claims = await lab.claim(node, limit=2)
                await node.settle_events([Complete(claim.ref) for claim in claims])
                await anyio.lowlevel.checkpoint()

        async def read() -> None:
            after = START
            while True:
                over = writing.is_set()
                page = await other_node.read_log(after=after, limit=5)
                seen.extend(page.entries)
                after = page.next
                if over and not page.entries:
                    return
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            async with anyio.create_task_group() as writers:
                for node in (lab.store, other_node, lab.store):
                    writers.start_soon(write, node, 8)
            writing.set()
        assert len(seen) == 3 * 8 * (3 + 2 + 2)
        assert seen == await lab.log()

    async def test_a_reader_misses_nothing_while_threads_write(self, lab: Lab) -> None:
        """A reader that follows ``LogPage.next`` gets every entry once, in order, even while others write."""
        writers, turns = 3, 15
        left = list(range(writers))

        async def work(node: EventStore, number: int) -> list[LogEntry]:
            if number < writers:
                for _ in range(turns):
                    await node.add_events(batch(2))
                left.pop()
                return []
            seen: list[LogEntry] = []
            after = START
            while True:
                over = not left
                page = await node.read_log(after=after, limit=7)
                seen += page.entries
                after = page.next
                if over and not page.entries:
                    return seen

        answers = await lab.race_in_threads(writers + 2, work)
        whole = await lab.log()
        assert len(whole) == writers * turns * 2
        assert answers[writers] == whole
        assert answers[writers + 1] == whole

    async def test_the_trail_of_one_event_is_oldest_first(self, lab: Lab, other_node: EventStore) -> None:
        """Return the entries of one event, oldest first. The list is empty if the event is unknown."""
        await lab.publish(2)
        first, second = await lab.claim(limit=2)
        await lab.settle(Complete(second.ref), Complete(first.ref))
        for ref in (first.event.id, first.event.event_id):
            trail = await other_node.read_event_log(ref)
            assert trail == [entry for entry in await lab.log() if entry.id == first.event.id]
            assert [entry.action.value for entry in trail] == ["PUBLISHED", "PICKED", "COMPLETED"]
        for unknown in (4711, new_event_id()):
            assert await lab.store.read_event_log(unknown) == []

    async def test_a_reader_finds_its_position_again_on_every_node(self, lab: Lab, other_node: EventStore) -> None:
        """Return the position that ``save_position`` saved last; ``START`` if there is none."""
        await lab.publish(2)
        first, second = (entry.position for entry in await lab.log())
        lock = await reader_lock(lab)
        assert await lab.store.read_position("reader") == START
        await lab.store.save_position("reader", first, lock=lock)
        assert await other_node.read_position("reader") == first
        await other_node.save_position("reader", second, lock=lock)
        assert await lab.store.read_position("reader") == second
        await lab.store.save_position("reader", START, lock=lock)
        assert await lab.store.read_position("reader") == START
        assert await lab.store.read_position("another") == START

    async def test_a_reader_that_is_no_archive_may_save_any_text(self, lab: Lab, other_node: EventStore) -> None:
        """Under any other name, ``position`` may be any text: the store does not read it."""
        lock = await reader_lock(lab)
        text = '{"rows": 1, "name": "Größe"}' * 1_000
        await lab.store.save_position("reader", text, lock=lock)
        assert await other_node.read_position("reader") == text
        assert (await other_node.read_archives()).positions == {}
        await lab.store.save_position("reader", None, lock=lock)
        assert await other_node.read_position("reader") == START

    @pytest.mark.parametrize("state", ["never claimed", "released", "late", "renewed"])
    async def test_a_position_is_saved_only_under_a_held_lock(self, lab: Lab, state: str) -> None:
        """Save how far the reader ``name`` has read. Raises ``LeaseLost`` unless ``lock`` is held by its token."""
        await lab.publish()
        head = await lab.store.log_head()
        lock = LockClaim(key="reader", worker_id=ALICE, token=new_token(), fence=1, expires_ts=0.0)
        if state != "never claimed":
            lock = await reader_lock(lab)
        match state:
            case "released":
                await lab.store.release_lock(lock)
            case "late":
                await lab.advance(2 * lab.lease)
            case "renewed":
                lock = await lab.store.renew_lock(lock, lease=2 * lab.lease)
        if state in ("never claimed", "released"):
            with pytest.raises(LeaseLost):
                await lab.store.save_position("reader", head, lock=lock)
            assert await lab.store.read_position("reader") == START
        else:
            await lab.store.save_position("reader", head, lock=lock)
            assert await lab.store.read_position("reader") == head


async def _written(lab: Lab) -> list[LogEntry]:
    """Make entries of every kind: some with tags, errors, payloads and results."""
    await lab.publish(3, tags=["eu", "b2b"], metadata={"source": "web"})
    first, second, _ = await lab.claim(limit=3)
    await lab.settle(Complete(first.ref), Fail(second.ref, "no answer", delay=None, execution_time_ms=1.5))
    return await lab.log()


class LogPieceTests:
    """Cutting the log into pieces for many readers."""

    async def test_rows_are_the_entries_undecoded(self, lab: Lab, other_node: EventStore) -> None:
        """Return the entries of ``read_log`` undecoded: for readers of millions of entries, or of damaged ones.

        Each row is a tuple in the order of ``LOG_COLUMNS``. A column that does not decode is returned as it is.
        """
        entries = await _written(lab)
        page = await other_node.read_log_rows()
        assert page.rows == [row_of(entry) for entry in entries]
        assert page.next == entries[-1].position

    async def test_rows_come_in_the_same_pages(self, lab: Lab) -> None:
        """Return the entries of ``read_log`` undecoded: for readers of millions of entries, or of damaged ones."""
        entries = await _written(lab)
        after, until = entries[0].position, entries[-2].position
        for limit in (1, 2, 100):
            page = await lab.store.read_log(after=after, until=until, limit=limit)
            rows = await lab.store.read_log_rows(after=after, until=until, limit=limit)
            assert (rows.rows, rows.next) == ([row_of(entry) for entry in page.entries], page.next)
        end = await lab.store.read_log_rows(after=entries[-1].position)
        assert (end.rows, end.next) == ([], entries[-1].position)
        with pytest.raises(InvalidEventError):
            await lab.store.read_log_rows(after="nonsense")

    @pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 100])
    async def test_the_log_is_cut_into_pieces_of_so_many_entries(
        self, lab: Lab, other_node: EventStore, rows: int
    ) -> None:
        """Divide the entries after ``after``, up to and including ``until``, into pieces of ``rows`` entries.

        Returns the end position of each piece, in commit order, at most the first ``limit``. The last piece may be
        shorter.
        """
        await lab.publish(5)
        await lab.claim(limit=2)
        positions = [entry.position for entry in await lab.log()]
        head = await lab.store.log_head()
        ends = positions[rows - 1 :: rows]
        assert await other_node.cut_log(until=head, rows=rows) == (ends if ends[-1:] == [head] else [*ends, head])
        inner = await lab.store.cut_log(after=positions[1], until=positions[4], rows=rows)
        assert inner == positions[2:5][rows - 1 :: rows] + ([] if 3 % rows == 0 else [positions[4]])

    async def test_cut_log_returns_at_most_limit_pieces(self, lab: Lab) -> None:
        """Returns the end position of each piece, in commit order, at most the first ``limit``.

        The last piece may be shorter. Without entries the list is empty.
        """
        await lab.publish(5)
        positions = [entry.position for entry in await lab.log()]
        assert await lab.store.cut_log(until=positions[-1], rows=2, limit=1) == [positions[1]]
        assert await lab.store.cut_log(until=positions[-1], rows=2, limit=2) == [positions[1], positions[3]]
        assert await lab.store.cut_log(until=positions[-1], rows=2, limit=0) == []
        assert await lab.store.cut_log(after=positions[-1], until=positions[-1], rows=2) == []
        assert await lab.store.cut_log(after=positions[-1], until=positions[0], rows=2) == []
        assert await lab.store.cut_log(until=START, rows=2) == []

    async def test_forgotten_entries_do_not_count(self, lab: Lab) -> None:
        """Divide the entries after ``after``, up to and including ``until``, into pieces of ``rows`` entries.

        Returns the end position of each piece, in commit order, at most the first ``limit``. The last piece may be
        shorter.
        """
        for _ in range(3):
            await lab.ended(EventStatus.COMPLETED)
        await lab.publish(2)
        gone = await lab.store.log_head()
        await lab.ended(EventStatus.COMPLETED)
        head = await lab.store.log_head()
        assert await lab.store.trim_event_history(BUS, older_than=0) == 4
        left = [entry.position for entry in await lab.log()]
        assert await lab.store.cut_log(until=head, rows=1) == left
        assert await lab.store.cut_log(until=gone, rows=100) == [left[1]]

    async def test_pieces_give_every_entry_once_to_readers_side_by_side(self, lab: Lab, other_node: EventStore) -> None:
        """Pieces can be read in parallel."""
        await lab.publish(11)
        ends = await lab.store.cut_log(until=await lab.store.log_head(), rows=3)
        pieces: dict[int, list[LogEntry]] = {}

        async def read(number: int, after: str, until: str) -> None:
            pieces[number] = (await other_node.read_log(after=after, until=until)).entries

        async with anyio.create_task_group() as group:
            for number, (after, until) in enumerate(zip([START, *ends], ends, strict=False)):
                group.start_soon(read, number, after, until)
        assert [entry for number in sorted(pieces) for entry in pieces[number]] == await lab.log()
        assert [len(pieces[number]) for number in sorted(pieces)] == [3, 3, 3, 2]

    @pytest.mark.parametrize("position", ["nonsense", "-1", "9" * 40])
    async def test_pieces_of_foreign_positions_are_refused(self, lab: Lab, position: str) -> None:
        """Raises ``InvalidEventError`` for a position that this store did not make."""
        await lab.publish(2)
        head = await lab.store.log_head()
        with pytest.raises(InvalidEventError):
            await lab.store.cut_log(after=position, until=head, rows=1)
        with pytest.raises(InvalidEventError):
            await lab.store.cut_log(until=position, rows=1)

"""Proof of what readers of millions ask the log: rows undecoded, and pieces to read side by side."""

from __future__ import annotations

import anyio
import pytest

from durabus.conformance.lab import BUS, Lab
from durabus.errors import InvalidEventError
from durabus.model.log_entry import LogEntry, row_of
from durabus.model.settlement import Complete, Fail
from durabus.model.statuses import EventStatus
from durabus.store.contract import EventStore
from durabus.store.log import START


async def _written(lab: Lab) -> list[LogEntry]:
    """Entries of every kind: some with tags, errors, payload and results."""
    await lab.publish(3, tags=["eu", "b2b"], metadata={"source": "web"})
    first, second, _ = await lab.claim(limit=3)
    await lab.settle(Complete(first.ref), Fail(second.ref, "no answer", delay=None, execution_time_ms=1.5))
    return await lab.log()


class LogPieceTests:
    """The log for many readers at once."""

    async def test_rows_are_the_entries_undecoded(self, lab: Lab, other_node: EventStore) -> None:
        """The entries that ``read_log`` would give, undecoded: for readers of millions, and of what was damaged.
        Each is a tuple in the order of ``LOG_COLUMNS``; a column that does not decode comes as it is.
        """
        entries = await _written(lab)
        page = await other_node.read_log_rows()
        assert page.rows == [row_of(entry) for entry in entries]
        assert page.next == entries[-1].position

    async def test_rows_come_in_the_same_pages(self, lab: Lab) -> None:
        """The entries that ``read_log`` would give, undecoded: for readers of millions, and of what was damaged."""
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
        """Cut what lies after ``after``, up to and with ``until``, into pieces of ``rows`` entries; answer their ends.

        In commit order; the last piece may be shorter.
        """
        await lab.publish(5)
        await lab.claim(limit=2)
        positions = [entry.position for entry in await lab.log()]
        head = await lab.store.log_head()
        ends = positions[rows - 1 :: rows]
        assert await other_node.cut_log(until=head, rows=rows) == (ends if ends[-1:] == [head] else [*ends, head])
        inner = await lab.store.cut_log(after=positions[1], until=positions[4], rows=rows)
        assert inner == positions[2:5][rows - 1 :: rows] + ([] if 3 % rows == 0 else [positions[4]])

    async def test_only_the_first_pieces_are_answered(self, lab: Lab) -> None:
        """In commit order; the last piece may be shorter; at most the first ``limit``. No entries, no pieces."""
        await lab.publish(5)
        positions = [entry.position for entry in await lab.log()]
        assert await lab.store.cut_log(until=positions[-1], rows=2, limit=1) == [positions[1]]
        assert await lab.store.cut_log(until=positions[-1], rows=2, limit=2) == [positions[1], positions[3]]
        assert await lab.store.cut_log(until=positions[-1], rows=2, limit=0) == []
        assert await lab.store.cut_log(after=positions[-1], until=positions[-1], rows=2) == []
        assert await lab.store.cut_log(after=positions[-1], until=positions[0], rows=2) == []
        assert await lab.store.cut_log(until=START, rows=2) == []

    async def test_forgotten_entries_do_not_count(self, lab: Lab) -> None:
        """Cut what lies after ``after``, up to and with ``until``, into pieces of ``rows`` entries; answer their ends.

        In commit order; the last piece may be shorter.
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
        """Pieces can be read side by side."""
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
        """Raises ``InvalidEventError`` for a position this store did not make."""
        await lab.publish(2)
        head = await lab.store.log_head()
        with pytest.raises(InvalidEventError):
            await lab.store.cut_log(after=position, until=head, rows=1)
        with pytest.raises(InvalidEventError):
            await lab.store.cut_log(until=position, rows=1)

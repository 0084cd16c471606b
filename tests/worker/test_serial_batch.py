"""How many events a serial worker takes at once."""

from collections.abc import Sequence

import pytest
from tests.worker.support import WatchedStore, all_completed, filled, working

from durabus.model.claim import ClaimRequest
from durabus.model.event import Event
from durabus.model.settlement import Settlement
from durabus.model.statuses import EventMode
from durabus.store.claims import SettleAnswer
from durabus.worker import serial
from durabus.worker.serial import OVERDUE, QUICK, SerialBatch


class Watch:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()
    monkeypatch.setattr(serial, "monotonic", watch)
    return watch


def run(batch: SerialBatch, watch: Watch, seconds: float, count: int | None = None, ran: int | None = None) -> int:
    claimed = batch.size if count is None else count
    batch.begin(claimed)
    for _ in range(claimed if ran is None else ran):
        batch.one_ran()
    watch.now += seconds
    batch.end()
    return batch.size


def test_the_batch_size_doubles_while_batches_are_quick_up_to_the_limit(watch: Watch) -> None:
    batch = SerialBatch(10)
    assert batch.size == 1
    assert [run(batch, watch, QUICK / 2) for _ in range(5)] == [2, 4, 8, 10, 10]


def test_the_batch_size_does_not_grow_for_want_of_events(watch: Watch) -> None:
    batch = SerialBatch(10)
    run(batch, watch, 0.0)
    assert [run(batch, watch, 0.0, count=1) for _ in range(3)] == [2, 2, 2]


def test_the_batch_size_shrinks_at_once_to_what_is_quick(watch: Watch) -> None:
    batch = SerialBatch(64)
    while batch.size < 64:
        run(batch, watch, 0.0)
    assert run(batch, watch, 4 * QUICK) == 16
    assert run(batch, watch, 100.0) == 1
    assert [run(batch, watch, 100.0) for _ in range(3)] == [1, 1, 1]


def test_what_went_back_unworked_does_not_count(watch: Watch) -> None:
    batch = SerialBatch(64)
    while batch.size < 64:
        run(batch, watch, 0.0)
    assert run(batch, watch, OVERDUE, ran=1) == 1


def test_handlers_that_wait_get_their_events_one_by_one(watch: Watch) -> None:
    batch = SerialBatch(8)
    while batch.size < 8:
        run(batch, watch, 0.0)
    batch.begin(8)
    batch.wait()
    batch.end()
    assert batch.size == 1
    batch.begin(1)
    batch.wait()
    batch.end()
    assert batch.size == 1
    assert run(batch, watch, 0.0) == 2


def test_a_batch_is_overdue_after_a_while(watch: Watch) -> None:
    batch = SerialBatch(8)
    batch.begin(1)
    watch.now += OVERDUE
    assert not batch.is_overdue
    watch.now += 0.001
    assert batch.is_overdue


def test_what_ends_between_batches_changes_nothing(watch: Watch) -> None:
    batch = SerialBatch(8)
    run(batch, watch, 0.0)
    batch.one_ran()
    watch.now += 100.0
    batch.end()
    assert batch.size == 2


class Noting(WatchedStore):
    """Notes the results of claims that came with a settlement."""

    def __init__(self) -> None:
        super().__init__()
        self.brought: list[int] = []

    async def settle_events(
        self,
        settlements: Sequence[Settlement],
        *,
        then_claim: ClaimRequest | None = None,
        connection: object | None = None,
        with_entries: bool = False,
    ) -> SettleAnswer:
        answer = await super().settle_events(
            settlements, then_claim=then_claim, connection=connection, with_entries=with_entries
        )
        if then_claim is not None:
            self.brought.append(len(answer.claims))
        return answer


async def test_no_claim_is_tried_while_a_part_of_the_batch_keeps_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serial, "QUICK", 60.0)
    store, numbers = Noting(), []
    await filled(store, 32)

    async def job(event: Event) -> None:
        numbers.append(event.payload["n"])
        if len(numbers) == 15:
            worker._completer._at_once = 1  # as after a call that one of them broke

    async with working(store, job, mode=EventMode.BUS_SERIAL, concurrency=8) as worker:
        await all_completed(store, 32)
    assert numbers == list(range(32))
    assert store.brought == [2, 4, 8, 8, 8, 1]
    assert store.settled[3:7] == [1, 2, 4, 1]

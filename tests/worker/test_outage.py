"""A store that is away: few calls, few log lines, and a worker that still stops."""

import asyncio
import logging

import pytest
from msgspec.structs import replace
from tests.worker.support import Calls, WatchedStore, all_completed, filled, until, working

from durabus import EventBus, ManualClock
from durabus.errors import StoreUnavailableError
from durabus.model.claim import Claim, ClaimRequest
from durabus.store.outage import LATE, LONGEST_PAUSE, SELDOM, Outage

FOR_EVER = 1_000_000_000


def test_lines_come_at_each_doubling_and_pauses_grow_to_their_limit(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(0.0)
    outage, pauses = Outage(logging.getLogger("test"), "the store fails", clock.now), []
    while clock.now() < 600:
        pauses.append(outage.failed(StoreUnavailableError("connection refused")))
        clock.advance(pauses[-1])
    assert pauses[:5] == [0.5, 0.5, 1.0, 2.0, 4.0]
    assert set(pauses[4:]) == {LONGEST_PAUSE}
    assert len(caplog.records) == 12, "a line after 0, 0.5, 1, 2, 4, 8, 16, … seconds"
    assert caplog.records[0].getMessage() == "the store fails for 0.0 s now, trying again: connection refused"
    caplog.clear()
    caplog.set_level(logging.INFO)
    outage.answered()
    outage.answered()
    assert [record.getMessage() for record in caplog.records] == ["the store fails no longer: it lasted 600.0 s"]
    assert outage.failed(StoreUnavailableError("again")) == 0.5


def test_all_callers_of_one_store_share_its_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(0.0)
    outage = Outage(logging.getLogger("test"), "the store fails", clock.now)
    for _ in range(100):
        outage.failed(StoreUnavailableError("x"))
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info is None


def test_an_outage_lasts_until_each_failed_call_has_succeeded(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(0.0)
    outage = Outage(logging.getLogger("test"), "the store fails", clock.now)
    for _ in range(20):
        outage.failed(StoreUnavailableError("read-only"), "to note handlers")
        outage.failed(StoreUnavailableError("x"))
        outage.answered()
        clock.advance(0.1)
    assert len(caplog.records) == 3, "after 0, 0.5 and 1 seconds, though the store answers others"
    outage.answered("to note handlers")
    assert outage.since is None


def test_a_service_logs_nothing_of_a_short_outage_that_the_worker_reports(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = ManualClock(0.0)
    outage = Outage(logging.getLogger("test"), "the watch fails", clock.now, first_line=LATE)
    outage.failed(StoreUnavailableError("x"))
    clock.advance(LATE - 1)
    outage.failed(StoreUnavailableError("x"))
    outage.answered()
    assert not caplog.records, "neither the outage nor its end"
    outage.failed(StoreUnavailableError("x"))
    clock.advance(LATE)
    outage.failed(StoreUnavailableError("x"))
    outage.answered()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_an_error_that_no_store_raises_shows_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    Outage(logging.getLogger("test"), "the store fails").failed(ValueError("a bug"), unforeseen=True)
    assert caplog.records[0].exc_info is not None


def test_a_part_beside_the_worker_says_less(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(0.0)
    outage = Outage(logging.getLogger("test"), "the store fails", clock.now, second_line=SELDOM)
    while clock.now() < 45:
        outage.failed(StoreUnavailableError("x"))
        clock.advance(0.5)
    lasted = [line.getMessage().partition(" s now")[0] for line in caplog.records]
    assert lasted == [f"the store fails for {seconds}" for seconds in ("0.0", "10.0", "20.0", "40.0")]


async def test_a_call_without_an_answer_is_reported_before_it_fails(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("durabus.store.outage.SILENT_AFTER", 0.02)
    outage = Outage(logging.getLogger("test"), "the store fails")
    async with asyncio.timeout(20):
        with outage.noticing_silence():
            while not caplog.records:  # noqa: ASYNC110  (a timer makes it)
                await asyncio.sleep(0.01)
    words = caplog.records[0].getMessage()
    assert words.startswith("the store fails for 0.")
    assert words.endswith("no answer")
    outage.answered()
    assert outage.since is None


async def test_a_slow_call_is_no_outage_while_the_store_answers_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("durabus.store.outage.SILENT_AFTER", 0.02)
    outage = Outage(logging.getLogger("test"), "the store fails")
    with outage.noticing_silence():
        outage.answered()
        await asyncio.sleep(0.05)
    assert caplog.records == []


class Silent(WatchedStore):
    """A store behind a server, as its features say. It replies to no claim until ``speak`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.features = replace(self.features, shared_between_processes=True)
        self.speak = asyncio.Event()

    async def claim_next_events(self, request: ClaimRequest) -> list[Claim]:
        await self.speak.wait()
        return await super().claim_next_events(request)


async def test_a_worker_reports_a_store_that_does_not_answer_and_that_it_answers_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("durabus.store.outage.SILENT_AFTER", 0.02)
    caplog.set_level(logging.INFO, "durabus.worker")
    store = Silent()
    async with asyncio.timeout(20), working(store, Calls()):
        await until(lambda: "the store of bus 'default' fails for 0." in caplog.text)
        assert caplog.messages[-1].endswith("no answer")
        store.speak.set()
        await until(lambda: "the store of bus 'default' fails no longer" in caplog.text)


async def test_a_worker_whose_store_went_away_stops_soon_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    store = WatchedStore()
    async with asyncio.timeout(20):
        async with working(store, Calls()) as worker:
            await filled(store, 3)
            await all_completed(store, 3)
            store.failing.update({"claim": FOR_EVER, "settle": FOR_EVER, "wait": FOR_EVER})
            await until(lambda: "store of bus 'default' fails for" in caplog.text)
            await worker.stop(600.0)
    assert "the store is away" in caplog.text


async def test_a_handler_that_runs_may_finish_while_the_store_is_away_and_counts_when_it_is_back() -> None:
    store, begun, go_on = WatchedStore(), asyncio.Event(), asyncio.Event()
    bus = EventBus(store, shutdown_timeout=30.0)

    @bus.on("job")
    async def handler(_: object) -> None:
        begun.set()
        await go_on.wait()

    await bus.start()
    handle = bus.emit("job")
    await begun.wait()
    store.failing.update({"claim": FOR_EVER, "settle": 2, "wait": FOR_EVER})
    stopping = asyncio.create_task(bus.shutdown())
    await asyncio.sleep(0)
    go_on.set()
    async with asyncio.timeout(20):
        await stopping
    found = await store.get_event(handle.event_id)
    assert found is not None
    assert found.status == "COMPLETED"

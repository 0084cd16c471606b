"""From a claimed event to its settlement."""

import asyncio

import pytest
from msgspec.structs import replace
from tests.worker.support import ONCE, STEADY, make_claim, make_handler

from durabus import Event
from durabus.errors import DuplicateHandlerError
from durabus.model.claim import HandlerClaim, OfferedHandler
from durabus.model.result import HandlerResult, Success, TransientError, UnrecoverableError
from durabus.model.settlement import Cancel, Complete, Fail, Release, Settlement
from durabus.model.statuses import Completion, ResultStatus
from durabus.stores.memory.store import MemoryStore
from durabus.worker.breaker import Breaker
from durabus.worker.dispatcher import Dispatcher
from durabus.worker.missing_handlers import REMOTE_DELAY
from durabus.worker.offers import OfferedRun, OfferRunner
from durabus.worker.progress import EventProgress, Keeper
from durabus.worker.registry import Sighting

SUCCEEDED, TRANSIENT = ResultStatus.SUCCEEDED, ResultStatus.TRANSIENT
UNRECOVERABLE = ResultStatus.UNRECOVERABLE


async def fine(event: Event) -> None:
    return


async def busy(event: Event) -> None:
    raise TransientError("busy")


async def hopeless(event: Event) -> None:
    raise UnrecoverableError("never")


OPEN_FOR = 30.0


def dispatcher_of(*handlers: tuple[str, object], retry: object = STEADY) -> Dispatcher:
    dispatcher = Dispatcher()
    for id_, function in handlers:
        dispatcher.add(make_handler(function, id=id_, retry=retry))  # type: ignore[arg-type]
    return dispatcher


def open_breaker(dispatcher: Dispatcher, handler_id: str) -> Breaker:
    (handler,) = [h for h in dispatcher.handlers if h.id == handler_id]
    for event in range(4):
        handler.breaker.failed(-event)
    return handler.breaker


def statuses(settlement: Settlement) -> dict[str, ResultStatus]:
    return {result.handler_id: result.status for result in settlement.results}


def earlier(handler_id: str, status: ResultStatus = TRANSIENT, error: str | None = "earlier") -> HandlerResult:
    return HandlerResult(handler_id=handler_id, status=status, attempts=1, error=error)


def test_a_route_holds_the_matching_handlers_in_the_order_of_registration() -> None:
    dispatcher = Dispatcher()
    for id_, pattern in [("c", "user.*"), ("a", "*"), ("x", "order.*"), ("b", "user.created")]:
        dispatcher.add(make_handler(fine, id=id_, pattern=pattern))
    assert [handler.id for handler in dispatcher.route("user.created")] == ["c", "a", "b"]


def test_a_route_is_looked_up_once() -> None:
    dispatcher = dispatcher_of(("h", fine))
    assert dispatcher.route("user.created") is dispatcher.route("user.created")


def test_a_route_follows_handlers_that_come_and_go() -> None:
    dispatcher = dispatcher_of(("one", fine))
    dispatcher.route("user.created")
    dispatcher.add(make_handler(fine, id="two"))
    assert [handler.id for handler in dispatcher.route("user.created")] == ["one", "two"]
    dispatcher.remove("one")
    assert [handler.id for handler in dispatcher.route("user.created")] == ["two"]


def test_types_made_up_at_run_time_do_not_fill_the_memory() -> None:
    dispatcher = dispatcher_of(("h", fine))
    for n in range(25_000):
        dispatcher.route(f"type.{n}")
    assert len(dispatcher._routes) <= 10_000


def test_an_id_that_is_taken_is_refused() -> None:
    dispatcher = dispatcher_of(("h", fine))
    with pytest.raises(DuplicateHandlerError, match="'h'"):
        dispatcher.add(make_handler(fine, id="h", pattern="order.*"))


def test_removing_an_unknown_handler_returns_none() -> None:
    assert Dispatcher().remove("nobody") is None


def test_the_bound_on_attempts_is_that_of_the_most_patient_handler() -> None:
    dispatcher = dispatcher_of(("one", fine), retry=ONCE)
    assert dispatcher.max_attempts == 1
    dispatcher.add(make_handler(fine, id="two", retry=STEADY))
    assert dispatcher.max_attempts == 4
    assert Dispatcher().max_attempts is None


async def test_one_handler_that_succeeds_leaves_no_result_rows() -> None:
    settlement = await dispatcher_of(("h", fine)).dispatch(make_claim())
    assert isinstance(settlement, Complete)
    assert (settlement.results, settlement.errors) == ((), ())
    assert settlement.execution_time_ms is not None


async def test_a_returned_value_is_kept_in_a_result() -> None:
    async def count(event: Event) -> Success:
        return Success(3)

    settlement = await dispatcher_of(("h", count)).dispatch(make_claim())
    assert isinstance(settlement, Complete)
    assert [result.value for result in settlement.results] == [3]


async def test_several_handlers_that_succeed_complete_the_event() -> None:
    settlement = await dispatcher_of(("one", fine), ("two", fine)).dispatch(make_claim())
    assert isinstance(settlement, Complete)
    assert statuses(settlement) == {"one": SUCCEEDED, "two": SUCCEEDED}


async def test_one_failure_among_successes_fails_the_attempt_and_keeps_all_results() -> None:
    settlement = await dispatcher_of(("one", fine), ("two", busy), ("three", fine)).dispatch(make_claim())
    assert isinstance(settlement, Fail)
    assert statuses(settlement) == {"one": SUCCEEDED, "two": TRANSIENT, "three": SUCCEEDED}
    assert (settlement.error, settlement.delay) == ("TransientError: busy", 1.0)


async def test_the_shortest_of_several_delays_counts() -> None:
    async def soon(event: Event) -> None:
        raise TransientError("soon", retry_after=0.25)

    settlement = await dispatcher_of(("one", busy), ("two", soon)).dispatch(make_claim())
    assert isinstance(settlement, Fail)
    assert settlement.delay == 0.25
    assert settlement.error == "one: TransientError: busy; two: TransientError: soon"


async def test_an_unrecoverable_error_ends_the_event_once_every_other_handler_had_its_call() -> None:
    settlement = await dispatcher_of(("one", busy), ("two", hopeless), ("three", fine)).dispatch(make_claim())
    assert isinstance(settlement, Complete)
    assert statuses(settlement) == {"one": TRANSIENT, "two": UNRECOVERABLE, "three": SUCCEEDED}


async def test_after_an_unrecoverable_error_a_handler_whose_breaker_is_open_still_gets_its_call() -> None:
    dispatcher = dispatcher_of(("one", hopeless), ("two", busy))
    open_breaker(dispatcher, "two")
    settlement = await dispatcher.dispatch(make_claim())
    assert isinstance(settlement, Release)
    assert statuses(settlement) == {"one": UNRECOVERABLE}
    after = dispatcher_of(("one", fine), ("two", busy))
    ended = await after.dispatch(make_claim(results=[earlier("one", UNRECOVERABLE)]))
    assert isinstance(ended, Complete), "one call each, so a transient error is not tried again"
    assert statuses(ended) == {"two": TRANSIENT}


async def test_after_an_unrecoverable_error_a_handler_that_had_its_call_is_not_waited_for() -> None:
    dispatcher = dispatcher_of(("one", hopeless), ("two", busy))
    open_breaker(dispatcher, "two")
    settlement = await dispatcher.dispatch(make_claim(attempts=2, results=[earlier("two")]))
    assert isinstance(settlement, Complete)


@pytest.mark.parametrize(("attempts", "ends"), [(1, False), (4, True)])
async def test_after_an_unrecoverable_error_a_handler_that_the_event_timeout_kept_from_its_call_gets_it(
    attempts: int, *, ends: bool
) -> None:
    async def endless(event: Event) -> None:
        await asyncio.Event().wait()

    dispatcher = Dispatcher(event_timeout=0.01)
    for id_, function in (("one", hopeless), ("two", endless), ("three", fine)):
        dispatcher.add(make_handler(function, id=id_))
    settlement = await dispatcher.dispatch(make_claim(attempts=attempts))
    assert isinstance(settlement, Complete if ends else Fail)
    assert statuses(settlement) == {
        "one": UNRECOVERABLE,
        "two": ResultStatus.TIMED_OUT,
        "three": ResultStatus.PENDING,
    }


async def test_after_an_unrecoverable_error_a_handler_of_another_node_still_gets_its_call() -> None:
    dispatcher = Dispatcher(remote=OtherNode())
    dispatcher.add(make_handler(hopeless, id="here"))
    settlement = await dispatcher.dispatch(make_claim())
    assert isinstance(settlement, Release)
    assert statuses(settlement) == {"here": UNRECOVERABLE}
    called = await dispatcher.dispatch(make_claim(attempts=2, results=[earlier("theirs")]))
    assert isinstance(called, Complete), "it had its one call"


async def test_a_value_makes_good_for_an_unrecoverable_error_of_an_earlier_attempt() -> None:
    async def answer(event: Event) -> str:
        return "yes"

    dispatcher = Dispatcher(completion=Completion.FIRST)
    for id_, function in (("one", hopeless), ("two", answer)):
        dispatcher.add(make_handler(function, id=id_))
    settlement = await dispatcher.dispatch(make_claim(results=[earlier("one", UNRECOVERABLE)]))
    assert statuses(settlement) == {"one": ResultStatus.ABORTED, "two": SUCCEEDED}


async def test_a_caller_that_cancels_the_dispatch_still_gets_an_unrecoverable_error() -> None:
    async def endless(event: Event) -> None:
        await asyncio.Event().wait()

    progress = EventProgress(make_claim().ref)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await dispatcher_of(("one", hopeless), ("two", fine), ("three", endless)).dispatch(make_claim(), progress)
    assert [(result.handler_id, result.status) for result in progress.settled] == [
        ("one", UNRECOVERABLE),
        ("two", SUCCEEDED),
    ]


async def test_handlers_that_succeeded_before_do_not_run_again() -> None:
    dispatcher = dispatcher_of(("one", hopeless), ("two", fine))
    settlement = await dispatcher.dispatch(make_claim(attempts=2, results=[earlier("one", SUCCEEDED), earlier("two")]))
    assert isinstance(settlement, Complete)
    assert statuses(settlement) == {"two": SUCCEEDED}


async def test_a_result_counts_the_attempts_of_its_handler() -> None:
    settlement = await dispatcher_of(("one", fine), ("two", busy)).dispatch(
        make_claim(attempts=2, results=[earlier("two")])
    )
    assert {result.handler_id: result.attempts for result in settlement.results} == {"one": 1, "two": 2}


async def test_the_last_attempt_has_no_delay() -> None:
    settlement = await dispatcher_of(("h", busy)).dispatch(make_claim(attempts=4, results=[earlier("h")]))
    assert isinstance(settlement, Fail)
    assert settlement.delay is None


async def test_the_limit_of_the_event_goes_before_that_of_the_handler() -> None:
    settlement = await dispatcher_of(("h", busy)).dispatch(make_claim(attempts=2, max_attempts=2))
    assert isinstance(settlement, Fail)
    assert settlement.delay is None


async def test_an_exhausted_handler_does_not_end_the_event_while_another_may_still_succeed() -> None:
    dispatcher = Dispatcher()
    dispatcher.add(make_handler(busy, id="short", retry=ONCE))
    dispatcher.add(make_handler(busy, id="long", retry=STEADY))
    settlement = await dispatcher.dispatch(make_claim())
    assert isinstance(settlement, Fail)
    assert settlement.delay == 1.0


async def test_an_exhausted_handler_does_not_run_again_next_to_a_healthy_one() -> None:
    dispatcher = Dispatcher()
    dispatcher.add(make_handler(hopeless, id="short", retry=ONCE))
    dispatcher.add(make_handler(fine, id="long", retry=STEADY))
    settlement = await dispatcher.dispatch(make_claim(attempts=2, results=[earlier("short"), earlier("long")]))
    assert isinstance(settlement, Fail)
    assert (settlement.delay, statuses(settlement)) == (None, {"long": SUCCEEDED})
    assert settlement.error == "short does not run again, its last error: earlier"


async def test_a_failed_handler_that_is_no_longer_subscribed_ends_the_event_failed() -> None:
    settlement = await dispatcher_of(("one", fine)).dispatch(make_claim(attempts=2, results=[earlier("gone")]))
    assert isinstance(settlement, Fail)
    assert settlement.delay is None
    assert "gone" in settlement.error


async def test_an_open_breaker_gives_the_event_back() -> None:
    dispatcher = dispatcher_of(("h", fine))
    open_breaker(dispatcher, "h")
    settlement = await dispatcher.dispatch(make_claim())
    assert isinstance(settlement, Release)
    assert 0 < settlement.delay <= OPEN_FOR


async def test_an_open_breaker_keeps_what_the_other_handlers_did() -> None:
    dispatcher = dispatcher_of(("broken", fine), ("healthy", fine))
    open_breaker(dispatcher, "broken")
    settlement = await dispatcher.dispatch(make_claim())
    assert isinstance(settlement, Release)
    assert statuses(settlement) == {"healthy": SUCCEEDED}


async def test_a_failure_next_to_an_open_breaker_is_tried_again_by_its_own_delay() -> None:
    dispatcher = dispatcher_of(("broken", fine), ("failing", busy))
    open_breaker(dispatcher, "broken")
    settlement = await dispatcher.dispatch(make_claim())
    assert isinstance(settlement, Fail)
    assert settlement.delay == 1.0


async def test_a_cancelled_probe_leaves_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("durabus.worker.breaker.monotonic", lambda: now)
    entered = asyncio.Event()

    async def endless(event: Event) -> None:
        entered.set()
        await asyncio.Event().wait()

    dispatcher = dispatcher_of(("h", endless))
    breaker = open_breaker(dispatcher, "h")
    now = OPEN_FOR
    probe = asyncio.create_task(dispatcher.dispatch(make_claim()))
    await entered.wait()
    assert breaker.admit() > 0
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)
    assert breaker.admit() == 0


async def test_an_event_without_handlers_is_complete() -> None:
    settlement = await dispatcher_of().dispatch(make_claim())
    assert isinstance(settlement, Complete)


class OtherNode:
    """A node that has a handler of its own for user.created."""

    def __init__(self, silent_for: float = 0.0) -> None:
        self.known = {""}
        self.silent_for = silent_for

    def remote_handlers(self, event_type: str, revision: str) -> tuple[str, ...] | None:
        if revision not in self.known:
            return None
        return ("theirs",) if event_type == "user.created" else ()

    def nodes(self) -> int:
        return 2

    def any_remote(self) -> bool:
        return True

    async def learn(self, revision: str) -> None:
        self.known.add(revision)

    def last_seen(self, handler_id: str) -> Sighting | None:
        return Sighting("web-2:7", self.silent_for)

    def lacked_elsewhere(self) -> tuple[str, ...]:
        return ()

    async def look(self) -> None:
        raise NotImplementedError


async def test_an_event_that_other_nodes_handle_is_given_back() -> None:
    dispatcher = Dispatcher(remote=OtherNode())
    there = await dispatcher.dispatch(make_claim("user.created"))
    nowhere = await dispatcher.dispatch(make_claim("user.updated"))
    assert isinstance(there, Release)
    assert there.delay == REMOTE_DELAY
    assert isinstance(nowhere, Complete)


@pytest.mark.parametrize(
    ("theirs", "settlement"),
    [
        (earlier("theirs"), Cancel),
        (replace(earlier("theirs"), status=ResultStatus.PENDING, expires_ts=0.0), Cancel),
        (earlier("theirs", SUCCEEDED), Complete),
    ],
    ids=["to be tried again", "offered", "done"],
)
async def test_an_expired_event_is_cancelled_if_a_handler_of_any_node_is_not_done(
    theirs: HandlerResult, settlement: type[Settlement]
) -> None:
    dispatcher = Dispatcher(remote=OtherNode())
    dispatcher.add(make_handler(fine, id="mine"))
    claim = make_claim(results=[earlier("mine", SUCCEEDED), theirs])
    event = replace(claim.event, metadata_json='{"expires_after":4.5}', picked_ts=5.0)
    assert isinstance(await dispatcher.dispatch(replace(claim, event=event, revision="7")), settlement)


@pytest.mark.parametrize("begins", [True, False])
async def test_an_offered_handler_begins_only_under_a_claim_of_its_event_that_came_in_time(*, begins: bool) -> None:
    """An offer of an earlier claim is still there when the event is claimed too late, until that worker cancels it."""
    calls: list[int] = []

    async def note(event: Event) -> None:
        calls.append(event.id)

    store, offer = MemoryStore(), replace(earlier("mine"), status=ResultStatus.PENDING, expires_ts=0.0)
    claim = HandlerClaim(id=1, handler_id="mine", token="t", fence=1, attempts=1, expires_ts=9.0)
    event = replace(make_claim().event, metadata_json='{"expires_after":4.5}', picked_ts=4.0 if begins else 5.0)
    runner = OfferRunner(store, dispatcher_of(("mine", note)), Keeper(store), lease=3.0)
    settlement = await runner.run(OfferedRun(OfferedHandler(event, claim, (offer,)), 60.0))
    assert settlement is not None
    assert (calls, settlement.outcome is None) == (([1], False) if begins else ([], True))


async def test_a_claim_of_an_unknown_revision_is_judged_after_learning_it() -> None:
    dispatcher = Dispatcher(remote=OtherNode())
    dispatcher.add(make_handler(fine, id="mine"))
    assert isinstance(await dispatcher.dispatch(replace(make_claim("user.created"), revision="7")), Release)


async def delays_of(dispatcher: Dispatcher, *fences: int) -> list[float]:
    delays = []
    for fence in fences:
        claim = make_claim("user.created")
        settlement = await dispatcher.dispatch(replace(claim, event=replace(claim.event, fence=fence)))
        assert isinstance(settlement, Release)
        delays.append(round(settlement.delay, 3))
    return delays


async def test_an_event_that_comes_back_rests_longer_every_time(caplog: pytest.LogCaptureFixture) -> None:
    assert await delays_of(Dispatcher(remote=OtherNode()), 1, 2, 3, 4, 20) == [0.1, 0.3, 0.9, 2.7, 30.0]
    assert caplog.records == [], "the other node is alive and will take it"


async def test_an_event_for_a_silent_node_rests_for_half_its_silence_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert await delays_of(Dispatcher(remote=OtherNode(200.0)), 1, 2, 3, 4) == [0.1, 100.0, 100.0, 100.0]
    (record,) = caplog.records
    assert "waits for handler theirs, last seen on node web-2:7 200 s ago" in record.getMessage()
    assert "durabus handlers forget --bus default theirs" in record.getMessage()


async def test_a_release_for_another_node_says_what_the_event_waits_for() -> None:
    settlement = await Dispatcher(remote=OtherNode(12.0)).dispatch(make_claim("user.created"))
    assert isinstance(settlement, Release)
    assert settlement.reason == "waits for handler theirs, last seen on node web-2:7 12 s ago"


async def test_what_is_done_here_is_kept_while_a_handler_of_another_node_is_not_done() -> None:
    calls: list[int] = []

    async def mine(event: Event) -> None:
        calls.append(event.id)

    dispatcher = Dispatcher(remote=OtherNode())
    dispatcher.add(make_handler(mine, id="mine", pattern="user.*"))
    first = await dispatcher.dispatch(make_claim("user.created"))
    assert isinstance(first, Release)
    assert [(r.handler_id, r.status) for r in first.results] == [("mine", ResultStatus.SUCCEEDED)]
    theirs = HandlerResult(handler_id="theirs", status=ResultStatus.TRANSIENT, attempts=1, error="not yet")
    second = await dispatcher.dispatch(make_claim("user.created", results=(*first.results, theirs)))
    assert isinstance(second, Release)
    done = replace(theirs, status=ResultStatus.SUCCEEDED)
    third = await dispatcher.dispatch(make_claim("user.created", results=(*first.results, done)))
    assert isinstance(third, Complete)
    assert len(calls) == 1

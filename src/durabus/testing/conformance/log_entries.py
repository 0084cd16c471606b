"""Proof that every transition writes exactly the entries of the lifecycle's table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from durabus.lifecycle.state import (
    Applied,
    EventCommand,
    EventState,
    Expire,
    Grant,
    Renew,
    Requeue,
    Reset,
    Revoke,
    Start,
)
from durabus.lifecycle.transition import publish, transition
from durabus.model.claim import Claim, ClaimRef, new_token
from durabus.model.event import new_event
from durabus.model.log_entry import LogEntry
from durabus.model.result import HandlerResult
from durabus.model.settlement import Cancel, Complete, Fail, Release, Settled, Settlement
from durabus.model.statuses import HISTORY, TERMINAL, Action, EventStatus, ResultStatus
from durabus.store.contract import EventStore
from durabus.testing.conformance.lab import ALICE, BOB, Lab

RESULTS = (
    HandlerResult(
        handler_id="a", status=ResultStatus.SUCCEEDED, attempts=1, value_json='{"ü":[1]}', execution_time_ms=0.5
    ),
    HandlerResult(handler_id="b", status=ResultStatus.SUCCEEDED, attempts=2, error="once", worker_id=ALICE),
)
FATAL = (HandlerResult(handler_id="a", status=ResultStatus.UNRECOVERABLE, attempts=1, error="no such customer"),)
Step = Callable[["Twin"], Awaitable[None]]


TIMES = {"at_ts", "next_retry_ts", "execution_time_ms"}
"""Fields that a store with a clock of its own fills with its own time."""


class Twin:
    """One event in the store and in the lifecycle. Every step is done in both."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.state: EventState | None = None
        self.entries: list[LogEntry] = []
        self.claim: Claim | None = None

    async def publish(self, max_attempts: int | None) -> None:
        """Publish the event in both."""
        new = new_event(
            "order.placed",
            {"n": 1, "ort": "Köln"},
            bus="orders",
            tags=["eu", "vip"],
            metadata={"source": "web"},
            max_attempts=max_attempts,
        )
        (event,) = await self.lab.store.add_events([new])
        self._note(publish(new, event.id, event.created_ts))

    async def command(self, command: EventCommand) -> None:
        """Run a command on the lifecycle's copy of the event."""
        assert self.state is not None
        applied = transition(self.state, command, await self.lab.store.now())
        assert isinstance(applied, Applied), applied
        self._note(applied)

    async def grant(self, worker_id: str = ALICE) -> None:
        """Claim the event in both, or take it over in both."""
        request = self.lab.request(worker_id=worker_id)
        (self.claim,) = await self.lab.store.claim_next_events(request)
        await self.command(Grant(worker_id, request.token, self.lab.lease))

    async def settle(self, make: Callable[[Claim], Settlement]) -> None:
        """Settle the claim in both."""
        assert self.claim is not None
        settlement = make(self.claim)
        await self.lab.settle_one(settlement)
        await self.command(settlement)

    def _note(self, applied: Applied) -> None:
        self.state = applied.state
        self.entries += applied.entries


async def _grant(twin: Twin) -> None:
    await twin.grant()


async def _start(twin: Twin) -> None:
    assert twin.claim is not None
    await twin.lab.store.start_events([twin.claim.ref])
    await twin.command(Start(twin.claim.ref))


async def _renew(twin: Twin) -> None:
    assert twin.claim is not None
    await twin.lab.store.renew_event_claims([twin.claim.ref], lease=twin.lab.lease)
    await twin.command(Renew(twin.claim.ref, twin.lab.lease))


async def _complete(twin: Twin) -> None:
    await twin.settle(lambda claim: Complete(claim.ref, RESULTS, (), 12.25, 201, "no handler"))


async def _complete_without_a_reason(twin: Twin) -> None:
    await twin.settle(lambda claim: Complete(claim.ref, RESULTS, (), 12.25, 201))


async def _complete_by_one_handler(twin: Twin) -> None:
    await twin.settle(lambda claim: Complete(claim.ref, (), (), 12.25, handler_id="only"))


async def _complete_by_one_handler_in_detail(twin: Twin) -> None:
    await twin.settle(lambda claim: Complete(claim.ref, RESULTS, (), 12.25, 201, handler_id="only"))


async def _complete_with_errors(twin: Twin) -> None:
    await twin.settle(lambda claim: Complete(claim.ref, RESULTS, ("e1", "e2"), 12.25, 400))


async def _complete_unrecoverable(twin: Twin) -> None:
    await twin.settle(lambda claim: Complete(claim.ref, FATAL))


async def _fail(twin: Twin) -> None:
    await twin.settle(lambda claim: Fail(claim.ref, "Fehler ü", 0.0, RESULTS, 1.5, 503))


async def _fail_for_good(twin: Twin) -> None:
    await twin.settle(lambda claim: Fail(claim.ref, "broken", None, RESULTS, 1.5, 500))


async def _release(twin: Twin) -> None:
    await twin.settle(lambda claim: Release(claim.ref, 0.0, RESULTS[:1], "waits for stock"))


async def _take_over(twin: Twin) -> None:
    await twin.lab.let_the_lease_end()
    await twin.grant(BOB)


async def _expire(twin: Twin) -> None:
    await twin.lab.let_the_lease_end()
    assert await twin.lab.store.expire_events() == 1
    await twin.command(Expire())


async def _reset(twin: Twin) -> None:
    assert twin.claim is not None
    await twin.lab.store.reset_event(twin.claim.event.id, reason="stuck for an hour")
    await twin.command(Reset("stuck for an hour"))


async def _cancel(twin: Twin) -> None:
    assert twin.state is not None
    await twin.lab.store.cancel_event(twin.state.event.id, reason="not wanted")
    await twin.command(Revoke("not wanted"))


async def _settle_as_cancelled(twin: Twin) -> None:
    await twin.settle(lambda claim: Cancel(claim.ref, "expired", RESULTS))


async def _requeue(twin: Twin) -> None:
    assert twin.claim is not None
    await twin.lab.store.requeue_dead_letters([twin.claim.event.id])
    await twin.command(Requeue())


LIVES: dict[str, tuple[int | None, list[Step], str]] = {
    "published": (None, [], "PUBLISHED"),
    "picked": (None, [_grant], "PUBLISHED PICKED"),
    "started": (None, [_grant, _start], "PUBLISHED PICKED STARTED"),
    "started twice": (None, [_grant, _start, _start], "PUBLISHED PICKED STARTED"),
    "renewed": (None, [_grant, _renew], "PUBLISHED PICKED"),
    "completed": (None, [_grant, _start, _renew, _complete], "PUBLISHED PICKED STARTED COMPLETED"),
    "completed, without a reason": (None, [_grant, _complete_without_a_reason], "PUBLISHED PICKED COMPLETED"),
    "completed by one handler": (None, [_grant, _complete_by_one_handler], "PUBLISHED PICKED COMPLETED"),
    "completed by one handler, in detail": (
        None,
        [_grant, _complete_by_one_handler_in_detail],
        "PUBLISHED PICKED COMPLETED",
    ),
    "expired, then completed by one handler": (
        None,
        [_grant, _expire, _complete_by_one_handler],
        "PUBLISHED PICKED ABANDONED COMPLETED",
    ),
    "with errors": (None, [_grant, _complete_with_errors], "PUBLISHED PICKED COMPLETED_WITH_ERRORS"),
    "unrecoverable": (None, [_grant, _complete_unrecoverable], "PUBLISHED PICKED COMPLETED_WITH_ERRORS"),
    "retried": (None, [_grant, _fail, _grant, _complete], "PUBLISHED PICKED FAILED PICKED COMPLETED"),
    "failed for good": (None, [_grant, _fail_for_good], "PUBLISHED PICKED FAILED"),
    "used up": (2, [_grant, _fail, _grant, _fail], "PUBLISHED PICKED FAILED PICKED FAILED"),
    "released": (None, [_grant, _release, _grant], "PUBLISHED PICKED RELEASED PICKED"),
    "taken over": (None, [_grant, _take_over, _complete], "PUBLISHED PICKED ABANDONED PICKED COMPLETED"),
    "expired": (None, [_grant, _start, _expire], "PUBLISHED PICKED STARTED ABANDONED"),
    "expired, then completed": (
        None,
        [_grant, _start, _expire, _complete],
        "PUBLISHED PICKED STARTED ABANDONED COMPLETED",
    ),
    "expired, then completed with errors": (
        None,
        [_grant, _expire, _complete_with_errors],
        "PUBLISHED PICKED ABANDONED COMPLETED_WITH_ERRORS",
    ),
    "expired, then failed": (
        None,
        [_grant, _expire, _fail, _grant, _expire, _fail_for_good],
        "PUBLISHED PICKED ABANDONED FAILED PICKED ABANDONED FAILED",
    ),
    "expired, then released": (
        2,
        [_grant, _expire, _release, _grant, _complete],
        "PUBLISHED PICKED ABANDONED RELEASED PICKED COMPLETED",
    ),
    "expired for good": (1, [_grant, _expire], "PUBLISHED PICKED FAILED"),
    "reset": (None, [_grant, _start, _reset, _grant, _complete], "PUBLISHED PICKED STARTED RESET PICKED COMPLETED"),
    "cancelled": (None, [_cancel], "PUBLISHED CANCELLED"),
    "cancelled while it ran": (None, [_grant, _start, _cancel], "PUBLISHED PICKED STARTED CANCELLED"),
    "cancelled before a retry": (None, [_grant, _fail, _cancel], "PUBLISHED PICKED FAILED CANCELLED"),
    "abandoned, then cancelled": (None, [_grant, _expire, _cancel], "PUBLISHED PICKED ABANDONED CANCELLED"),
    "cancelled by its worker": (None, [_grant, _settle_as_cancelled], "PUBLISHED PICKED CANCELLED"),
    "cancelled late": (None, [_grant, _expire, _settle_as_cancelled], "PUBLISHED PICKED ABANDONED CANCELLED"),
    "requeued": (
        1,
        [_grant, _fail, _requeue, _grant, _complete],
        "PUBLISHED PICKED FAILED REQUEUED PICKED COMPLETED",
    ),
}


class LogEntryTests:
    """The store's log equals that of the lifecycle, entry by entry and field by field."""

    @pytest.mark.parametrize(("max_attempts", "steps", "expected"), LIVES.values(), ids=LIVES)
    async def test_each_life_leaves_the_entries_of_the_kernel(
        self, lab: Lab, max_attempts: int | None, steps: list[Step], expected: str
    ) -> None:
        """The log is append-only. Each entry is written in the same atomic step as the transition it records."""
        twin = Twin(lab)
        await twin.publish(max_attempts)
        for step in steps:
            await lab.advance(lab.moment)
            await step(twin)
        entries = await lab.log()
        assert " ".join(entry.action for entry in entries) == expected
        assert twin.state is not None
        ignored = {"position"} if lab.manual else {"position", *TIMES}
        assert [_fields(entry, ignored) for entry in entries] == [_fields(one, ignored) for one in twin.entries]
        if lab.manual:
            assert await lab.event(twin.state.event.id) == twin.state.event
            assert await lab.store.list_results(twin.state.event.id) == list(twin.state.results)

    @pytest.mark.parametrize("status", sorted(TERMINAL))
    async def test_a_terminal_entry_stands_alone(self, lab: Lab, other_node: EventStore, status: EventStatus) -> None:
        """Terminal entries carry payload, results and all errors, so that they stand alone."""
        event = await lab.publish_one(tags=["eu"], metadata={"m": 1}, kind="order.placed")
        claim = await lab.claim_one()
        await lab.settle_one(Fail(claim.ref, "first", 0.0))
        claim = await lab.claim_one(worker_id=BOB)
        match status:
            case EventStatus.COMPLETED:
                await lab.settle_one(Complete(claim.ref, RESULTS))
            case EventStatus.COMPLETED_WITH_ERRORS:
                await lab.settle_one(Complete(claim.ref, RESULTS, ("second",)))
            case EventStatus.CANCELLED:
                await lab.settle_one(Cancel(claim.ref, "expired", RESULTS))
            case _:
                await lab.settle_one(Fail(claim.ref, "second", None, RESULTS))
        entry = (await lab.log(other_node))[-1]
        assert entry.action == status.value
        assert (entry.payload_json, entry.metadata_json, entry.tags) == ('{"n":0}', '{"m":1}', ("eu",))
        assert entry.errors == (("first",) if status in HISTORY else ("first", "second"))
        assert sorted(entry.results, key=lambda result: result.handler_id) == list(RESULTS)
        assert (entry.event_id, entry.type, entry.worker_id, entry.attempt) == (event.event_id, event.type, BOB, 2)

    async def test_entries_on_the_way_carry_no_payload(self, lab: Lab) -> None:
        """The payload of a terminal entry, in the newest version that an upcaster makes; None in other entries."""
        claim = await lab.claimed()
        await lab.store.start_events([claim.ref])
        await lab.settle_one(Fail(claim.ref, "no", 0.0))
        claim = await lab.claim_one()
        await lab.settle_one(Release(claim.ref))
        claim = await lab.claim_one()
        await lab.store.reset_event(claim.event.id, reason="stuck")
        assert {entry.payload_json for entry in await lab.log()} == {None}

    async def test_a_batch_is_logged_in_its_order(self, lab: Lab) -> None:
        """Return the entries after position ``after``, up to and including ``until``, in commit order, at most
        ``limit``.
        """
        await lab.publish(4)
        a, b, c, d = await lab.claim(limit=4)
        head = await lab.store.log_head()
        await lab.settle(Fail(c.ref, "no", None), Complete(a.ref), Release(d.ref), Complete(b.ref))
        entries = await lab.log(after=head)
        assert [(entry.id, entry.action) for entry in entries] == [
            (c.event.id, Action.FAILED),
            (a.event.id, Action.COMPLETED),
            (d.event.id, Action.RELEASED),
            (b.event.id, Action.COMPLETED),
        ]


ENDINGS: dict[str, Callable[[ClaimRef], Settlement]] = {
    "completed": Complete,
    "completed by one handler": lambda ref: Complete(ref, (), (), 12.5, handler_id="a"),
    "completed, in detail": lambda ref: Complete(ref, RESULTS, (), 12.5, 200, "no handler"),
    "with errors": lambda ref: Complete(ref, RESULTS, ("no such customer",)),
    "failed": lambda ref: Fail(ref, "Fehler ü", 3600.0, RESULTS, 3.5, 503),
    "failed for good": lambda ref: Fail(ref, "boom", None, RESULTS, 3.5, 500),
    "released": lambda ref: Release(ref, 3600.0, RESULTS, "busy"),
    "cancelled": lambda ref: Cancel(ref, "expired", RESULTS),
}
BY_ENDING = pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)


class SettledEntryTests:
    """The log entries that ``settle_events`` returns."""

    @BY_ENDING
    @pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
    async def test_an_outcome_carries_the_entry_that_its_settlement_wrote(
        self, lab: Lab, other_node: EventStore, ending: Callable[[ClaimRef], Settlement], *, late: bool
    ) -> None:
        """``with_entries``: each ``Settled`` carries the log entry that its settlement wrote, as ``read_event_log``
        returns it.
        """
        claim = await lab.claimed(tags=["eu"], metadata={"m": 1})
        if late:
            await lab.let_the_lease_end()
            assert await other_node.expire_events() == 1
        (settled,) = (await lab.store.settle_events([ending(claim.ref)], with_entries=True)).outcomes
        trail = await other_node.read_event_log(claim.event.id)
        assert isinstance(settled, Settled)
        assert settled.entry == trail[-1]
        assert len(trail) == (4 if late else 3)

    @BY_ENDING
    async def test_a_repeat_carries_no_entry(
        self, lab: Lab, other_node: EventStore, ending: Callable[[ClaimRef], Settlement]
    ) -> None:
        """An exact repeat writes no entry and carries none, also if the store repeats the call by itself."""
        claim = await lab.claimed()
        await lab.store.settle_events([ending(claim.ref)], with_entries=True)
        before = await lab.picture()
        (again,) = (await other_node.settle_events([ending(claim.ref)], with_entries=True)).outcomes
        assert isinstance(again, Settled)
        assert again.entry is None
        assert await lab.picture() == before

    @BY_ENDING
    async def test_no_entry_is_read_unless_it_is_asked_for(
        self, lab: Lab, ending: Callable[[ClaimRef], Settlement]
    ) -> None:
        """Without ``with_entries``, no outcome carries an entry."""
        claim = await lab.claimed()
        assert (await lab.settle_one(ending(claim.ref))).entry is None

    async def test_each_outcome_of_a_batch_carries_the_entry_of_its_own_settlement(self, lab: Lab) -> None:
        """``with_entries``: each ``Settled`` carries the log entry that its settlement wrote, as ``read_event_log``
        returns it.
        """
        await lab.publish(6)
        a, b, c, d, e = await lab.claim(limit=5)
        stale = ClaimRef(e.event.id, new_token(), e.event.fence)
        batch: list[Settlement] = [Fail(b.ref, "no", None), Complete(a.ref), Complete(stale), Release(c.ref, 3600.0)]
        batch += [Complete(a.ref), Complete(d.ref)]
        answer = await lab.store.settle_events(batch, then_claim=lab.request(limit=9), with_entries=True)
        entries = [outcome.entry if isinstance(outcome, Settled) else None for outcome in answer.outcomes]
        last = [(await lab.store.read_event_log(claim.event.id))[-1] for claim in (b, a, c, d)]
        assert entries == [last[0], last[1], None, last[2], None, last[3]]
        assert len(answer.claims) == 1

    async def test_each_of_many_plain_completions_carries_its_entry(self, lab: Lab) -> None:
        """``with_entries``: each ``Settled`` carries the log entry that its settlement wrote, as ``read_event_log``
        returns it.
        """
        await lab.publish(20)
        claims = await lab.claim(limit=20)
        answer = await lab.store.settle_events([Complete(claim.ref) for claim in claims], with_entries=True)
        entries = [outcome.entry for outcome in answer.outcomes if isinstance(outcome, Settled)]
        assert entries == [(await lab.store.read_event_log(claim.event.id))[-1] for claim in claims]


def _fields(entry: LogEntry, ignored: set[str]) -> dict[str, object]:
    return {field: getattr(entry, field) for field in LogEntry.__struct_fields__ if field not in ignored}

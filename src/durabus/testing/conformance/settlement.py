"""Proof of ``settle_events``."""

from __future__ import annotations

import msgspec
import pytest

from durabus.errors import LeaseLost
from durabus.model.claim import ClaimRef, new_token
from durabus.model.limits import stored_text
from durabus.model.log_entry import LOG_COLUMNS
from durabus.model.result import HandlerResult, first_success
from durabus.model.settlement import Complete, Fail, Keep, Release, Settled
from durabus.model.statuses import SETTLED, STEPS, Action, EventStatus, ResultStatus
from durabus.store.contract import EventStore
from durabus.testing.conformance.lab import BUS, Lab, numbers

ODD_TEXTS = ["half \ud800 of a pair \udfff", "no\0thing", "x" * 3_000_000, "\ud83d" * 1_500_000]
ODD_NAMES = ["surrogates", "nul", "3 MB", "3 MB of surrogates"]
UNSETTLED = [status for status in ResultStatus if status not in SETTLED and status not in STEPS]


def _result(handler_id: str, status: ResultStatus, error: str | None = None) -> HandlerResult:
    return HandlerResult(handler_id=handler_id, status=status, attempts=1, error=error)


class SettlementTests:
    """How a claim ends."""

    async def test_a_completed_event_leaves_the_queue(self, lab: Lab, other_node: EventStore) -> None:
        """``Complete``: the event becomes COMPLETED, or COMPLETED_WITH_ERRORS if the settlement carries errors or an
        UNRECOVERABLE result. The event leaves the queue; its entry carries payload, results, errors, times and status
        code.
        """
        claim = await lab.claimed(tags=["eu"], metadata={"m": 1})
        results = (_result("a", ResultStatus.SUCCEEDED),)
        await lab.advance(2 * lab.moment)
        now = await lab.store.now()
        settled = await lab.settle_one(Complete(claim.ref, results, execution_time_ms=12.5, status_code=200))
        assert settled == Settled(claim.event.id, EventStatus.COMPLETED, None)
        event = await lab.event(claim, other_node)
        assert (event.status, event.attempts, event.fence, event.errors) == (EventStatus.COMPLETED, 1, 1, ())
        assert event.expires_ts is None
        assert lab.same_time(event.updated_ts, now)
        assert await lab.claim(limit=10) == []
        entry = (await lab.store.read_event_log(event.id))[-1]
        assert (entry.action, entry.status) == (Action.COMPLETED, EventStatus.COMPLETED)
        assert (entry.payload_json, entry.metadata_json, entry.tags) == ('{"n":0}', '{"m":1}', ("eu",))
        assert (entry.execution_time_ms, entry.status_code, entry.results) == (12.5, 200, results)
        assert (entry.error, entry.errors) == (None, ())

    @pytest.mark.parametrize("because_of", ["errors", "a result", "a stored result"])
    async def test_errors_make_it_completed_with_errors(self, lab: Lab, because_of: str) -> None:
        """``Complete``: the event becomes COMPLETED, or COMPLETED_WITH_ERRORS if the settlement carries errors or an
        UNRECOVERABLE result.
        """
        claim = await lab.claimed()
        fatal = (_result("a", ResultStatus.UNRECOVERABLE, "no such customer"),)
        match because_of:
            case "errors":
                settlement = Complete(claim.ref, errors=("no such", "customer"))
            case "a result":
                settlement = Complete(claim.ref, fatal)
            case _:
                await lab.settle_one(Release(claim.ref, results=fatal))
                claim = await lab.claim_one()
                settlement = Complete(claim.ref)
        settled = await lab.settle_one(settlement)
        assert settled.status is EventStatus.COMPLETED_WITH_ERRORS
        error = "no such; customer" if because_of == "errors" else "no such customer"
        event = await lab.event(claim)
        assert (event.status, event.errors) == (EventStatus.COMPLETED_WITH_ERRORS, (error,))
        entry = (await lab.store.read_event_log(event.id))[-1]
        assert (entry.action, entry.error, entry.errors) == (Action.COMPLETED_WITH_ERRORS, error, (error,))

    @pytest.mark.parametrize("status", UNSETTLED)
    async def test_an_event_is_not_complete_while_a_handler_is_not(self, lab: Lab, status: ResultStatus) -> None:
        """Refused as ``LeaseLost`` while a handler result is not SUCCEEDED, CANCELLED, ABORTED or UNRECOVERABLE, unless
        one of the results is UNRECOVERABLE.
        """
        claim = await lab.claimed()
        before = await lab.picture()
        unsettled = (_result("a", ResultStatus.SUCCEEDED), _result("b", status))
        (outcome,) = await lab.settle(Complete(claim.ref, unsettled))
        assert isinstance(outcome, LeaseLost)
        assert await lab.picture() == before
        fatal = (*unsettled, _result("c", ResultStatus.UNRECOVERABLE, "no"))
        assert (await lab.settle_one(Complete(claim.ref, fatal))).status is EventStatus.COMPLETED_WITH_ERRORS

    async def test_a_stored_result_that_is_not_settled_keeps_the_event_open(self, lab: Lab) -> None:
        """Refused as ``LeaseLost`` while a handler result is not SUCCEEDED, CANCELLED, ABORTED or UNRECOVERABLE, unless
        one of the results is UNRECOVERABLE.
        """
        claim = await lab.claimed()
        await lab.settle_one(Fail(claim.ref, "no", 0.0, results=(_result("a", ResultStatus.TRANSIENT, "no"),)))
        again = await lab.claim_one()
        before = await lab.picture()
        (outcome,) = await lab.settle(Complete(again.ref))
        assert isinstance(outcome, LeaseLost)
        assert await lab.picture() == before
        await lab.settle_one(Complete(again.ref, (_result("a", ResultStatus.SUCCEEDED),)))

    async def test_a_failed_attempt_is_due_again_after_its_delay(self, lab: Lab) -> None:
        """``Fail``: the event gets one more error.

        It becomes PENDING and due after ``delay``, or FAILED if ``delay`` is None or its own ``max_attempts`` are used
        up.
        """
        claim = await lab.claimed()
        now = await lab.store.now()
        settled = await lab.settle_one(
            Fail(claim.ref, "Fehler ü", 10 * lab.moment, execution_time_ms=3.5, status_code=503)
        )
        assert settled.status is EventStatus.PENDING
        assert lab.same_time(settled.next_retry_ts, now + 10 * lab.moment)
        event = await lab.event(claim)
        assert (event.attempts, event.fence, event.errors, event.retry_count) == (1, 1, ("Fehler ü",), 1)
        assert (event.worker_id, event.picked_ts, event.expires_ts) == (None, None, None)
        assert event.due_ts == settled.next_retry_ts
        entry = (await lab.store.read_event_log(event.id))[-1]
        assert (entry.action, entry.status, entry.error) == (Action.FAILED, EventStatus.PENDING, "Fehler ü")
        assert (entry.next_retry_ts, entry.execution_time_ms, entry.status_code) == (event.due_ts, 3.5, 503)
        assert (entry.payload_json, entry.worker_id) == (None, claim.event.worker_id)
        await lab.advance(5 * lab.moment)
        assert await lab.claim() == []
        await lab.advance(5 * lab.moment)
        assert (await lab.claim_one()).event.attempts == 2

    async def test_a_failure_without_delay_is_final(self, lab: Lab) -> None:
        """Both write a FAILED entry; its ``status`` and ``next_retry_ts`` tell them apart."""
        claim = await lab.claimed()
        settled = await lab.settle_one(Fail(claim.ref, "broken", None, status_code=500))
        assert settled == Settled(claim.event.id, EventStatus.FAILED, None)
        event = await lab.event(claim)
        assert (event.status, event.errors) == (EventStatus.FAILED, ("broken",))
        entry = (await lab.store.read_event_log(event.id))[-1]
        assert (entry.action, entry.status, entry.next_retry_ts) == (Action.FAILED, EventStatus.FAILED, None)
        assert (entry.payload_json, entry.errors, entry.status_code) == ('{"n":0}', ("broken",), 500)
        assert await lab.claim() == []

    @pytest.mark.parametrize("attempts", [1, 2, 4])
    async def test_a_failure_is_final_when_the_events_own_attempts_are_used_up(self, lab: Lab, attempts: int) -> None:
        """``Fail``: the event gets one more error.

        It becomes PENDING and due after ``delay``, or FAILED if ``delay`` is None or its own ``max_attempts`` are used
        up.
        """
        event = await lab.publish_one(max_attempts=attempts)
        statuses = []
        for attempt in range(attempts):
            claim = await lab.claim_one(max_attempts=1)
            statuses.append((await lab.settle_one(Fail(claim.ref, f"no {attempt}", 0.0))).status)
        assert statuses == [EventStatus.PENDING] * (attempts - 1) + [EventStatus.FAILED]
        assert (await lab.event(event)).errors == tuple(f"no {attempt}" for attempt in range(attempts))
        assert await lab.claim() == []

    async def test_a_released_event_gets_its_attempt_back(self, lab: Lab) -> None:
        """``Release``: the event becomes PENDING and due after ``delay`` and gets its attempt back.

        A RELEASED entry is written.
        """
        claim = await lab.claimed(max_attempts=1)
        await lab.store.start_events([claim.ref])
        now = await lab.store.now()
        kept = (_result("a", ResultStatus.SUCCEEDED),)
        settled = await lab.settle_one(Release(claim.ref, 10 * lab.moment, kept))
        assert settled == Settled(claim.event.id, EventStatus.PENDING, None)
        event = await lab.event(claim)
        assert (event.attempts, event.fence, event.errors) == (0, 1, ())
        assert (event.worker_id, event.started_ts, event.expires_ts) == (None, None, None)
        assert lab.same_time(event.due_ts, now + 10 * lab.moment)
        assert await lab.store.list_results(event.id) == list(kept)
        assert (await lab.trail(claim))[-1] == "RELEASED"
        assert await lab.claim() == []
        await lab.advance(10 * lab.moment)
        again = await lab.claim_one()
        assert (again.event.attempts, again.event.fence, again.results) == (1, 2, kept)

    @pytest.mark.parametrize("time_ms", [0.043, None])
    async def test_the_entry_shows_the_only_handler_of_an_event(
        self, lab: Lab, other_node: EventStore, time_ms: float | None
    ) -> None:
        """With ``handler_id``, the entry of a ``Complete`` also carries the result of that handler: SUCCEEDED at its
        first attempt, in the execution time of the settlement. This result is not stored.
        """
        claim = await lab.claimed()
        await lab.settle_one(Complete(claim.ref, (), (), time_ms, handler_id='a "quoted" Käufer'))
        entry = (await lab.log(other_node))[-1]
        assert (entry.action, entry.execution_time_ms) == (Action.COMPLETED, time_ms)
        assert entry.results == (first_success('a "quoted" Käufer', time_ms),)
        assert await lab.store.list_results(claim.event.id) == []
        row = (await other_node.read_log_rows()).rows[-1]
        shown = msgspec.json.decode(row[LOG_COLUMNS.index("results")], type=tuple[HandlerResult, ...])
        assert shown == entry.results

    async def test_each_entry_of_a_batch_shows_its_own_handler(self, lab: Lab, other_node: EventStore) -> None:
        """With ``handler_id``, the entry of a ``Complete`` also carries the result of that handler: SUCCEEDED at its
        first attempt, in the execution time of the settlement.
        """
        await lab.publish(6)
        claims = await lab.claim(limit=6)
        head = await lab.store.log_head()
        names = ("a", "a", "b", None, "a", "b")
        pairs = zip(claims, names, strict=True)
        await lab.settle(*(Complete(one.ref, (), (), n + 0.5, handler_id=name) for n, (one, name) in enumerate(pairs)))
        entries = {entry.id: entry for entry in await lab.log(other_node, after=head)}
        shown = [entries[claim.event.id] for claim in claims]
        assert [(entry.execution_time_ms, entry.results) for entry in shown] == [
            (n + 0.5, () if name is None else (first_success(name, n + 0.5),)) for n, name in enumerate(names)
        ]

    @pytest.mark.parametrize("handler_id", ["a", "b"], ids=["the same handler", "another handler"])
    async def test_the_only_handler_appears_beside_stored_results(
        self, lab: Lab, other_node: EventStore, handler_id: str
    ) -> None:
        """If a result of the same handler is stored, the entry carries that one."""
        claim, stored = await lab.claimed(), _result(handler_id, ResultStatus.SUCCEEDED)
        assert await lab.store.keep_results([Keep(claim.ref, (stored,))]) == [None]
        await lab.settle_one(Complete(claim.ref, (), (), 3.5, handler_id="a"))
        entry = (await lab.log(other_node))[-1]
        assert entry.results == ((stored,) if handler_id == "a" else (stored, first_success("a", 3.5)))
        assert await lab.store.list_results(claim.event.id) == [stored]

    async def test_the_log_says_why_an_event_was_given_back_or_needed_no_work(self, lab: Lab) -> None:
        """The entry of a ``Complete``, ``Release`` or ``Cancel`` carries the ``reason`` if one is given."""
        why = "wartet auf ü:\nline 2 \N{GRINNING FACE}"
        claim = await lab.claimed()
        await lab.settle_one(Release(claim.ref, reason=why))
        claim = await lab.claim_one()
        await lab.settle_one(Release(claim.ref))
        claim = await lab.claim_one()
        await lab.settle_one(Complete(claim.ref, reason="no handler"))
        entries = await lab.log()
        said = [(entry.action.value, entry.reason) for entry in entries if entry.action is not Action.PICKED]
        assert said == [("PUBLISHED", None), ("RELEASED", why), ("RELEASED", None), ("COMPLETED", "no handler")]
        assert {(entry.error, entry.errors) for entry in entries} == {(None, ())}
        page = await lab.store.read_log_rows()
        assert [row[LOG_COLUMNS.index("reason")] for row in page.rows] == [entry.reason for entry in entries]

    @pytest.mark.parametrize("text", ODD_TEXTS, ids=ODD_NAMES)
    async def test_errors_and_reasons_are_kept_alike_whatever_they_hold(self, lab: Lab, text: str) -> None:
        """Errors and reasons are kept as ``durabus.model.limits.stored_text`` makes them: it replaces what some
        database cannot hold, cuts what is too long, and notes the cut.
        """
        kept = stored_text(text)
        claim = await lab.claimed()
        await lab.settle_one(Release(claim.ref, reason=text))
        claim = await lab.claim_one()
        await lab.settle_one(Fail(claim.ref, text, 0.0))
        claim = await lab.claim_one()
        await lab.settle_one(Complete(claim.ref, errors=(text, "and more"), reason=text))
        together = stored_text(f"{kept}; and more")
        assert (await lab.event(claim)).errors == (kept, together)
        said = [(entry.action, entry.error, entry.reason) for entry in await lab.log()]
        assert [one for one in said if one[0] not in {Action.PUBLISHED, Action.PICKED}] == [
            (Action.RELEASED, None, kept),
            (Action.FAILED, kept, None),
            (Action.COMPLETED_WITH_ERRORS, together, kept),
        ]

    @pytest.mark.parametrize("text", ODD_TEXTS, ids=ODD_NAMES)
    async def test_errors_of_handlers_and_reasons_of_callers_are_kept_alike(self, lab: Lab, text: str) -> None:
        """The reason is kept as in ``settle_events``."""
        claim = await lab.claimed()
        await lab.settle_one(Fail(claim.ref, "no", 0.0, (_result("a", ResultStatus.TRANSIENT, text),)))
        assert [result.error for result in await lab.store.list_results(claim.event.id)] == [stored_text(text)]
        claim = await lab.claim_one()
        await lab.store.reset_event(claim.event.id, reason=text)
        assert (await lab.log())[-1].reason == stored_text(text)
        await lab.store.cancel_event(claim.event.id, reason=text)
        assert (await lab.log())[-1].reason == stored_text(text)

    async def test_results_replace_those_of_the_same_handlers(self, lab: Lab, other_node: EventStore) -> None:
        """``results`` overwrite the stored results of the same handlers."""
        claim = await lab.claimed()
        first = (_result("a", ResultStatus.SUCCEEDED), _result("b", ResultStatus.TRANSIENT, "no"))
        await lab.settle_one(Fail(claim.ref, "no", 0.0, results=first))
        claim = await lab.claim_one()
        second = HandlerResult(handler_id="b", status=ResultStatus.SUCCEEDED, attempts=2, value_json="[1]")
        third = _result("c", ResultStatus.TIMED_OUT, "too late")
        await lab.settle_one(Fail(claim.ref, "no", 0.0, results=(third, second)))
        assert await other_node.list_results(claim.event.id) == [first[0], second, third]

    async def test_one_batch_may_mix_all_outcomes(self, lab: Lab) -> None:
        """One outcome for each settlement, in the same order, and the claims that ``then_claim`` granted."""
        await lab.publish(5)
        a, b, c, d, e = await lab.claim(limit=5)
        stale = ClaimRef(e.event.id, new_token(), e.event.fence)
        outcomes = await lab.settle(
            Fail(d.ref, "no", None), Complete(a.ref), Complete(stale), Release(c.ref), Fail(b.ref, "no", 1.0)
        )
        assert isinstance(outcomes[2], LeaseLost)
        assert [outcome.status.value for outcome in outcomes if isinstance(outcome, Settled)] == [
            "FAILED",
            "COMPLETED",
            "PENDING",
            "PENDING",
        ]
        assert [outcome.id for outcome in outcomes if isinstance(outcome, Settled)] == [
            claim.event.id for claim in (d, a, c, b)
        ]
        statuses = [(await lab.event(claim)).status.value for claim in (a, b, c, d, e)]
        assert statuses == ["COMPLETED", "PENDING", "PENDING", "FAILED", "PROCESSING"]

    async def test_a_second_settlement_of_one_claim_in_a_batch_is_refused(self, lab: Lab) -> None:
        """End claims in one step and judge each one on its own. The same step then claims the next events."""
        claim = await lab.claimed()
        first, second, third = await lab.settle(Complete(claim.ref), Fail(claim.ref, "no", None), Complete(claim.ref))
        assert isinstance(second, LeaseLost)
        assert first == third == Settled(claim.event.id, EventStatus.COMPLETED)
        assert await lab.trail(claim) == ["PUBLISHED", "PICKED", "COMPLETED"]

    async def test_settling_claims_the_next_events_in_the_same_step(self, lab: Lab) -> None:
        """End claims in one step and judge each one on its own. The same step then claims the next events."""
        await lab.publish(5)
        first, second = await lab.claim(limit=2)
        request = lab.request(limit=2)
        answer = await lab.store.settle_events([Complete(first.ref), Release(second.ref)], then_claim=request)
        assert [outcome.status for outcome in answer.outcomes if isinstance(outcome, Settled)] == [
            EventStatus.COMPLETED,
            EventStatus.PENDING,
        ]
        assert numbers(answer.claims) == [1, 2]
        assert {claim.token for claim in answer.claims} == {request.token}
        assert answer.claims[0].event.fence == 2
        assert await lab.store.claim_next_events(request) == answer.claims

    async def test_a_lost_claim_does_not_keep_the_next_from_being_taken(self, lab: Lab) -> None:
        """Any other claim that is not current gets ``LeaseLost`` as its outcome (a value, not raised), and nothing of
        it is written.
        """
        await lab.publish(2)
        claim = await lab.claim_one()
        stale = ClaimRef(claim.event.id, claim.token, claim.event.fence + 1)
        answer = await lab.store.settle_events([Complete(stale)], then_claim=lab.request())
        (outcome,) = answer.outcomes
        assert isinstance(outcome, LeaseLost)
        assert outcome.subject == claim.event.id
        assert outcome.reason
        assert numbers(answer.claims) == [1]
        assert (await lab.store.counts(BUS)).processing == 2

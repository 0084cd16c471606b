"""Proof of ``durabus.store.results``: what each handler did, and when the event is done."""

from __future__ import annotations

from hashlib import sha1

import pytest

from durabus.errors import LeaseLost
from durabus.model.claim import ClaimRef, new_token
from durabus.model.event import new_event_id
from durabus.model.result import HandlerResult
from durabus.model.settlement import Cancel, Complete, Fail, Keep, Release, Settled
from durabus.model.statuses import HISTORY, EventStatus, HandlerMode, ResultStatus
from durabus.store.contract import EventStore
from durabus.testing.conformance.handler_claims import IDS, handler_claim, handler_request, outcome
from durabus.testing.conformance.lab import ALICE, BUS, Lab


def _results(*handler_ids: str) -> tuple[HandlerResult, ...]:
    return tuple(HandlerResult(handler_id=one, status=ResultStatus.SUCCEEDED, attempts=1) for one in handler_ids)


class HandlerResultTests:
    """Results of handlers."""

    @pytest.mark.parametrize("status", [status for status in ResultStatus if status is not ResultStatus.PROCESSING])
    async def test_an_outcome_is_written_with_the_claims_attempt_and_fence(
        self, lab: Lab, other_node: EventStore, status: ResultStatus
    ) -> None:
        """Write status, error, value and time of ``outcome``; keep the claim's attempts and fence; free its lock."""
        claim = await lab.claimed()
        granted = await handler_claim(lab, claim)
        sent = HandlerResult(
            handler_id="mail",
            status=status,
            attempts=77,
            error="Fehler: ü",
            value_json='{"größe":1}',
            execution_time_ms=0.25,
            fence=99,
        )
        stored = await lab.store.complete_handler_result(granted, sent)
        assert (stored.handler_id, stored.status, stored.error) == ("mail", status, "Fehler: ü")
        assert (stored.value_json, stored.execution_time_ms) == ('{"größe":1}', 0.25)
        assert (stored.attempts, stored.fence, stored.expires_ts) == (1, 1, None)
        assert await other_node.list_results(claim.event.id) == [stored]
        assert await lab.store.list_locks() == []

    async def test_a_repeat_with_another_status_is_refused(self, lab: Lab, other_node: EventStore) -> None:
        """A repeat with the same status returns what the first call returned.

        Raises ``LeaseLost`` if the claim is not current.
        """
        granted = await handler_claim(lab, await lab.claimed())
        first = await lab.store.complete_handler_result(granted, outcome())
        before = await lab.picture()
        assert await other_node.complete_handler_result(granted, outcome()) == first
        with pytest.raises(LeaseLost):
            await lab.store.complete_handler_result(granted, outcome(ResultStatus.TRANSIENT, "no"))
        assert await lab.picture() == before

    async def test_a_released_handler_gets_its_attempt_back_and_keeps_its_fence(self, lab: Lab) -> None:
        """Give up a handler claim: the handler becomes PENDING and gets its attempt back, and its lock is freed.

        A repeat changes nothing.
        """
        claim = await lab.claimed()
        granted = await handler_claim(lab, claim)
        await lab.store.release_handler_claim(granted)
        (result,) = await lab.store.list_results(claim.event.id)
        assert (result.status, result.attempts, result.fence) == (ResultStatus.PENDING, 0, 1)
        assert (result.worker_id, result.is_offered) == (None, True)
        assert await lab.store.list_locks() == []
        again = await handler_claim(lab, claim)
        assert (again.handler_id, again.attempts, again.fence) == ("mail", 1, 2)

    @pytest.mark.parametrize("first", ["release", "complete"])
    async def test_a_claim_that_was_ended_one_way_cannot_be_ended_the_other(self, lab: Lab, first: str) -> None:
        """Give up a handler claim: the handler becomes PENDING and gets its attempt back, and its lock is freed.

        A repeat changes nothing. Raises ``LeaseLost`` if the claim is not current. It is offered again after ``delay``.
        """
        granted = await handler_claim(lab, await lab.claimed())
        if first == "release":
            await lab.store.release_handler_claim(granted)
        else:
            await lab.store.complete_handler_result(granted, outcome())
        before = await lab.picture()
        with pytest.raises(LeaseLost):
            await (
                lab.store.complete_handler_result(granted, outcome())
                if first == "release"
                else lab.store.release_handler_claim(granted)
            )
        assert await lab.picture() == before

    async def test_a_result_written_with_the_event_does_not_lower_the_handlers_fence(self, lab: Lab) -> None:
        """``results`` overwrite the stored results of the same handlers."""
        claim = await lab.claimed()
        first = await handler_claim(lab, claim, ("mail",), HandlerMode.PARALLEL)
        sent = HandlerResult(handler_id="mail", status=ResultStatus.TRANSIENT, attempts=5, error="no")
        await lab.settle_one(Fail(claim.ref, "no", 0.0, (sent,)))
        (stored,) = await lab.store.list_results(claim.event.id)
        assert (stored.status, stored.attempts, stored.error) == (ResultStatus.TRANSIENT, 5, "no")
        assert stored.fence == first.fence
        await lab.let_the_lease_end()
        again = await handler_claim(lab, await lab.claim_one(), ("mail",), HandlerMode.PARALLEL)
        assert (again.fence, again.attempts) == (first.fence + 1, 6)
        with pytest.raises(LeaseLost):
            await lab.store.complete_handler_result(first, outcome())

    async def test_a_late_handler_can_still_write_if_no_worker_took_it(self, lab: Lab) -> None:
        """Extend a handler claim. Only the token decides, even if the lease is over."""
        claim = await lab.claimed()
        granted = await handler_claim(lab, claim)
        await lab.advance(2 * lab.lease)
        (expiry,) = await lab.store.renew_handler_claims([granted], lease=lab.lease)
        assert isinstance(expiry, float)
        await lab.advance(2 * lab.lease)
        stored = await lab.store.complete_handler_result(granted, outcome())
        assert stored.status is ResultStatus.SUCCEEDED

    async def test_an_event_is_completed_when_all_its_handlers_are(self, lab: Lab, other_node: EventStore) -> None:
        """Complete the event if all of ``handler_ids`` are settled, or one of its results is UNRECOVERABLE; else
        None.
        """
        claim = await lab.claimed()
        for _ in IDS:
            assert await lab.store.complete_event_if_done(claim.ref, IDS) is None
            await lab.store.complete_handler_result(await handler_claim(lab, claim), outcome())
        settled = await other_node.complete_event_if_done(claim.ref, IDS)
        assert settled == Settled(claim.event.id, EventStatus.COMPLETED)
        assert (await lab.event(claim)).status is EventStatus.COMPLETED
        entry = (await lab.store.read_event_log(claim.event.id))[-1]
        assert {result.handler_id for result in entry.results} == set(IDS)
        assert entry.payload_json == claim.event.payload_json

    async def test_completing_if_done_can_be_repeated_but_not_under_another_claim(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """It works as ``settle_events`` with ``Complete``, also for a repeat.

        Raises ``LeaseLost`` if the claim is not current.
        """
        claim = await lab.claimed()
        first = await lab.store.complete_event_if_done(claim.ref, [])
        before = await lab.picture()
        assert await other_node.complete_event_if_done(claim.ref, []) == first
        with pytest.raises(LeaseLost):
            await lab.store.complete_event_if_done(ClaimRef(claim.event.id, new_token(), claim.event.fence), [])
        with pytest.raises(LeaseLost):
            await lab.store.complete_event_if_done(ClaimRef(4711, claim.token, 1), [])
        assert await lab.picture() == before

    async def test_completing_if_done_changes_nothing_while_a_handler_is_not_settled(self, lab: Lab) -> None:
        """Complete the event if all of ``handler_ids`` are settled, or one of its results is UNRECOVERABLE; else
        None.
        """
        claim = await lab.claimed()
        await lab.store.complete_handler_result(await handler_claim(lab, claim), outcome(ResultStatus.TRANSIENT, "no"))
        before = await lab.picture()
        for ids in (IDS, ("mail",), ("audit",)):
            assert await lab.store.complete_event_if_done(claim.ref, ids) is None
        assert await lab.picture() == before

    async def test_an_event_without_handlers_is_done(self, lab: Lab) -> None:
        """Complete the event if all of ``handler_ids`` are settled, or one of its results is UNRECOVERABLE; else
        None.
        """
        claim = await lab.claimed()
        settled = await lab.store.complete_event_if_done(claim.ref, [])
        assert settled == Settled(claim.event.id, EventStatus.COMPLETED)

    async def test_one_unrecoverable_result_ends_the_event_at_once(self, lab: Lab) -> None:
        """Complete the event if all of ``handler_ids`` are settled, or one of its results is UNRECOVERABLE; else
        None.
        """
        claim = await lab.claimed()
        running = await handler_claim(lab, claim, ("audit",), HandlerMode.PARALLEL)
        fatal = await handler_claim(lab, claim, ("mail",), HandlerMode.PARALLEL)
        await lab.store.complete_handler_result(fatal, outcome(ResultStatus.UNRECOVERABLE, "no such customer"))
        settled = await lab.store.complete_event_if_done(claim.ref, IDS)
        assert settled == Settled(claim.event.id, EventStatus.COMPLETED_WITH_ERRORS)
        assert (await lab.event(claim)).errors == ("no such customer",)
        with pytest.raises(LeaseLost):
            await lab.store.complete_handler_result(running, outcome())

    async def test_results_are_listed_by_handler_id(self, lab: Lab, other_node: EventStore) -> None:
        """Return the stored results of an event, in order of ``handler_id``; an empty list if there are none."""
        claim = await lab.claimed()
        assert await lab.store.list_results(claim.event.id) == []
        await lab.settle_one(Release(claim.ref, results=_results("c", "a", "b")))
        for ref in (claim.event.id, claim.event.event_id):
            assert [result.handler_id for result in await other_node.list_results(ref)] == ["a", "b", "c"]
        for unknown in (4711, new_event_id()):
            assert await lab.store.list_results(unknown) == []

    @pytest.mark.parametrize("status", list(EventStatus))
    async def test_results_of_the_history_are_cleaned_up_and_no_others(
        self, lab: Lab, other_node: EventStore, status: EventStatus
    ) -> None:
        """After the event has ended, they stay as they are until ``cleanup_results``; those of a dead letter until it
        is requeued or purged.
        """
        claim = await lab.claimed()
        results = _results("a", "b")
        match status:
            case EventStatus.PENDING:
                await lab.settle_one(Release(claim.ref, results=results))
            case EventStatus.PROCESSING:
                await lab.settle_one(Release(claim.ref, results=results))
                await lab.claim_one()
            case EventStatus.COMPLETED:
                await lab.settle_one(Complete(claim.ref, results))
            case EventStatus.COMPLETED_WITH_ERRORS:
                await lab.settle_one(Complete(claim.ref, results, errors=("no",)))
            case EventStatus.FAILED:
                await lab.settle_one(Fail(claim.ref, "no", None, results))
            case EventStatus.CANCELLED:
                await lab.settle_one(Cancel(claim.ref, "expired", results))
        assert await lab.store.list_results(claim.event.id) == list(results)
        log = await lab.log()
        cleaned = 2 if status in HISTORY else 0
        assert await other_node.cleanup_results() == cleaned
        assert len(await lab.store.list_results(claim.event.id)) == 2 - cleaned
        assert (await lab.event(claim)).status is status
        assert await lab.log() == log

    async def test_results_are_cleaned_up_in_bounded_steps(self, lab: Lab) -> None:
        """Delete the results of COMPLETED and CANCELLED events, and return how many."""
        for _ in range(3):
            claim = await lab.claimed()
            await lab.settle_one(Complete(claim.ref, _results("a", "b")))
        assert [await lab.store.cleanup_results(limit=4) for _ in range(3)] == [4, 2, 0]

    @pytest.mark.parametrize("gone_by", ["trim", "remove", "purge"])
    async def test_nothing_is_left_of_the_results_of_an_event_that_is_gone(self, lab: Lab, gone_by: str) -> None:
        """Trimming, purging or removing an event deletes its results at once."""
        claim = await lab.claimed()
        results = _results("a")
        end = Fail(claim.ref, "no", None, results) if gone_by == "purge" else Complete(claim.ref, results)
        await lab.settle_one(end)
        assert await lab.store.list_results(claim.event.id) == list(results)
        match gone_by:
            case "trim":
                await lab.store.trim_event_history(BUS, older_than=0)
            case "remove":
                await lab.store.remove_event(claim.event.id)
            case "purge":
                await lab.store.purge_dead_letters(created_until_ts=claim.event.created_ts)
        assert await lab.store.list_results(claim.event.event_id) == []
        assert await lab.store.list_results(claim.event.id) == []
        assert await lab.store.cleanup_results() == 0
        await lab.publish_one(event_id=claim.event.event_id)
        assert await lab.store.list_results(claim.event.event_id) == []
        assert (await lab.claim_one()).results == ()

    async def test_renewals_of_handlers_are_judged_one_by_one(self, lab: Lab) -> None:
        """Extend the leases of handler claims, as ``renew_event_claims`` does for events."""
        claim = await lab.claimed()
        a, b, c = [await handler_claim(lab, claim, mode=HandlerMode.PARALLEL) for _ in IDS]
        await lab.store.complete_handler_result(b, outcome())
        answers = await lab.store.renew_handler_claims([a, b, c], lease=2 * lab.lease)
        assert [isinstance(answer, LeaseLost) for answer in answers] == [False, True, False]
        by_id = {result.handler_id: result for result in await lab.store.list_results(claim.event.id)}
        assert (by_id[a.handler_id].expires_ts, by_id[c.handler_id].expires_ts) == (answers[0], answers[2])
        assert by_id[b.handler_id].expires_ts is None

    async def test_the_next_worker_knows_which_handlers_are_done(self, lab: Lab, other_node: EventStore) -> None:
        """``Claim.results`` holds what the event's handlers did in earlier attempts."""
        claim = await lab.claimed()
        done = await lab.store.complete_handler_result(await handler_claim(lab, claim), outcome())
        await lab.settle_one(Fail(claim.ref, "no", 0.0))
        again = await lab.claim_one(other_node)
        assert again.results == (done,)
        asked = handler_request(lab, again, worker_id=ALICE)
        granted = await lab.store.claim_next_handler_result(asked)
        assert granted is not None
        assert granted.handler_id == "audit"


class KeptResultTests:
    """Results that are written while the claim on their event goes on."""

    async def test_kept_results_come_with_the_next_claim_and_the_entry_of_the_end(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """``Claim.results`` of the next claim on the event holds the kept results, and so does the entry of its end."""
        claim = await lab.claimed()
        kept = HandlerResult(
            handler_id="mail",
            status=ResultStatus.SUCCEEDED,
            attempts=1,
            value_json='{"größe":1}',
            execution_time_ms=0.25,
        )
        assert await lab.store.keep_results([Keep(claim.ref, (kept,))]) == [None]
        assert await other_node.list_results(claim.event.id) == [kept]
        assert await lab.store.keep_results([Keep(claim.ref, _results("audit"))]) == [None]
        await lab.let_the_lease_end()
        again = await lab.claim_one(other_node)
        assert again.results == (kept, *_results("audit"))
        await lab.settle_one(Complete(again.ref, _results("report")))
        entry = (await lab.store.read_event_log(claim.event.id))[-1]
        assert entry.results == (kept, *_results("audit", "report"))

    async def test_keeping_results_leaves_claim_lease_and_log_as_they_are(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """The claim, its lease and the event stay as they are, and nothing is logged."""
        claim = await lab.claimed()
        before, log = await lab.event(claim), await lab.log()
        await lab.store.keep_results([Keep(claim.ref, _results("a"))])
        assert await lab.event(claim) == before
        assert await lab.log() == log
        assert isinstance((await other_node.renew_event_claims([claim.ref], lease=lab.lease))[0], float)
        assert await lab.settle_one(Complete(claim.ref)) == Settled(claim.event.id, EventStatus.COMPLETED)

    async def test_kept_results_overwrite_those_of_the_same_handlers(self, lab: Lab) -> None:
        """``results`` overwrite the stored results of the same handlers.

        Each ``Keep`` is written whole or not at all.
        """
        claim = await lab.claimed()
        held = await handler_claim(lab, claim, ("a",))
        first = HandlerResult(handler_id="b", status=ResultStatus.TRANSIENT, attempts=1, error="no")
        await lab.store.keep_results([Keep(claim.ref, (first,))])
        await lab.store.keep_results([Keep(claim.ref, _results("b", "a"))])
        by_id = {result.handler_id: result for result in await lab.store.list_results(claim.event.id)}
        assert by_id["b"] == _results("b")[0]
        assert (by_id["a"].status, by_id["a"].fence) == (ResultStatus.SUCCEEDED, held.fence)
        assert await lab.store.list_locks() == []
        with pytest.raises(LeaseLost):
            await lab.store.complete_handler_result(held, outcome())

    async def test_results_of_several_claims_are_kept_one_by_one(self, lab: Lab, other_node: EventStore) -> None:
        """Write results of handlers under claims that go on. Returns None or ``LeaseLost`` for each of ``kept``."""
        claims = [await lab.claimed() for _ in range(3)]
        await lab.settle_one(Release(claims[1].ref))
        stranger = ClaimRef(claims[0].event.id, new_token(), claims[0].event.fence)
        kept = [Keep(claim.ref, _results("a", "b")) for claim in claims]
        kept += [Keep(stranger, _results("c")), Keep(ClaimRef(4711, new_token(), 1), _results("a"))]
        outcomes = await lab.store.keep_results(kept)
        assert [isinstance(one, LeaseLost) for one in outcomes] == [False, True, False, True, True]
        stored = [len(await other_node.list_results(claim.event.id)) for claim in claims]
        assert stored == [2, 0, 2]
        assert await lab.store.keep_results([]) == []

    async def test_an_abandoned_claim_keeps_results_until_the_event_is_claimed_again(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """Late but not overtaken counts here too: an abandoned claim may keep results until the event is claimed again.

        Any other claim that is not current gets ``LeaseLost``, and nothing of it is written. A repeat writes the same
        results again.
        """
        claim = await lab.claimed()
        await lab.let_the_lease_end()
        assert await other_node.expire_events() == 1
        assert await lab.store.keep_results([Keep(claim.ref, _results("a"))]) == [None]
        assert (await lab.event(claim)).status is EventStatus.PENDING
        newer = await lab.claim_one(other_node)
        assert newer.results == _results("a")
        before = await lab.picture()
        (outcome_,) = await lab.store.keep_results([Keep(claim.ref, _results("b"))])
        assert isinstance(outcome_, LeaseLost)
        assert await lab.picture() == before

    async def test_the_log_keeps_large_values_of_steps_by_their_hash(self, lab: Lab) -> None:
        """``Claim.results`` of the next claim on the event holds the kept results, and so does the entry of its end."""
        claim = await lab.claimed()
        small, large = (
            HandlerResult(handler_id=f"a > {len(text)}", status=ResultStatus.KEPT, attempts=1, value_json=text)
            for text in ('{"value":"ü"}', '{"value":"' + "ü" * 2_100 + '"}')
        )
        await lab.store.keep_results([Keep(claim.ref, (small, large))])
        await lab.settle_one(Complete(claim.ref))
        logged = (await lab.store.read_event_log(claim.event.id))[-1].results
        digest = sha1((large.value_json or "").encode(), usedforsecurity=False).hexdigest()
        assert logged[0] == small
        assert logged[1].value == {"sha1": digest, "bytes": 4_212}

    async def test_a_requeue_keeps_successes_and_steps(self, lab: Lab) -> None:
        """Results of handlers that succeeded, and steps, are kept."""
        claim = await lab.claimed()
        failed = HandlerResult(handler_id="b", status=ResultStatus.TRANSIENT, attempts=1, error="no")
        step = HandlerResult(handler_id="b > charge", status=ResultStatus.KEPT, attempts=1, value_json="{}")
        await lab.store.keep_results([Keep(claim.ref, (*_results("a"), step))])
        await lab.settle_one(Fail(claim.ref, "no", None, (failed,)))
        await lab.store.requeue_dead_letters([claim.event.id])
        assert (await lab.claim_one()).results == (*_results("a"), step)

"""Proof of ``durabus.store.results``: handlers that one worker offers, and that workers of other nodes claim."""

from __future__ import annotations

from functools import partial

import anyio
import pytest
from msgspec.structs import replace

from durabus.errors import LeaseLost
from durabus.model.claim import Claim, OfferedHandler, OfferRequest, handler_lock_key, new_token
from durabus.model.result import HandlerResult, offer
from durabus.model.settlement import Complete, Fail, HandlerSettlement, Keep, Release
from durabus.model.statuses import Action, EventStatus, HandlerMode, ResultStatus
from durabus.store.contract import EventStore
from durabus.testing.conformance.handler_claims import BOTH_MODES, handler_request, outcome
from durabus.testing.conformance.lab import ALICE, BOB, BUS, OTHER_BUS, Lab


def offer_request(
    lab: Lab,
    *handler_ids: str,
    limit: int = 10,
    mode: HandlerMode = HandlerMode.PARALLEL,
    bus: str = BUS,
    worker_id: str = BOB,
) -> OfferRequest:
    """Return a request with a new token."""
    return OfferRequest(
        bus=bus,
        handler_ids=handler_ids,
        worker_id=worker_id,
        token=new_token(),
        limit=limit,
        lease=lab.lease,
        mode=mode,
    )


async def offered(lab: Lab, *handler_ids: str, bus: str = BUS) -> Claim:
    """Publish an event, claim it for Alice, and offer these handlers of it."""
    claim = await lab.claimed(bus=bus)
    await lab.store.renew_event_claims([claim.ref], lease=9 * lab.lease)
    results = tuple(offer(handler_id) for handler_id in handler_ids)
    assert await lab.store.keep_results([Keep(claim.ref, results)]) == [None]
    return claim


async def taken(lab: Lab, node: EventStore, *handler_ids: str) -> OfferedHandler:
    """Claim exactly one offered handler for Bob."""
    (found,) = await node.claim_offered_handlers(offer_request(lab, *handler_ids))
    return found


class OfferTests:
    """A worker offers handlers, and other workers claim them, each handler once."""

    @BOTH_MODES
    async def test_an_offered_handler_is_claimed_beside_the_claim_on_its_event(
        self, lab: Lab, other_node: EventStore, mode: HandlerMode
    ) -> None:
        """Each handler is claimed as ``claim_next_handler_result`` claims it, with ``mode`` serial at most one of each
        event. The event, its claim and its lease stay as they are.
        """
        claim = await offered(lab, "mail")
        before, now, log = await lab.event(claim), await lab.store.now(), await lab.log()
        (found,) = await other_node.claim_offered_handlers(offer_request(lab, "audit", "mail", mode=mode))
        assert (found.event, found.claim.handler_id) == (before, "mail")
        assert (found.claim.id, found.claim.attempts, found.claim.fence) == (claim.event.id, 1, 1)
        assert lab.same_time(found.claim.expires_ts, now + lab.lease)
        (result,) = await lab.store.list_results(claim.event.id)
        assert found.results == (result,)
        assert (result.status, result.worker_id) == (ResultStatus.PROCESSING, BOB)
        assert await lab.event(claim) == before
        assert await lab.log() == log
        locks = [handler_lock_key(claim.event.event_id)] if mode is HandlerMode.SERIAL else []
        assert [lock.key for lock in await lab.store.list_locks()] == locks
        await other_node.complete_handler_result(found.claim, outcome())
        assert await lab.store.list_locks() == []
        await lab.settle_one(Complete(claim.ref))
        assert [entry.action for entry in await lab.store.read_event_log(claim.event.id)] == [
            Action.PUBLISHED,
            Action.PICKED,
            Action.COMPLETED,
        ]

    async def test_only_offered_handlers_with_these_ids_on_this_bus_are_claimed(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """Offered is a handler with a PENDING result and ``expires_ts``, once that time has come, or with a PROCESSING
        result whose lease is over. Only ``request.handler_ids`` are claimed.
        """
        claim = await offered(lab, "mail")
        await offered(lab, "mail", bus=OTHER_BUS)
        plain = [
            HandlerResult(handler_id="asleep", status=ResultStatus.PENDING),
            HandlerResult(handler_id="failed", status=ResultStatus.TRANSIENT, error="no"),
            HandlerResult(handler_id="done", status=ResultStatus.SUCCEEDED),
        ]
        await lab.store.keep_results([Keep(claim.ref, tuple(plain))])
        assert await other_node.claim_offered_handlers(offer_request(lab, "asleep", "failed", "done", "other")) == []
        assert await other_node.claim_offered_handlers(offer_request(lab)) == []
        assert await other_node.claim_offered_handlers(offer_request(lab, "mail", limit=0)) == []
        found = await taken(lab, other_node, "mail", "asleep")
        assert (found.event.id, found.claim.handler_id) == (claim.event.id, "mail")

    async def test_a_handler_is_offered_again_when_its_lease_is_over(self, lab: Lab, other_node: EventStore) -> None:
        """Offered is a handler with a PENDING result and ``expires_ts``, once that time has come, or with a PROCESSING
        result whose lease is over.
        """
        await offered(lab, "mail")
        lost = await taken(lab, other_node, "mail")
        await lab.advance(lab.lease - lab.margin)
        assert await lab.store.claim_offered_handlers(offer_request(lab, "mail")) == []
        await lab.advance(lab.margin)
        again = await taken(lab, lab.store, "mail")
        assert (again.claim.attempts, again.claim.fence) == (2, lost.claim.fence + 1)
        before = await lab.picture()
        for settlement in (HandlerSettlement(lost.claim, outcome()), HandlerSettlement(lost.claim)):
            (refused,) = await other_node.settle_handlers([settlement])
            assert isinstance(refused, LeaseLost)
        (late,) = await other_node.renew_handler_claims([lost.claim], lease=9 * lab.lease)
        step = HandlerResult(handler_id="mail > charge", status=ResultStatus.KEPT, value_json="{}")
        (kept,) = await other_node.keep_results([Keep(lost.claim, (step,))])
        assert isinstance(late, LeaseLost)
        assert isinstance(kept, LeaseLost)
        assert await lab.picture() == before

    async def test_a_released_handler_is_offered_again_after_its_delay(self, lab: Lab, other_node: EventStore) -> None:
        """A PENDING handler that was offered for later is passed over until then."""
        claim = await offered(lab, "mail")
        found = await taken(lab, other_node, "mail")
        now = await lab.store.now()
        await other_node.release_handler_claim(found.claim, delay=20 * lab.moment)
        await lab.store.release_handler_claim(found.claim, delay=25 * lab.moment)
        (result,) = await lab.store.list_results(claim.event.id)
        assert (result.status, result.attempts, result.worker_id) == (ResultStatus.PENDING, 0, None)
        assert lab.same_time(result.expires_ts, now + 20 * lab.moment)
        assert await other_node.claim_offered_handlers(offer_request(lab, "mail")) == []
        parallel = handler_request(lab, claim, ("mail",), HandlerMode.PARALLEL)
        assert await other_node.claim_next_handler_result(parallel) is None
        await lab.advance(20 * lab.moment)
        assert (await taken(lab, lab.store, "mail")).claim.attempts == 1

    async def test_older_events_come_first_and_no_more_than_asked_for(self, lab: Lab, other_node: EventStore) -> None:
        """Order: smaller ``id`` of the event first, then the order in which its results first appeared. The returned
        list has this order.
        """
        claims = [await offered(lab, "mail", "audit") for _ in range(3)]
        ids = sorted(claim.event.id for claim in claims)
        found = await other_node.claim_offered_handlers(offer_request(lab, "mail", limit=2))
        if lab.store.features.one_order:
            assert [one.event.id for one in found] == ids[:2]
        assert len(found) == 2
        rest = await lab.store.claim_offered_handlers(offer_request(lab, "mail", "audit", limit=50))
        assert [one.event.id for one in rest] == sorted(one.event.id for one in rest)
        (whole,) = set(ids) - {one.event.id for one in found}
        assert [one.claim.handler_id for one in rest if one.event.id == whole] == ["mail", "audit"]
        assert all(result.worker_id is not None for one in rest for result in one.results)
        both = [(one.event.id, one.claim.handler_id) for one in (*found, *rest)]
        assert sorted(both) == sorted((id_, handler_id) for id_ in ids for handler_id in ("mail", "audit"))

    async def test_serial_handlers_of_an_event_are_claimed_one_at_a_time(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """Each handler is claimed as ``claim_next_handler_result`` claims it, with ``mode`` serial at most one of each
        event.
        """
        claims = [await offered(lab, "mail", "audit") for _ in range(2)]
        asked = partial(offer_request, lab, "mail", "audit", mode=HandlerMode.SERIAL)
        found = await other_node.claim_offered_handlers(asked())
        assert {one.event.id for one in found} == {claim.event.id for claim in claims}
        assert len(found) == 2
        assert await lab.store.claim_offered_handlers(asked(worker_id=ALICE)) == []
        await other_node.complete_handler_result(found[0].claim, outcome())
        (second,) = await lab.store.claim_offered_handlers(asked(worker_id=ALICE))
        assert second.event.id == found[0].event.id
        assert second.claim.handler_id != found[0].claim.handler_id

    @BOTH_MODES
    async def test_of_many_that_ask_at_once_each_handler_goes_to_one(
        self, lab: Lab, other_node: EventStore, mode: HandlerMode
    ) -> None:
        """A second caller never gets a handler whose lease is not over, however many callers race."""
        claims = [await offered(lab, "mail") for _ in range(6)]
        asked = [offer_request(lab, "mail", limit=2, mode=mode) for _ in range(12)]
        nodes = [lab.store, other_node] * 6
        answers = await lab.race(
            [partial(node.claim_offered_handlers, one) for node, one in zip(nodes, asked, strict=True)]
        )
        found = [one.event.id for answer in answers for one in answer]
        assert len(found) == len(set(found))
        rest = await lab.store.claim_offered_handlers(offer_request(lab, "mail", mode=mode))
        assert sorted([*found, *(one.event.id for one in rest)]) == sorted(claim.event.id for claim in claims)

    @BOTH_MODES
    async def test_a_repeated_request_returns_what_its_token_holds(
        self, lab: Lab, other_node: EventStore, mode: HandlerMode
    ) -> None:
        """A repeat with the same token returns the claims that the token still holds, and does nothing else. If the
        token holds none any more, the call is a new request.
        """
        for _ in range(3):
            await offered(lab, "mail")
        request = offer_request(lab, "mail", limit=2, mode=mode)
        first = await lab.store.claim_offered_handlers(request)
        before = await lab.picture()
        again = await other_node.claim_offered_handlers(request)
        assert sorted(again, key=_number) == sorted(first, key=_number)
        assert await lab.picture() == before
        await lab.store.complete_handler_result(first[0].claim, outcome())
        assert [one.claim for one in await other_node.claim_offered_handlers(request)] == [first[1].claim]
        await lab.store.complete_handler_result(first[1].claim, outcome())
        (other,) = await other_node.claim_offered_handlers(request)
        assert other.event.id not in {one.event.id for one in first}

    async def test_handlers_of_events_that_no_worker_holds_are_not_claimed(self, lab: Lab) -> None:
        """Claim up to ``request.limit`` offered handlers of PROCESSING events of ``request.bus``. Never waits."""
        claim = await offered(lab, "mail")
        await lab.settle_one(Fail(claim.ref, "no", 0.0))
        assert await lab.store.claim_offered_handlers(offer_request(lab, "mail")) == []
        again = await lab.claim_one()
        assert again.results == (offer("mail"),)
        assert (await taken(lab, lab.store, "mail")).event.id == claim.event.id
        await lab.settle_one(Complete(again.ref, errors=("no",)))
        await lab.advance(2 * lab.lease)
        assert await lab.store.claim_offered_handlers(offer_request(lab, "mail")) == []

    @pytest.mark.parametrize("end", ["lease", "release", "reset"])
    async def test_a_handler_claim_outlives_the_claim_on_its_event(
        self, lab: Lab, other_node: EventStore, end: str
    ) -> None:
        """A handler claim outlives the claim on its event: it may be renewed until the event ends, also while the event
        waits for its next claim.
        """
        claim = await offered(lab, "mail", "audit")
        mail, audit = await other_node.claim_offered_handlers(offer_request(lab, "mail", "audit"))
        match end:
            case "lease":
                await lab.store.renew_event_claims([claim.ref], lease=lab.moment)
                await lab.advance(2 * lab.moment)
                assert await lab.store.expire_events() == 1
            case "release":
                await lab.settle_one(Release(claim.ref))
            case _:
                await lab.store.reset_event(claim.event.id, reason="stuck")
        assert (await lab.event(claim)).status is EventStatus.PENDING
        (expiry,) = await other_node.renew_handler_claims([mail.claim], lease=5 * lab.lease)
        assert isinstance(expiry, float)
        step = HandlerResult(handler_id="mail > charge", status=ResultStatus.KEPT, value_json="{}")
        assert await other_node.keep_results([Keep(mail.claim, (step,))]) == [None]
        assert (await other_node.complete_handler_result(audit.claim, outcome())).status is ResultStatus.SUCCEEDED
        newer = await lab.claim_one()
        statuses = {result.handler_id: result.status for result in newer.results}
        assert statuses == {
            "mail": ResultStatus.PROCESSING,
            "audit": ResultStatus.SUCCEEDED,
            "mail > charge": ResultStatus.KEPT,
        }
        assert await lab.store.claim_offered_handlers(offer_request(lab, "mail")) == []
        await other_node.complete_handler_result(mail.claim, outcome())
        await lab.settle_one(Complete(newer.ref))
        (refused,) = await other_node.renew_handler_claims([mail.claim], lease=lab.lease)
        assert isinstance(refused, LeaseLost)

    async def test_handler_claims_are_settled_one_by_one(self, lab: Lab, other_node: EventStore) -> None:
        """End handler claims in one step and judge each one on its own. Returns the stored result of each.

        With an ``outcome``, as ``complete_handler_result``; without one, as ``release_handler_claim``. The outcome is
        ``LeaseLost`` (a value, not raised) if the claim is not current, and nothing of it is written.
        """
        claims = [await offered(lab, "mail", "audit") for _ in range(2)]
        found = await other_node.claim_offered_handlers(offer_request(lab, "mail", "audit"))
        wrong = replace(found[0].claim, token=new_token())
        sent = [HandlerSettlement(one.claim, outcome()) for one in found[:3]]
        sent += [HandlerSettlement(found[3].claim), HandlerSettlement(wrong, outcome()), sent[0]]
        stored = await lab.store.settle_handlers(sent)
        assert [isinstance(one, LeaseLost) for one in stored] == [False, False, False, False, True, False]
        statuses = [one.status for one in stored if isinstance(one, HandlerResult)]
        assert statuses == [*[ResultStatus.SUCCEEDED] * 3, ResultStatus.PENDING, ResultStatus.SUCCEEDED]
        read = await other_node.read_results([claim.event.id for claim in claims])
        by_event = {(claim.event.id, r.handler_id): r for claim, rs in zip(claims, read, strict=True) for r in rs}
        for one, result in zip(found, stored, strict=False):
            assert by_event[one.event.id, one.claim.handler_id] == result
        assert await lab.store.settle_handlers([]) == []

    async def test_results_of_several_events_are_read_at_once(self, lab: Lab, other_node: EventStore) -> None:
        """Return the stored results of each event, in the order they first appeared; none for an unknown event."""
        first, second = await offered(lab, "b", "a"), await lab.claimed()
        assert await other_node.read_results([second.event.id, 4711, first.event.id]) == [
            (),
            (),
            (offer("b"), offer("a")),
        ]
        assert await other_node.read_results([]) == []

    async def test_a_handler_claim_keeps_steps_of_its_handler(self, lab: Lab, other_node: EventStore) -> None:
        """A claim on one handler may keep results too, as long as it may be settled. A result of the handler itself
        ends the claim.
        """
        claim = await offered(lab, "mail")
        found = await taken(lab, other_node, "mail")
        step = HandlerResult(handler_id="mail > charge", status=ResultStatus.KEPT, attempts=1, value_json='{"value":1}')
        assert await other_node.keep_results([Keep(found.claim, (step,))]) == [None]
        await other_node.release_handler_claim(found.claim)
        before = await lab.picture()
        (refused,) = await other_node.keep_results([Keep(found.claim, (replace(step, value_json="{}"),))])
        assert isinstance(refused, LeaseLost)
        assert await lab.picture() == before
        again = await taken(lab, lab.store, "mail")
        assert step in again.results
        done = HandlerResult(handler_id="mail", status=ResultStatus.SUCCEEDED, attempts=1)
        assert await lab.store.keep_results([Keep(again.claim, (done,))]) == [None]
        (late,) = await lab.store.renew_handler_claims([again.claim], lease=lab.lease)
        assert isinstance(late, LeaseLost)
        await lab.settle_one(Complete(claim.ref))
        assert step in (await lab.store.read_event_log(claim.event.id))[-1].results

    async def test_a_result_of_the_event_ends_the_claim_on_the_handler(self, lab: Lab, other_node: EventStore) -> None:
        """``results`` overwrite the stored results of the same handlers."""
        claim = await offered(lab, "mail")
        found = await taken(lab, other_node, "mail")
        stopped = HandlerResult(handler_id="mail", status=ResultStatus.ABORTED, error="not needed")
        await lab.settle_one(Complete(claim.ref, (stopped,)))
        (renewed,) = await other_node.renew_handler_claims([found.claim], lease=lab.lease)
        (settled,) = await other_node.settle_handlers([HandlerSettlement(found.claim, outcome())])
        assert isinstance(renewed, LeaseLost)
        assert isinstance(settled, LeaseLost)

    @pytest.mark.parametrize("news", ["end", "release"])
    async def test_the_end_of_a_handler_wakes_the_workers_of_the_bus(
        self, lab: Lab, other_node: EventStore, news: str
    ) -> None:
        """It wakes the workers of the bus: the worker that holds the event waits for its handlers."""
        await self._is_heard(lab, other_node, news)

    async def test_an_offer_wakes_the_workers_of_the_bus(self, lab: Lab, other_node: EventStore) -> None:
        """A PENDING result with ``expires_ts`` offers its handler to the workers of all nodes, from that time on. It
        wakes the workers of the bus: ``wait_for_work``.
        """
        await self._is_heard(lab, other_node, "offer")

    @pytest.mark.parametrize("since", ["claimed", "succeeded", "failed", "released"])
    async def test_a_repeated_offer_changes_nothing_once_a_worker_has_claimed_the_handler(
        self, lab: Lab, other_node: EventStore, since: str
    ) -> None:
        """An offer changes nothing if the handler is offered or settled already, or if its fence is not that of the
        offer: a worker has claimed it since.
        """
        claim = await offered(lab, "mail")
        found = await taken(lab, other_node, "mail")
        match since:
            case "succeeded":
                await other_node.complete_handler_result(found.claim, outcome())
            case "failed":
                await other_node.complete_handler_result(found.claim, outcome(ResultStatus.TRANSIENT, "no"))
            case "released":
                await other_node.release_handler_claim(found.claim, delay=5 * lab.moment)
        before = await lab.picture()
        assert await lab.store.keep_results([Keep(claim.ref, (offer("mail"),))]) == [None]
        assert await lab.picture() == before
        if since == "claimed":
            assert isinstance((await other_node.renew_handler_claims([found.claim], lease=lab.lease))[0], float)
        if since == "failed":
            (known,) = await lab.store.list_results(claim.event.id)
            await lab.store.keep_results([Keep(claim.ref, (offer("mail", known),))])
            assert (await taken(lab, other_node, "mail")).claim.fence == found.claim.fence + 1

    async def _is_heard(self, lab: Lab, other_node: EventStore, news: str) -> None:
        claim = await lab.claimed()
        found = None
        if news != "offer":
            await lab.store.keep_results([Keep(claim.ref, (offer("mail"),))])
            found = await taken(lab, other_node, "mail")
            await lab.claim()  # it gets nothing, so that the wait does not end because of the offer itself
        heard: list[bool] = []

        async def wait() -> None:
            heard.append(await lab.store.wait_for_work(BUS, timeout=20.0))

        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                while not heard:
                    await anyio.sleep(0.2)  # the wait may begin late, and a repeat wakes it again
                    if found is None:
                        await other_node.keep_results([Keep(claim.ref, (offer("mail"),))])
                    else:
                        end = outcome() if news == "end" else None
                        await other_node.settle_handlers([HandlerSettlement(found.claim, end)])
        assert heard == [True]


def _number(one: OfferedHandler) -> tuple[int, str]:
    return one.event.id, one.claim.handler_id

"""Waits: an event waits for another event, and the step that stores the other one meets the wait."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from durabus.errors import LeaseLost
from durabus.model.claim import Claim
from durabus.model.event import Event, NewEvent, new_event
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Keep, Release
from durabus.model.statuses import EventStatus, ResultStatus
from durabus.model.wait import Scalar, met_event, new_wait, waiting
from durabus.testing.conformance.lab import BUS, OTHER_BUS, Lab

PAID = "payment.settled"
NAME = "order > wait_for"
OTHER = "b > wait_for"
LONG = 1000.0


def wait_result(
    claim: Claim, where: dict[str, Scalar] | None = None, *, until: float | None = None, name: str = NAME
) -> HandlerResult:
    """Return a wait of a claimed event for a payment."""
    return waiting(name, new_wait(claim.event.bus, PAID, where, until))


def payment(bus: str = BUS, **fields: Any) -> NewEvent:
    """Return a payment that is not published yet."""
    return new_event(PAID, fields, bus=bus)


async def wait_for(lab: Lab, claim: Claim, where: dict[str, Scalar] | None = None, **options: Any) -> None:
    """Release a claimed event until a payment is stored."""
    await lab.settle_one(Release(claim.ref, LONG, (wait_result(claim, where, **options),)))


async def outcome(lab: Lab, event: Event | Claim, name: str = NAME) -> Event | None:
    """Return the event that met the wait; None while it is not met."""
    id_ = event.id if isinstance(event, Event) else event.event.id
    (result,) = [one for one in await lab.store.list_results(id_) if one.handler_id == name]
    if result.status is ResultStatus.WAITING:
        return None
    assert result.status is ResultStatus.KEPT
    assert result.value_json is not None
    return met_event(result.value_json, BUS)


class WaitsOrRefusal:
    """What both classes of tests need."""

    @pytest.fixture
    async def waits(self, lab: Lab) -> Lab | None:
        """Return the lab if its store has waits, else None."""
        return lab if lab.store.features.waits else None


class WaitTests(WaitsOrRefusal):
    """When a wait is met, and by which event."""

    async def test_the_step_that_stores_an_event_meets_the_waits_for_it(self, lab: Lab, waits: Lab | None) -> None:
        """Else the step that stores such an event does so: it keeps the event, makes the waiting event due if that is
        PENDING, and wakes the workers of its bus.
        """
        if waits is None:
            return
        claim = await lab.claimed()
        await wait_for(lab, claim, {"order_id": 7})
        assert await lab.claim() == []
        (other,) = await lab.store.add_events([payment(order_id=8)])
        assert [one.event.id for one in await lab.claim(limit=10)] == [other.id]
        (paid,) = await lab.store.add_events(
            [
                new_event(
                    PAID,
                    {"order_id": 7, "sum": 1.5, "text": 'Grüße \\ " /'},
                    bus=BUS,
                    tags=["a/b", 'q"'],
                    metadata={"who": "bank"},
                    parent_id=claim.event.event_id,
                )
            ]
        )
        found = await outcome(lab, claim)
        assert found is not None
        assert (found.id, found.event_id, found.type, found.bus) == (paid.id, paid.event_id, PAID, BUS)
        assert (found.payload, found.metadata, found.tags) == (paid.payload, {"who": "bank"}, ("a/b", 'q"'))
        assert found.parent_id == claim.event.event_id
        assert abs(found.created_ts - paid.created_ts) < 0.01
        again = await lab.claim_one(limit=1)
        assert again.event.id == claim.event.id
        assert again.event.attempts == 1
        assert {one.handler_id: one.status for one in again.results} == {NAME: ResultStatus.KEPT}

    async def test_an_event_that_is_stored_already_meets_the_wait_at_once(self, lab: Lab, waits: Lab | None) -> None:
        """If one is stored already, this step keeps it in the place of the wait, and a release is due at once."""
        if waits is None:
            return
        claims = [await lab.claimed() for _ in range(4)]
        first, second = await lab.store.add_events([payment(order_id=7), payment(order_id=7, again=True)])
        ended = await lab.store.add_events([payment(done=n) for n in range(3)])
        taken = {one.event.id: one for one in await lab.claim(limit=10)}
        await lab.settle(
            Complete(taken[ended[0].id].ref),
            Complete(taken[ended[1].id].ref, errors=("no",)),
        )
        await lab.settle(Release(taken[first.id].ref, LONG), Release(taken[second.id].ref, LONG))
        await wait_for(lab, claims[0], {"order_id": 7})
        for claim, n in zip(claims[1:], range(3), strict=True):
            await wait_for(lab, claim, {"done": n})
        met = [await outcome(lab, claim) for claim in claims]
        assert [one and one.id for one in met] == [first.id, *(event.id for event in ended)]
        due = await lab.claim(limit=10)
        assert [one.event.id for one in due] == [claim.event.id for claim in claims]

    async def test_no_event_that_was_stored_before_meets_a_wait(self, lab: Lab, waits: Lab | None) -> None:
        """It is met by the first event of its bus and type that is stored after the waiting event."""
        if waits is None:
            return
        await lab.store.add_events([payment(order_id=7)])
        (paid,) = await lab.claim()
        await lab.settle_one(Release(paid.ref, LONG))
        (own,) = await lab.store.add_events([payment(order_id=7, own=True)])
        claim = await lab.claim_one()
        assert claim.event.id == own.id
        await wait_for(lab, claim, {"order_id": 7})
        assert await outcome(lab, claim) is None
        assert await lab.claim() == []
        await lab.store.add_events(
            [payment(OTHER_BUS, order_id=7), new_event("payment.failed", {"order_id": 7}, bus=BUS)]
        )
        assert await outcome(lab, claim) is None

    async def test_a_cancelled_event_meets_no_later_wait_and_a_delayed_one_does(
        self, lab: Lab, waits: Lab | None
    ) -> None:
        """An event that is not due yet, or has ended, meets a wait too. One cancelled before this step does not."""
        if waits is None:
            return
        claim, earlier = [await lab.claimed() for _ in range(2)]
        await wait_for(lab, earlier, {"n": 1})
        cancelled, dead = await lab.store.add_events([payment(n=1), payment(n=2)])
        await lab.store.cancel_event(cancelled.id, reason="not wanted")
        (late,) = await lab.store.add_events([msgspec.structs.replace(payment(n=1), delay=LONG)])
        taken = {one.event.id: one for one in await lab.claim(limit=10)}
        await lab.settle_one(Fail(taken[dead.id].ref, "no", None))
        both = (wait_result(claim, {"n": 1}), wait_result(claim, {"n": 2}, name=OTHER))
        await lab.settle_one(Release(claim.ref, LONG, both))
        met = [await outcome(lab, earlier), await outcome(lab, claim), await outcome(lab, claim, OTHER)]
        assert [one and one.id for one in met] == [cancelled.id, late.id, dead.id]

    @pytest.mark.parametrize(
        ("where", "fields", "meets"),
        [
            ({"a": 1}, {"a": 1.0}, True),
            ({"a": 1.0}, {"a": 1}, True),
            ({"a": 0.1}, {"a": 0.1}, True),
            ({"a": 0}, {"a": -0.0}, True),
            ({"a": 1e-7}, {"a": 1e-7}, True),
            ({"a": 9007199254740991}, {"a": 9007199254740991}, True),
            ({"a": 9007199254740991}, {"a": 9007199254740993}, False),
            ({"a": 1}, {"a": True}, False),
            ({"a": True}, {"a": 1}, False),
            ({"a": True}, {"a": True}, True),
            ({"a": False}, {"a": None}, False),
            ({"a": None}, {"a": None}, True),
            ({"a": None}, {}, False),
            ({"a": "1"}, {"a": 1}, False),
            ({"a": "x"}, {"a": ["x"]}, False),
            ({"a": "x"}, {"a": {"x": 1}}, False),
            ({"a": "Grüße"}, {"a": "Grüße", "b": "\0"}, True),
            ({"a": "\\u0000"}, {"a": "\\u0000", "b": "\0\\"}, True),
            ({"a": "x"}, {"a": "x\0"}, False),
            ({"a": "x", "b": 2}, {"b": 2, "a": "x", "c": 3}, True),
            ({"a": "x", "b": 2}, {"a": "x", "b": 3}, False),
            ({}, {"a": 1}, True),
        ],
    )
    async def test_fields_are_compared_as_json_values(
        self,
        lab: Lab,
        waits: Lab | None,
        where: dict[str, Scalar],
        fields: dict[str, Any],
        meets: bool,  # noqa: FBT001
    ) -> None:
        """It is met by the first event of its bus and type that is stored after the waiting event, before the wait's
        ``until``, and with equal fields.
        """
        if waits is None:
            return
        later, sooner = [await lab.claimed() for _ in range(2)]
        await wait_for(lab, later, where)
        (paid,) = await lab.store.add_events([payment(**fields)])
        await wait_for(lab, sooner, where)
        expected = paid.id if meets else None
        assert [found and found.id for found in (await outcome(lab, later), await outcome(lab, sooner))] == [
            expected
        ] * 2

    async def test_a_payload_that_is_no_object_meets_only_a_wait_without_fields(
        self, lab: Lab, waits: Lab | None
    ) -> None:
        """It is met by the first event of its bus and type that is stored after the waiting event, before the wait's
        ``until``, and with equal fields.
        """
        if waits is None:
            return
        plain, picky = [await lab.claimed() for _ in range(2)]
        await wait_for(lab, plain)
        await wait_for(lab, picky, {"0": 1})
        await lab.store.add_events([new_event(PAID, [1], bus=BUS)])
        assert await outcome(lab, plain) is not None
        assert await outcome(lab, picky) is None

    async def test_one_event_meets_many_waits_and_a_wait_takes_one_event(self, lab: Lab, waits: Lab | None) -> None:
        """It is met by the first event of its bus and type."""
        if waits is None:
            return
        claims = [await lab.claimed() for _ in range(3)]
        await lab.settle_one(
            Release(claims[0].ref, LONG, (wait_result(claims[0], {"n": 1}), wait_result(claims[0], name=OTHER)))
        )
        for claim in claims[1:]:
            await wait_for(lab, claim, {"n": 1})
        first, _ = await lab.store.add_events([payment(n=1), payment(n=1)])
        met = [await outcome(lab, claim) for claim in claims]
        assert [one and one.id for one in met] == [first.id] * 3
        also = await outcome(lab, claims[0], OTHER)
        assert also is not None
        assert also.id == first.id

    async def test_the_other_waits_of_an_event_go_on(self, lab: Lab, waits: Lab | None) -> None:
        """A wait lasts while the event is claimed. If it comes again, it is not begun anew; if it was met meanwhile,
        the event that met it stays, and a release is due at once.
        """
        if waits is None:
            return
        claim = await lab.claimed()
        one, other = wait_result(claim, {"n": 1}), wait_result(claim, {"n": 2}, name=OTHER)
        await lab.settle_one(Release(claim.ref, LONG, (one, other)))
        await lab.store.add_events([payment(n=1)])
        again = await lab.claim_one()
        (second,) = await lab.store.add_events([payment(n=2)])
        assert (await lab.event(claim)).status is EventStatus.PROCESSING
        await lab.settle_one(Release(again.ref, LONG, (other,)))
        found = await outcome(lab, claim, OTHER)
        assert found is not None
        assert found.id == second.id
        assert claim.event.id in [due.event.id for due in await lab.claim(limit=10)]

    async def test_a_wait_lasts_over_the_end_of_a_lease(self, lab: Lab, waits: Lab | None) -> None:
        """A wait lasts while the event is claimed."""
        if waits is None:
            return
        claim = await lab.claimed()
        await lab.settle_one(Release(claim.ref, 0.0, (wait_result(claim),)))
        await lab.claim_one()
        await lab.let_the_lease_end()
        (paid,) = await lab.store.add_events([payment()])
        found = await outcome(lab, claim)
        assert found is not None
        assert found.id == paid.id

    async def test_no_event_meets_a_wait_that_is_over(self, lab: Lab, waits: Lab | None) -> None:
        """Before the wait's ``until``."""
        if waits is None:
            return
        claim, late = [await lab.claimed() for _ in range(2)]
        until = await lab.store.now() + 5 * lab.moment
        await wait_for(lab, claim, until=until)
        await lab.advance(5 * lab.moment + lab.margin)
        await lab.store.add_events([payment()])
        assert await outcome(lab, claim) is None
        (lost,) = await lab.settle(Release(late.ref, LONG, (wait_result(late, until=until),)))
        assert not isinstance(lost, LeaseLost)
        assert await outcome(lab, late) is None

    async def test_a_failed_attempt_may_wait_too(self, lab: Lab, waits: Lab | None) -> None:
        """A result with the status WAITING in a ``Fail`` or ``Release`` is a wait."""
        if waits is None:
            return
        claim, stored = [await lab.claimed() for _ in range(2)]
        await lab.settle_one(Fail(claim.ref, "no", LONG, (wait_result(claim),)))
        (paid,) = await lab.store.add_events([payment()])
        await lab.settle_one(Fail(stored.ref, "no", LONG, (wait_result(stored),)))
        assert [one and one.id for one in (await outcome(lab, claim), await outcome(lab, stored))] == [paid.id] * 2

    async def test_the_worker_may_end_a_wait_itself(self, lab: Lab, waits: Lab | None) -> None:
        """``results`` overwrite the stored results of the same handlers."""
        if waits is None:
            return
        claim = await lab.claimed()
        await lab.settle_one(Release(claim.ref, 0.0, (wait_result(claim),)))
        again = await lab.claim_one()
        none = HandlerResult(handler_id=NAME, status=ResultStatus.KEPT, attempts=1, value_json='{"event":null}')
        assert await lab.store.keep_results([Keep(again.ref, (none,))]) == [None]
        await lab.store.add_events([payment()])
        (result,) = await lab.store.list_results(claim.event.id)
        assert (result.status, result.value_json) == (ResultStatus.KEPT, '{"event":null}')

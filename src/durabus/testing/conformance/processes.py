"""Proof of ``durabus.store.processes``: the claims, handler claims and locks of a process that has ended."""

from __future__ import annotations

from functools import partial

import pytest

from durabus.errors import LeaseLost
from durabus.model.claim import HandlerClaimRequest, new_incarnation, new_token
from durabus.model.settlement import Complete, Fail
from durabus.model.statuses import Action, EventMode, EventStatus, HandlerMode
from durabus.store.contract import EventStore
from durabus.store.processes import PRESENT_FOR
from durabus.testing.conformance.lab import ALICE, BOB, BUS, OTHER_BUS, Lab

LOST = f"process ended (worker {ALICE})"
LONG = 3600.0
"""Seconds of a lease that no test waits for."""


async def silence(lab: Lab) -> None:
    """Let so much time pass that a process which has shown nothing since counts as ended on every store."""
    await lab.advance(PRESENT_FOR if lab.manual else PRESENT_FOR + lab.margin)


class ProcessTests:
    """Taking back what belongs to processes that have ended, long before the leases are over."""

    async def test_the_events_of_an_ended_process_are_taken_back(self, lab: Lab, other_node: EventStore) -> None:
        """At most ``limit`` events of any bus are taken back as ``expire_events`` does, before their leases are over:
        those with the smallest ``id``. Their error is ``process ended (worker …)``.
        """
        dead = new_incarnation()
        await lab.publish(2)
        await lab.publish(1, bus=OTHER_BUS)
        mine = await lab.claim(limit=2, token=new_token(dead), lease=LONG)
        theirs = await lab.claim(bus=OTHER_BUS, token=new_token(dead), lease=LONG)
        await silence(lab)
        now = await lab.store.now()
        assert await other_node.end_process(dead) == 3
        for claim in (*mine, *theirs):
            event = await lab.event(claim)
            assert (event.status, event.attempts, event.fence) == (EventStatus.PENDING, 1, 1)
            assert (event.worker_id, event.expires_ts, event.picked_ts) == (None, None, None)
            assert event.errors == (LOST,)
            assert lab.same_time(event.due_ts, now)
            abandoned = (await lab.store.read_event_log(event.id))[-1]
            assert (abandoned.action, abandoned.error, abandoned.worker_id) == (Action.ABANDONED, LOST, ALICE)
        again = await lab.claim(other_node, worker_id=BOB, limit=5)
        assert [(claim.event.id, claim.event.attempts, claim.event.fence) for claim in again] == [
            (claim.event.id, 2, 2) for claim in mine
        ]

    async def test_the_claims_of_other_processes_stay(self, lab: Lab, other_node: EventStore) -> None:
        """A claim, a handler claim or a lock belongs to a process if its token begins with the process's incarnation.

        Such a claim is free soon after the process has ended. Any other claim is free when its lease is over.
        """
        await lab.publish(3)
        tokens = [new_token(new_incarnation()), new_token(), "~ own token of a caller"]
        claims = [await lab.claim_one(token=token, lease=LONG) for token in tokens]
        await silence(lab)
        before = await lab.picture()
        assert await other_node.end_process(new_incarnation()) == 0
        assert await lab.picture() == before
        assert await lab.claim(other_node, worker_id=BOB, limit=5) == []
        assert [(await lab.event(claim)).status for claim in claims] == [EventStatus.PROCESSING] * 3

    async def test_a_process_without_presence_can_be_ended(self, lab: Lab, other_node: EventStore) -> None:
        """A process that shows no presence does not live."""
        gone = new_incarnation()
        await lab.publish_one()
        await lab.claim_one(token=new_token(gone), lease=LONG)
        await silence(lab)
        assert await other_node.end_process(gone) == 1

    async def test_ending_a_process_again_changes_nothing(self, lab: Lab, other_node: EventStore) -> None:
        """Any process may call this at any time, any number of times."""
        dead = new_incarnation()
        await lab.publish(4)
        await lab.claim(limit=4, token=new_token(dead), lease=LONG)
        await silence(lab)
        answers = await lab.race([partial(node.end_process, dead) for node in [lab.store, other_node] * 3])
        assert sum(answers) == 4
        before = await lab.picture()
        assert await lab.store.end_process(dead) == 0
        assert await lab.picture() == before

    async def test_ending_a_process_takes_at_most_limit(self, lab: Lab) -> None:
        """At most ``limit`` events of any bus are taken back as ``expire_events`` does, before their leases are
        over.
        """
        dead = new_incarnation()
        await lab.publish(5)
        await lab.claim(limit=3, token=new_token(dead), lease=LONG)
        await lab.claim(limit=2, token=new_token(dead), lease=LONG)
        await silence(lab)
        assert [await lab.store.end_process(dead, limit=2) for _ in range(4)] == [2, 2, 1, 0]
        assert (await lab.store.counts()).pending == 5

    async def test_the_oldest_events_of_an_ended_process_come_back_first(self, lab: Lab) -> None:
        """At most ``limit`` events of any bus are taken back as ``expire_events`` does, before their leases are over:
        those with the smallest ``id``.
        """
        if not lab.store.features.one_order:
            return
        dead = new_incarnation()
        first, second = await lab.publish(2)
        third = await lab.publish_one(bus=OTHER_BUS)
        for bus, lease in ((BUS, 3 * LONG), (BUS, 2 * LONG), (OTHER_BUS, LONG)):
            await lab.claim_one(bus=bus, token=new_token(dead), lease=lease)
        await silence(lab)
        for event in (first, second, third):
            assert await lab.store.end_process(dead, limit=1) == 1
            assert (await lab.event(event)).status is EventStatus.PENDING

    async def test_an_event_that_kills_every_process_comes_back_later_each_time(self, lab: Lab) -> None:
        """An event that comes back so for the first time is due at once.

        If the process before it ended too, the event is due after a second, then after 2, 4, 8 … seconds, but never
        later than its lease would have ended: an event that kills every process does not do so faster and faster.
        """
        if not lab.manual:
            return
        await lab.publish_one()
        delays = []
        for lease in (LONG, LONG, LONG, LONG, PRESENT_FOR + 3, PRESENT_FOR - 1):
            dead = new_incarnation()
            claim = await lab.claim_one(token=new_token(dead), lease=lease)
            await silence(lab)
            assert await lab.store.end_process(dead) == 1
            delays.append(round((await lab.event(claim)).due_ts - await lab.store.now(), 3))
            await lab.advance(delays[-1])
        assert delays == [0.0, 1.0, 2.0, 4.0, 3.0, 0.0]

    async def test_an_event_that_failed_meanwhile_comes_back_at_once(self, lab: Lab) -> None:
        """An event that comes back so for the first time is due at once. If the process before it ended too, the event
        is due after a second, then after 2, 4, 8 … seconds.
        """
        await lab.publish_one()
        for _ in range(2):
            dead = new_incarnation()
            claim = await lab.claim_one(token=new_token(dead), lease=LONG)
            await silence(lab)
            assert await lab.store.end_process(dead) == 1
            await lab.settle_one(Fail((await lab.claim_one()).ref, "no", 0.0))
            assert (await lab.event(claim)).errors[-2:] == (LOST, "no")

    async def test_the_handlers_of_an_ended_process_free_the_lock_of_a_serial_mode(
        self, lab: Lab, other_node: EventStore
    ) -> None:
        """The leases of its locks and of its handler claims end now, so that other processes may take them."""
        if not lab.store.features.serial_modes:
            return
        dead, mode = new_incarnation(), EventMode.BUS_SERIAL
        _, second = await lab.publish(2)
        claim = await lab.claim_one(mode=mode)
        request = HandlerClaimRequest(
            event=claim.ref, handler_ids=("mail",), worker_id=ALICE, token=new_token(dead), lease=LONG
        )
        assert await lab.store.claim_next_handler_result(request) is not None
        await lab.settle_one(Fail(claim.ref, "no", LONG))
        assert await lab.claim(other_node, worker_id=BOB, mode=mode) == []
        await silence(lab)
        assert await other_node.end_process(dead) == 0
        assert (await lab.claim_one(other_node, worker_id=BOB, mode=mode)).event.id == second.id

    @pytest.mark.parametrize(("own", "asked", "status"), [(1, None, "FAILED"), (None, 1, "FAILED"), (2, 1, "PENDING")])
    async def test_the_end_of_a_process_uses_up_an_attempt(
        self, lab: Lab, own: int | None, asked: int | None, status: str
    ) -> None:
        """Take back what belongs to a process that has ended. Returns how many events were taken back."""
        dead = new_incarnation()
        await lab.publish_one(max_attempts=own)
        claim = await lab.claim_one(token=new_token(dead), lease=LONG)
        await silence(lab)
        assert await lab.store.end_process(dead, max_attempts=asked) == 1
        event = await lab.event(claim)
        assert (event.status, event.errors) == (status, (LOST,))

    @pytest.mark.parametrize("overtaken", [False, True], ids=["not overtaken", "overtaken"])
    async def test_the_fence_decides_if_the_process_was_wrongly_taken_for_dead(
        self, lab: Lab, other_node: EventStore, *, overtaken: bool
    ) -> None:
        """The fence decides in both cases: a process that was wrongly taken for dead writes nothing once its event is
        claimed again.
        """
        dead = new_incarnation()
        await lab.publish_one()
        claim = await lab.claim_one(token=new_token(dead), lease=LONG)
        await silence(lab)
        assert await other_node.end_process(dead) == 1
        (renewed,) = await lab.store.renew_event_claims([claim.ref], lease=LONG)
        assert isinstance(renewed, LeaseLost)
        if not overtaken:
            assert (await lab.settle_one(Complete(claim.ref))).status is EventStatus.COMPLETED
            assert (await lab.event(claim)).errors == ()
            return
        taken = await lab.claim_one(other_node, worker_id=BOB)
        before = await lab.picture()
        (refused,) = await lab.settle(Complete(claim.ref))
        assert isinstance(refused, LeaseLost)
        assert await lab.picture() == before
        assert (await lab.settle_one(Complete(taken.ref))).status is EventStatus.COMPLETED


class EndedProcessTests:
    """Locks and handler claims of processes that have ended, and how a store sees their end."""

    async def test_the_locks_of_an_ended_process_are_free(self, lab: Lab, other_node: EventStore) -> None:
        """The leases of its locks and of its handler claims end now, so that other processes may take them."""
        dead = new_incarnation()
        held = await lab.store.claim_lock("report", worker_id=ALICE, token=new_token(dead), lease=LONG)
        alive = await lab.store.claim_lock("other", worker_id=ALICE, token=new_token(), lease=LONG)
        assert held is not None
        assert alive is not None
        await silence(lab)
        assert await other_node.end_process(dead) == 0
        assert [lock.key for lock in await other_node.list_locks()] == ["other"]
        taken = await other_node.claim_lock("report", worker_id=BOB, token=new_token(), lease=LONG)
        assert taken is not None
        assert taken.fence > held.fence
        with pytest.raises(LeaseLost):
            await lab.store.renew_lock(held, lease=LONG)

    async def test_the_lock_of_a_serial_mode_is_free_with_its_events(self, lab: Lab, other_node: EventStore) -> None:
        """The leases of its locks and of its handler claims end now, so that other processes may take them."""
        if not lab.store.features.serial_modes:
            return
        dead, mode = new_incarnation(), EventMode.BUS_SERIAL
        await lab.publish(3)
        lost = await lab.claim(limit=2, token=new_token(dead), lease=LONG, mode=mode)
        assert await lab.claim(other_node, worker_id=BOB, mode=mode) == []
        await silence(lab)
        assert await other_node.end_process(dead) == 2
        taken = await lab.claim(other_node, worker_id=BOB, mode=mode, limit=2)
        assert [claim.event.id for claim in taken] == [claim.event.id for claim in lost]

    @pytest.mark.parametrize("mode", list(HandlerMode))
    @pytest.mark.parametrize("event_lives", [True, False], ids=["event lives", "event is lost"])
    async def test_the_handler_claims_of_an_ended_process_are_free(
        self, lab: Lab, other_node: EventStore, mode: HandlerMode, *, event_lives: bool
    ) -> None:
        """The leases of its locks and of its handler claims end now, so that other processes may take them."""
        dead = new_incarnation()
        await lab.publish_one()
        claim = await lab.claim_one(token=new_token() if event_lives else new_token(dead), lease=LONG)
        request = HandlerClaimRequest(
            event=claim.ref, handler_ids=("mail",), worker_id=ALICE, token=new_token(dead), lease=LONG, mode=mode
        )
        lost = await lab.store.claim_next_handler_result(request)
        assert lost is not None
        await silence(lab)
        assert await other_node.end_process(dead) == (0 if event_lives else 1)
        event = claim.ref if event_lives else (await lab.claim_one(other_node, worker_id=BOB)).ref
        taken = await other_node.claim_next_handler_result(
            HandlerClaimRequest(
                event=event, handler_ids=("mail",), worker_id=BOB, token=new_token(), lease=LONG, mode=mode
            )
        )
        assert taken is not None
        assert (taken.attempts, taken.fence) == (2, 2)
        (renewed,) = await lab.store.renew_handler_claims([lost], lease=LONG)
        assert isinstance(renewed, LeaseLost)

    async def test_a_process_that_shows_its_presence_keeps_its_claims(self, lab: Lab, other_node: EventStore) -> None:
        """If the process lives, nothing happens."""
        alive = new_incarnation()
        await lab.store.show_presence(alive)
        await lab.publish_one()
        claim = await lab.claim_one(token=new_token(alive), lease=LONG)
        await lab.store.show_presence(alive)
        if lab.store.features.sees_ended_processes:
            assert alive not in (await other_node.ended_processes()).incarnations
            assert await other_node.end_process(alive) == 0
            assert await lab.event(claim) == claim.event
        await lab.store.withdraw_presence(alive)

    async def test_a_store_says_whether_it_will_see_the_end_of_a_process(self, lab: Lab) -> None:
        """Show that the process lives. Returns whether the store will see its end."""
        alive, sees = new_incarnation(), lab.store.features.sees_ended_processes
        assert [await lab.store.show_presence(alive) for _ in range(2)] == [sees, sees]
        await lab.store.withdraw_presence(alive)

    async def test_a_store_that_does_not_see_the_end_of_processes_says_so(self, lab: Lab) -> None:
        """Without ``sees_ended_processes`` the answer is always False."""
        if not lab.store.features.sees_ended_processes:
            assert await lab.store.show_presence(new_incarnation()) is False

    async def test_showing_a_presence_again_renews_it(self, lab: Lab, other_node: EventStore) -> None:
        """A repeat only renews the presence."""
        alive = new_incarnation()
        for _ in range(3):
            await lab.store.show_presence(alive)
            await lab.advance(PRESENT_FOR / 2)
        assert (await other_node.ended_processes()).incarnations == []
        await lab.store.withdraw_presence(alive)

    async def test_a_claim_renews_the_presence_where_it_must_be_renewed(self, lab: Lab, other_node: EventStore) -> None:
        """Where it must be renewed, each claim of the process renews it too."""
        if lab.store.features.presence_renewed_every is None:
            return
        alive = new_incarnation()
        await lab.publish(2)
        for _ in range(2):
            await lab.claim_one(token=new_token(alive), lease=LONG)
            await lab.advance(PRESENT_FOR / 2)
            assert await other_node.end_process(alive) == 0
        await lab.advance(PRESENT_FOR)
        assert (await other_node.ended_processes()).incarnations == [alive]
        assert await other_node.end_process(alive) == 2
        assert (await other_node.ended_processes()).incarnations == []

    async def test_a_repeated_claim_renews_the_presence_too(self, lab: Lab, other_node: EventStore) -> None:
        """A claim that the process repeats, because it got no reply, renews the presence as well."""
        if lab.store.features.presence_renewed_every is None:
            return
        alive = new_incarnation()
        token = new_token(alive)
        await lab.publish_one()
        claim = await lab.claim_one(token=token, lease=LONG)
        await lab.advance(PRESENT_FOR / 2)
        assert [again.ref for again in await lab.claim(token=token, lease=LONG)] == [claim.ref]
        await lab.advance(PRESENT_FOR * 0.75)
        assert await other_node.end_process(alive) == 0
        await lab.store.withdraw_presence(alive)

    async def test_what_a_process_leaves_behind_keeps_its_lease(self, lab: Lab, other_node: EventStore) -> None:
        """End the presence of a process that goes on without it. What it still holds is free when its leases are over.

        A repeat changes nothing.
        """
        gone = new_incarnation()
        await lab.store.show_presence(gone)
        await lab.publish_one()
        claim = await lab.claim_one(token=new_token(gone))
        await lab.store.withdraw_presence(gone)
        await lab.store.withdraw_presence(gone)
        await silence(lab)
        assert gone not in (await other_node.ended_processes()).incarnations
        if lab.manual:
            assert await lab.claim(other_node, worker_id=BOB) == []
            assert await lab.event(claim) == claim.event
        await lab.let_the_lease_end()
        assert (await lab.claim_one(other_node, worker_id=BOB)).event.errors == (f"lease expired (worker {ALICE})",)

    async def test_a_look_finds_only_processes_that_may_hold_claims(self, lab: Lab, other_node: EventStore) -> None:
        """Return processes that showed their presence, ended without withdrawing it, and may still hold claims."""
        found = await other_node.ended_processes()
        assert found.incarnations == []
        assert found.look_again_in > 0
        assert await lab.store.end_process(new_incarnation()) == 0
        assert (await lab.store.counts(BUS)).pending == 0

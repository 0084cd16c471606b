"""The event queue: publish, poll and finalize events by hand."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Unpack

from durabus.clock import monotonic
from durabus.errors import ConfigurationError, DurabusError, LeaseLost
from durabus.model.claim import Claim, ClaimRequest, default_worker_id, new_token
from durabus.model.event import DEFAULT_BUS, Event, NewEvent, PublishOptions, new_event
from durabus.model.limits import Duration, check_name, is_attempts, seconds
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Release, Settlement
from durabus.model.statuses import TERMINAL
from durabus.store.contract import EventStore
from durabus.store.events import EventRef
from durabus.worker.cancelling import cancel_events, without_expired
from durabus.worker.execution import describe
from durabus.worker.replies import tell_of_ends

DEFAULT_ABANDONED_AFTER = 60.0

logger = logging.getLogger("durabus.queue")


class EventQueue:
    """A queue that the program works by hand: poll an event, do the work, finalize the event.

    An event that is not finalized within ``abandoned_after`` seconds is abandoned, and ``poll`` returns it again.
    """

    def __init__(
        self,
        store: EventStore,
        *,
        bus: str = DEFAULT_BUS,
        abandoned_after: Duration = DEFAULT_ABANDONED_AFTER,
        worker_id: str | None = None,
    ) -> None:
        self.store = store
        self.bus = check_name(bus, "bus")
        self.abandoned_after = seconds(abandoned_after, "abandoned_after", allow_zero=False)
        self.worker_id = worker_id or default_worker_id()
        self._claims: dict[int, Claim] = {}
        self._unanswered: list[ClaimRequest] = []
        """Polls whose replies were lost. They may hold an event, so the next polls repeat them."""
        self._returning: set[asyncio.Task[None]] = set()
        self._uncommitted: dict[int, float] = {}
        """Events finalized in callers' transactions, which may still roll back, and when their claims end."""

    async def publish(
        self,
        event_type: str,
        payload: Any = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        connection: object | None = None,
        **options: Unpack[PublishOptions],
    ) -> Event:
        """Store an event as PENDING, with no attempts.

        ``options`` are those of ``new_event``: tags, delay, priority, … ``connection`` puts the event into the caller's
        own open transaction, on stores that support it.
        """
        new = new_event(event_type, payload, bus=self.bus, metadata=metadata, **options)
        return (await self.store.add_events([new], connection=connection))[0]

    async def publish_batch(self, events: Sequence[NewEvent], *, connection: object | None = None) -> list[Event]:
        """Store many events in one step, all or none. Create them with ``new_event(…, bus=queue.bus)``."""
        other_buses = {event.bus for event in events} - {self.bus}
        if other_buses:
            raise ConfigurationError(f"events for bus {sorted(other_buses)} on the queue of bus {self.bus!r}")
        return await self.store.add_events(events, connection=connection)

    async def poll(self, *, max_attempts: int | None = None) -> Event | None:
        """Claim the next eligible event: it is PROCESSING, with one attempt more. None if there is none; never waits.

        An abandoned event that has had ``max_attempts`` ends FAILED; the event's own limit overrides this one.
        If ``poll`` is cancelled after the store granted an event, the event goes back to the queue. It never returns an
        event that has expired: it cancels such events.
        """
        if max_attempts is not None and not is_attempts(max_attempts):
            raise ConfigurationError(f"max_attempts={max_attempts!r}: must be a whole number of 1 or more, or None")
        self._forget_committed()
        request = self._unanswered.pop() if self._unanswered else self._request(max_attempts)
        asking = asyncio.ensure_future(self._ask(request))
        try:
            claims = await asyncio.shield(asking)
        except asyncio.CancelledError:
            self._in_background(self._give_back_answer(asking))
            raise
        if not claims:
            return None
        self._claims[claims[0].event.id] = claims[0]
        return claims[0].event

    async def cancel(self, ref: EventRef, reason: str, *, children: bool = False) -> list[Event]:
        """Cancel an event that is PENDING or PROCESSING and, with ``children``, its live descendants.

        Returns the cancelled events, parents first. A process that polled one of them cannot finalize it any more.
        Raises ``EventEnded`` if the event has ended, and ``EventNotFound``.
        """
        cancelled = await cancel_events(self.store, ref, reason=reason, children=children)
        for event in cancelled:
            self.forget_claim(event.id)
        return cancelled

    def give_back(self, claim: Claim, succeeded: Sequence[HandlerResult] = ()) -> None:
        """Put a polled event back into the queue in the background, without losing an attempt."""
        self.forget_claim(claim.event.id)
        self._in_background(self._release(claim, tuple(succeeded)))

    async def finalize(
        self,
        id: int,  # noqa: A002  (the word users know)
        success: bool | Sequence[BaseException | str] = True,  # noqa: FBT001, FBT002  (users pass it by position)
        *,
        error_results: Sequence[BaseException | str] = (),
        connection: object | None = None,
    ) -> None:
        """End an event this queue polled: COMPLETED; FAILED with ``success=False``; COMPLETED_WITH_ERRORS with errors.

        It leaves an event that has ended already as it is. If this object did not poll the event, or lost the claim, it
        raises ``LeaseLost`` and changes nothing. A list as the second argument counts as ``error_results``.

        ``connection`` ends the event in the caller's own open transaction, on stores that support it: the effect and
        the end of the event are one commit. There an event that has ended raises ``LeaseLost`` too: another process
        has done the work, so roll back. After a rollback the event can be finalized again.
        """
        if not isinstance(success, bool):
            error_results, success = [*success, *error_results], True
        if not success and error_results:
            raise ConfigurationError("finalize: give either success=False (FAILED) or error_results, not both")
        claim = self._claims.get(id)
        if claim is None and connection is not None:
            raise LeaseLost(id, "this queue object has no claim on it")
        if claim is None:
            await self._refuse_unless_ended(id, "this queue object has no claim on it")
            return
        settlement = _settlement(claim, error_results, success=success)
        if connection is not None:
            await self._settle_with(connection, settlement)
            return
        outcome = (await self.store.settle_events([settlement])).outcomes[0]
        self.forget_claim(id)
        if isinstance(outcome, LeaseLost):
            await self._refuse_unless_ended(id, outcome.reason)
        else:
            await tell_of_ends(self.store, [claim.event.metadata_json])

    def claim_on(self, id: int) -> Claim | None:  # noqa: A002  (the word users know)
        """The claim of an event that was polled and is not finalized yet; None if there is none."""
        return self._claims.get(id)

    def forget_claim(self, id: int) -> None:  # noqa: A002  (the word users know)
        """Forget the claim of an event that the caller has settled."""
        self._claims.pop(id, None)
        self._uncommitted.pop(id, None)

    async def _settle_with(self, connection: object, settlement: Settlement) -> None:
        id_ = settlement.ref.id
        outcome = (await self.store.settle_events([settlement], connection=connection)).outcomes[0]
        if isinstance(outcome, LeaseLost):
            self.forget_claim(id_)
            raise outcome
        self._uncommitted[id_] = monotonic() + self.abandoned_after

    def _forget_committed(self) -> None:
        """Forget events finalized in callers' transactions when their claims are over: no commit is visible here."""
        now = monotonic()
        for id_ in [id_ for id_, over_at in self._uncommitted.items() if over_at < now]:
            self.forget_claim(id_)

    def _request(self, max_attempts: int | None) -> ClaimRequest:
        return ClaimRequest(
            bus=self.bus,
            worker_id=self.worker_id,
            token=new_token(),
            limit=1,
            lease=self.abandoned_after,
            max_attempts=max_attempts,
        )

    async def _ask(self, request: ClaimRequest) -> list[Claim]:
        try:
            return await without_expired(self.store, request, await self.store.claim_next_events(request))
        except Exception:
            self._unanswered.append(request)
            raise

    async def _give_back_answer(self, asking: asyncio.Future[list[Claim]]) -> None:
        """Put the event of a cancelled poll back. If the reply is lost, the next poll repeats the request."""
        await asyncio.wait({asking})
        if not asking.cancelled() and asking.exception() is None:
            for claim in asking.result():
                await self._release(claim, ())

    async def _release(self, claim: Claim, succeeded: tuple[HandlerResult, ...]) -> None:
        try:
            await self.store.settle_events([Release(claim.ref, 0.0, succeeded)])
        except DurabusError as error:
            logger.warning("event %s comes back only with its lease: %s", claim.event.event_id, error)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _refuse_unless_ended(self, id_: int, reason: str) -> None:
        event = await self.store.get_event(id_)
        if event is None or event.status not in TERMINAL:
            raise LeaseLost(id_, reason)


def _settlement(claim: Claim, errors: Sequence[BaseException | str], *, success: bool) -> Settlement:
    if not success:
        return Fail(claim.ref, "finalized with success=False", None)
    return Complete(claim.ref, (), tuple(one if isinstance(one, str) else describe(one) for one in errors))

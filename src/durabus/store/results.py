"""Handler results, and claims on single handlers of an event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from durabus.errors import LeaseLost
from durabus.model.claim import ClaimRef, HandlerClaim, HandlerClaimRequest, OfferedHandler, OfferRequest
from durabus.model.result import HandlerResult
from durabus.model.settlement import HandlerSettlement, Keep, Settled
from durabus.store.events import EventRef


class Results(Protocol):
    """What each handler did. A result is stored only if it adds information."""

    async def list_results(self, ref: EventRef) -> list[HandlerResult]:
        """Return the stored results of an event, in order of ``handler_id``; an empty list if there are none.

        After the event has ended, they stay as they are until ``cleanup_results``; those of a dead letter until it is
        requeued or purged.
        """
        ...

    async def read_results(self, ids: Sequence[int]) -> list[tuple[HandlerResult, ...]]:
        """Return the stored results of each event, in the order they first appeared; none for an unknown event."""
        ...

    async def keep_results(self, kept: Sequence[Keep]) -> list[LeaseLost | None]:
        """Write results of handlers under claims that go on. Returns None or ``LeaseLost`` for each of ``kept``.

        - ``results`` overwrite the stored results of the same handlers. Each ``Keep`` is written whole or not at all.
        - The claim, its lease and the event stay as they are, and nothing is logged.
        - ``children`` are stored in the same step, as ``add_events`` stores them, and with their PUBLISHED entries.
          A ``Keep`` that gets ``LeaseLost`` stores none. (Refused without ``children``.)
        - ``Claim.results`` of the next claim on the event holds the kept results, and so does the entry of its end.
        - A claim on one handler may keep results too, as long as it may be settled. A result of the handler itself ends
          the claim.
        - A PENDING result with ``expires_ts`` offers its handler to the workers of all nodes, from that time on. It
          wakes the workers of the bus: ``wait_for_work``.
        - An offer changes nothing if the handler is offered or settled already, or if its fence is not that of the
          offer: a worker has claimed it since.
        - Late but not overtaken counts here too: an abandoned claim may keep results until the event is claimed again.
        - Any other claim that is not current gets ``LeaseLost``, and nothing of it is written.
        - A repeat writes the same results again.
        """
        ...

    async def claim_next_handler_result(self, request: HandlerClaimRequest) -> HandlerClaim | None:
        """Claim the first of ``request.handler_ids`` that is neither settled nor under an unexpired claim, or None.

        - Returns None too if ``request.event`` is not the event's current claim.
        - In one atomic step, the handler gets status PROCESSING, ``attempts + 1``, ``fence + 1``, its own token and
          lease.
        - With ``mode`` serial, a claim needs the lock ``handler:event:{event_id}`` to be free or expired.
          The same step takes the lock under the claim's token and lease; it is renewed and freed with the claim. If the
          lock expires and another handler takes it, the handler claim is lost too. With ``mode`` parallel, there is no
          lock.
        - A PENDING handler that was offered for later is passed over until then.
        - A repeat with the same token returns the claim that the token holds.
        """
        ...

    async def claim_offered_handlers(self, request: OfferRequest) -> list[OfferedHandler]:
        """Claim up to ``request.limit`` offered handlers of PROCESSING events of ``request.bus``. Never waits.

        - Offered is a handler with a PENDING result and ``expires_ts``, once that time has come, or with a PROCESSING
          result whose lease is over. Only ``request.handler_ids`` are claimed.
        - Order: smaller ``id`` of the event first, then the order in which its results first appeared. The returned
          list has this order.
        - Each handler is claimed as ``claim_next_handler_result`` claims it, with ``mode`` serial at most one of each
          event. The event, its claim and its lease stay as they are.
        - A second caller never gets a handler whose lease is not over, however many callers race.
        - A repeat with the same token returns the claims that the token still holds, and does nothing else. If the
          token holds none any more, the call is a new request.
        """
        ...

    async def renew_handler_claims(self, claims: Sequence[HandlerClaim], *, lease: float) -> list[float | LeaseLost]:
        """Extend the leases of handler claims, as ``renew_event_claims`` does for events.

        A handler claim outlives the claim on its event: it may be renewed until the event ends, also while the event
        waits for its next claim. If the event was claimed in a serial mode, its lock is not free until then.
        """
        ...

    async def settle_handlers(self, settlements: Sequence[HandlerSettlement]) -> list[HandlerResult | LeaseLost]:
        """End handler claims in one step and judge each one on its own. Returns the stored result of each.

        - With an ``outcome``, as ``complete_handler_result``; without one, as ``release_handler_claim``.
        - The outcome is ``LeaseLost`` (a value, not raised) if the claim is not current, and nothing of it is written.
        - It wakes the workers of the bus: the worker that holds the event waits for its handlers.
        """
        ...

    async def release_handler_claim(self, claim: HandlerClaim, *, delay: float = 0.0) -> None:
        """Give up a handler claim: the handler becomes PENDING and gets its attempt back, and its lock is freed.

        A repeat changes nothing. Raises ``LeaseLost`` if the claim is not current. It is offered again after ``delay``.
        """
        ...

    async def complete_handler_result(self, claim: HandlerClaim, outcome: HandlerResult) -> HandlerResult:
        """Write status, error, value and time of ``outcome``; keep the claim's attempts and fence; free its lock.

        A repeat with the same status returns what the first call returned. Raises ``LeaseLost`` if the claim is not
        current. A handler claim may be completed or released until the event ends, also while the event waits for its
        next claim, unless another claim has taken the handler.
        """
        ...

    async def complete_event_if_done(self, ref: ClaimRef, handler_ids: Sequence[str]) -> Settled | None:
        """Complete the event if all of ``handler_ids`` are settled, or one of its results is UNRECOVERABLE; else None.

        It works as ``settle_events`` with ``Complete``, also for a repeat. Raises ``LeaseLost`` if the claim is not
        current.
        """
        ...

    async def cleanup_results(self, *, limit: int = 10_000) -> int:
        """Delete the results of COMPLETED and CANCELLED events, and return how many.

        Trimming, purging or removing an event deletes its results at once.
        """
        ...

"""Handler results, and claims on single handlers of an event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from durabus.errors import LeaseLost
from durabus.model.claim import ClaimRef, HandlerClaim, HandlerClaimRequest
from durabus.model.result import HandlerResult
from durabus.model.settlement import Keep, Settled
from durabus.store.events import EventRef


class Results(Protocol):
    """What each handler did. A result is stored only if it adds information."""

    async def list_results(self, ref: EventRef) -> list[HandlerResult]:
        """Return the stored results of an event, in order of ``handler_id``; an empty list if there are none.

        After the event has ended, they stay until ``cleanup_results``; those of a dead letter until it is purged.
        """
        ...

    async def keep_results(self, kept: Sequence[Keep]) -> list[LeaseLost | None]:
        """Write results of handlers under claims that go on. Returns None or ``LeaseLost`` for each of ``kept``.

        - ``results`` overwrite the stored results of the same handlers. Each ``Keep`` is written whole or not at all.
        - The claim, its lease and the event stay as they are, and nothing is logged.
        - ``Claim.results`` of the next claim on the event holds the kept results, and so does the entry of its end.
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
        - A repeat with the same token returns the claim that the token holds.
        """
        ...

    async def renew_handler_claims(self, claims: Sequence[HandlerClaim], *, lease: float) -> list[float | LeaseLost]:
        """Extend the leases of handler claims, as ``renew_event_claims`` does for events."""
        ...

    async def release_handler_claim(self, claim: HandlerClaim) -> None:
        """Give up a handler claim: the handler becomes PENDING and gets its attempt back, and its lock is freed.

        A repeat changes nothing. Raises ``LeaseLost`` if the claim is not current.
        """
        ...

    async def complete_handler_result(self, claim: HandlerClaim, outcome: HandlerResult) -> HandlerResult:
        """Write status, error, value and time of ``outcome``; keep the claim's attempts and fence; free its lock.

        A repeat with the same status returns what the first call returned. Raises ``LeaseLost`` if the claim is not
        current. Late but not overtaken counts here too: while an event is abandoned and not claimed again, its handler
        claims may be completed or released, but not renewed.
        """
        ...

    async def complete_event_if_done(self, ref: ClaimRef, handler_ids: Sequence[str]) -> Settled | None:
        """Complete the event if all of ``handler_ids`` are settled, or one of its results is UNRECOVERABLE; else None.

        It works as ``settle_events`` with ``Complete``, also for a repeat. Raises ``LeaseLost`` if the claim is not
        current.
        """
        ...

    async def cleanup_results(self, *, limit: int = 10_000) -> int:
        """Delete the results of COMPLETED events, and return how many.

        Trimming, purging or removing an event deletes its results at once.
        """
        ...

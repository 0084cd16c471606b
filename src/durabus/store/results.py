"""Handler results, and claims on single handlers of an event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from durabus.errors import LeaseLost
from durabus.model.claim import ClaimRef, HandlerClaim, HandlerClaimRequest
from durabus.model.result import HandlerResult
from durabus.model.settlement import Settled
from durabus.store.events import EventRef


class Results(Protocol):
    """What each handler did. A result exists only where it carries news."""

    async def list_results(self, ref: EventRef) -> list[HandlerResult]:
        """The stored results of an event, in order of ``handler_id``; empty if there are none.

        They stay after the event ended until ``cleanup_results``, and with a dead letter until it is purged.
        """
        ...

    async def claim_next_handler_result(self, request: HandlerClaimRequest) -> HandlerClaim | None:
        """Claim the first of ``request.handler_ids`` that is not settled nor under an unexpired claim; else None.

        - None too if ``request.event`` is not the event's current claim.
        - Atomically: status PROCESSING, ``attempts + 1``, ``fence + 1``, token and lease of its own.
        - ``mode`` serial: only if the lock ``handler:event:{event_id}`` is free or expired; it is taken in the same
          step under the claim's token and lease, renewed with it and freed with it. Who lets it expire and loses it to
          another handler has lost the handler claim too. ``mode`` parallel: no lock.
        - A repeat with the same token answers the claim that the token holds.
        """
        ...

    async def renew_handler_claims(self, claims: Sequence[HandlerClaim], *, lease: float) -> list[float | LeaseLost]:
        """Extend handler leases; as ``renew_event_claims``."""
        ...

    async def release_handler_claim(self, claim: HandlerClaim) -> None:
        """Give a handler claim back: PENDING, the attempt given back, its lock freed. A repeat changes nothing.

        Raises ``LeaseLost`` if the claim is not current.
        """
        ...

    async def complete_handler_result(self, claim: HandlerClaim, outcome: HandlerResult) -> HandlerResult:
        """Write status, error, value and time of ``outcome``; attempts and fence stay the claim's; its lock is freed.

        A repeat with the same status answers as the first time did. Raises ``LeaseLost`` if the claim is not current.
        Late but not overtaken counts here too: under an abandoned event, until somebody claims the event again, a
        handler claim may be completed or released, but not renewed.
        """
        ...

    async def complete_event_if_done(self, ref: ClaimRef, handler_ids: Sequence[str]) -> Settled | None:
        """Complete the event if all of ``handler_ids`` are settled, or one of its results is UNRECOVERABLE; else None.

        As ``settle_events`` with ``Complete``, repeat included. Raises ``LeaseLost`` if the claim is not current.
        """
        ...

    async def cleanup_results(self, *, limit: int = 10_000) -> int:
        """Delete results of COMPLETED events (trim, purge and remove take theirs along). Returns how many results."""
        ...

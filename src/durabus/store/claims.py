"""Claims on events: who may work on what, and until when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from durabus.errors import LeaseLost
from durabus.model.claim import Claim, ClaimRef, ClaimRequest
from durabus.model.event import Event
from durabus.model.settlement import Settled, Settlement
from durabus.store.events import EventRef


class SettleAnswer(msgspec.Struct, frozen=True):
    """One outcome per settlement, in their order, and the claims that ``then_claim`` brought."""

    outcomes: list[Settled | LeaseLost]
    claims: list[Claim]


class Claims(Protocol):
    """Every write is one conditional step on (status, token, fence). What does not match changes no byte."""

    async def claim_next_events(self, request: ClaimRequest) -> list[Claim]:
        """Claim up to ``request.limit`` events of ``request.bus``. Never waits: empty if there are none.

        - First, every event of the bus whose lease is over is taken from its claim: PENDING again with its ABANDONED
          entry and the error ``lease expired (worker …)``, or FAILED if its attempts are used up (its own
          ``max_attempts``, else the request's).
        - Eligible are then the PENDING events that are due; with ``request.tags``, only those that carry one of them;
          with ``request.event_id``, only that one. (Refused without ``claims_by_event_id``.)
        - Of the live events of the bus with one ``ordering_key`` only the one with the smallest ``id`` is eligible, and
          only while none of them is PROCESSING: one that waits for its retry holds up its key and nothing else.
        - Order: larger ``priority`` first, then smaller ``id``, among the eligible; the answer keeps it.
        - Atomically: status PROCESSING, ``attempts + 1``, ``fence + 1``, the request's token, worker and lease; a
          PICKED entry each.
        - A second caller never gets an event whose lease is not over, however many race.
        - ``request.mode`` bus-serial or global-serial: only if the lock ``event:bus:{bus}`` or ``event:global`` is free
          or expired; the lock is taken in the same step under the claim's token and lease. All events of the claim
          share it: it is renewed with any of them, never to end before one of their leases, and freed when the last of
          them is settled, reset or taken away. A lock that its holder let expire is taken together with all events of
          the holder's token: they are taken from their claims as above, whatever bus they are on. Whoever claims
          several runs them one at a time, in their order. (Refused without ``serial_modes``.)
        - A repeat with the same token answers the claims that the token still holds, in the same order, and does
          nothing else. If it holds none any more, it is a new request: abandoned claims are not held.
        - ``Claim.results`` holds what the event's handlers did in earlier attempts, ``Claim.revision`` the revision of
          the bus's handlers at this moment: who knows that revision knows every handler that was registered before.
        """
        ...

    async def start_events(self, refs: Sequence[ClaimRef]) -> list[Event | LeaseLost]:
        """Record that work began: a STARTED entry each. A repeat records nothing. ``LeaseLost`` if not current.

        An abandoned claim is not current, though it may still be settled: to all others the event is free.
        """
        ...

    async def renew_event_claims(self, refs: Sequence[ClaimRef], *, lease: float) -> list[float | LeaseLost]:
        """Extend leases to ``lease`` seconds from the store's now; answers the new expiry for each.

        Judged by the token alone: a claim whose lease is over but that nobody took is extended. Not logged.
        ``LeaseLost`` if not current: a claim that was abandoned is not held any more, whoever comes next.
        """
        ...

    async def settle_events(
        self,
        settlements: Sequence[Settlement],
        *,
        then_claim: ClaimRequest | None = None,
        connection: object | None = None,
    ) -> SettleAnswer:
        """End claims in one step, each judged by itself; then claim the next ones in the same step.

        - ``Complete``: COMPLETED, or COMPLETED_WITH_ERRORS if it carries errors or an UNRECOVERABLE result. The event
          leaves the queue; its entry carries payload, results, errors, times and status code. Refused as ``LeaseLost``
          while a handler result is none of SUCCEEDED, CANCELLED, ABORTED and UNRECOVERABLE, unless one is the latter.
        - ``Fail``: one more error; PENDING and due after ``delay``, or FAILED if ``delay`` is None or the event's own
          ``max_attempts`` are used up. A FAILED entry either way (its ``status`` and ``next_retry_ts`` tell which).
        - ``Release``: PENDING and due after ``delay``, the attempt given back; a RELEASED entry.
        - The entry of a ``Complete`` or ``Release`` that gives a ``reason`` carries it.
        - Errors and reasons are kept as ``durabus.model.limits.stored_text`` makes them: what no database can hold is
          replaced, what is too long is cut, with a note.
        - ``results`` overwrite the stored ones of the same handlers.
        - Late but not overtaken counts: a claim that was taken away because its lease was over (ABANDONED) may still be
          settled, until somebody claims the event again. It ends as if it had been settled in time: the error of the
          abandonment goes, the attempt is not counted as lost, the entry names the worker that had the claim.
        - A claim that is not current, nor late but not overtaken, gets ``LeaseLost`` as its outcome (a value, not
          raised); nothing of it is written.
        - An exact repeat of the newest settlement of an event (same token and fence, same kind) answers as the first
          time did and writes nothing. A store that lost the answer repeats by itself; if the event was settled again
          since, that repeat too is answered with ``LeaseLost``.
        - ``connection``: as in ``add_events``; effect and completion are one commit. Not together with ``then_claim``.
        """
        ...

    async def current_claims(self, ids: Sequence[int]) -> list[ClaimRef | None]:
        """What a settlement of each of these events must carry now; None for an event that nobody can settle.

        That is the claim of a PROCESSING event, or the one that a PENDING event lost if nobody has claimed it since.
        For a server that speaks for workers which keep no token. It tells secrets: check first who asks.
        """
        ...

    async def expire_events(self, *, max_attempts: int | None = None, limit: int = 1000) -> int:
        """Take events of any bus from claims whose lease is over, as ``claim_next_events`` does, and claim none.

        Returns how many were taken. Safe to run anywhere, any number of times.
        """
        ...

    async def reset_event(self, ref: EventRef, *, reason: str) -> Event:
        """An administrator takes a PROCESSING event from its worker.

        PENDING and due, the attempt given back, a RESET entry with the ``reason``. The worker's token is dead at once.
        An event that is not PROCESSING is answered unchanged. The reason is kept as in ``settle_events``. Raises
        ``EventNotFound``.
        """
        ...

"""Claims on events: which worker may work on which event, and until when."""

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
    """One outcome for each settlement, in the same order, and the claims that ``then_claim`` granted."""

    outcomes: list[Settled | LeaseLost]
    claims: list[Claim]


class Claims(Protocol):
    """Every write is one conditional step on (status, token, fence). A write that does not match changes nothing."""

    async def claim_next_events(self, request: ClaimRequest) -> list[Claim]:
        """Claim up to ``request.limit`` events of ``request.bus``. Never waits: the list is empty if there are none.

        - First, the store takes back every event of the bus whose lease is over. The claim is abandoned: the event
          becomes PENDING again, with an ABANDONED entry and the error ``lease expired (worker …)``. If its attempts are
          used up (its own ``max_attempts``, else the request's), it becomes FAILED instead.
        - Then every PENDING event that is due is eligible. With ``request.tags``, only events that carry one of them
          are eligible; with ``request.event_id``, only that event. (Refused without ``claims_by_event_id``.)
        - Among the live events of the bus with the same ``ordering_key``, only the one with the smallest ``id`` is
          eligible, and only while none of them is PROCESSING. An event that waits for its retry delays its own key
          only.
        - Order: larger ``priority`` first, then smaller ``id``. The returned list has this order.
        - In one atomic step, each event gets status PROCESSING, ``attempts + 1``, ``fence + 1``, the request's token,
          worker and lease, and a PICKED entry.
        - A second caller never gets an event whose lease is not over, however many callers race.
        - With ``request.mode`` bus-serial or global-serial, events are claimed only if the lock ``event:bus:{bus}`` or
          ``event:global`` is free or expired, and no claim on a handler that was made under it is valid: such a claim
          outlives the claim on its event (``renew_handler_claims``). Those whose leases are over end with this step,
          as in ``claim_next_handler_result``. The same step takes the lock under the claim's token and lease. All
          events of the claim share the lock. Renewing any of them renews the lock, and the lock never ends before one
          of their leases. It is freed when the last of them is settled, reset, cancelled or taken back. Taking an
          expired lock also takes back all events of the former holder's token, as above, on every bus. A worker that
          claims several events runs them one at a time, in their order. (Refused without ``serial_modes``.)
        - A repeat with the same token returns the claims that the token still holds, in the same order, and does
          nothing else. If the token holds none any more, the call is a new request. An abandoned claim is not held.
        - ``Claim.results`` holds what the event's handlers did in earlier attempts. ``Claim.revision`` is the revision
          of the bus's handlers at this moment: a worker that has read that revision knows every handler that was
          registered before.
        """
        ...

    async def start_events(self, refs: Sequence[ClaimRef]) -> list[Event | LeaseLost]:
        """Record that work began, with a STARTED entry for each event. A repeat records nothing.

        The outcome is ``LeaseLost`` if the claim is not current. An abandoned claim is not current, although it may
        still be settled: other workers can claim the event.
        """
        ...

    async def renew_event_claims(self, refs: Sequence[ClaimRef], *, lease: float) -> list[float | LeaseLost]:
        """Extend each lease to ``lease`` seconds from the store's present time, and return the new expiry of each.

        Only the token decides: a lease that is over is extended if the event was not taken back. Not logged.
        The outcome is ``LeaseLost`` if the claim is not current. An abandoned claim is not current, even while no other
        worker has claimed the event.
        """
        ...

    async def settle_events(
        self,
        settlements: Sequence[Settlement],
        *,
        then_claim: ClaimRequest | None = None,
        connection: object | None = None,
        with_entries: bool = False,
    ) -> SettleAnswer:
        """End claims in one step and judge each one on its own. The same step then claims the next events.

        - ``Complete``: the event becomes COMPLETED, or COMPLETED_WITH_ERRORS if the settlement carries errors or an
          UNRECOVERABLE result. The event leaves the queue; its entry carries payload, results, errors, times and status
          code. Refused as ``LeaseLost`` while a handler result is not SUCCEEDED, CANCELLED, ABORTED or UNRECOVERABLE,
          unless one of the results is UNRECOVERABLE.
        - With ``handler_id``, the entry of a ``Complete`` also carries the result of that handler: SUCCEEDED at its
          first attempt, in the execution time of the settlement. This result is not stored. If a result of the same
          handler is stored, the entry carries that one.
        - ``Fail``: the event gets one more error. It becomes PENDING and due after ``delay``, or FAILED if ``delay`` is
          None or its own ``max_attempts`` are used up. Both write a FAILED entry; its ``status`` and ``next_retry_ts``
          tell them apart.
        - ``Release``: the event becomes PENDING and due after ``delay`` and gets its attempt back. A RELEASED entry is
          written.
        - ``Cancel``: the event becomes CANCELLED and leaves the queue, as in ``cancel_event``. Its fence stays.
        - The entry of a ``Complete``, ``Release`` or ``Cancel`` carries the ``reason`` if one is given.
        - ``children`` of a settlement that takes effect are stored in the same step, as ``add_events`` stores them:
          after the entries of all settlements, in their order. A settlement that gets ``LeaseLost`` stores none, and
          neither does an exact repeat. (Refused without ``children``, as is ``until_children``.)
        - ``Release`` with ``until_children``: the event is due at once if it has no live child, that is no live event
          with its ``event_id`` as ``parent_id``. Else it is due after ``delay``, or as soon as its last live child has
          ended or was removed: the step that ends the child makes the parent due and wakes the workers of its bus.
        - Errors and reasons are kept as ``durabus.model.limits.stored_text`` makes them: it replaces what some database
          cannot hold, cuts what is too long, and notes the cut.
        - ``results`` overwrite the stored results of the same handlers. This ends the claims on these handlers. After a
          ``Fail`` or ``Release``, the event is not due before their leases are over, because until then a worker may
          still run the handler. Only a wait that is met, or the end of the last child, makes it due before.
        - A result with the status WAITING in a ``Fail`` or ``Release`` is a wait (``durabus.model.wait``). It is met by
          the first event of its bus and type that is stored after the waiting event, before the wait's ``until``, and
          with equal fields. If one is stored already, this step keeps it in the place of the wait, and a release is due
          at once. Else the step that stores such an event does so: it keeps the event, makes the waiting event due if
          that is PENDING, and wakes the workers of its bus. (Refused without ``waits``.)
        - Stored after the waiting event is what has a larger ``id``, and what is stored after this step. If a
          transaction that is open in this step stores the event, a claim on the bus meets the wait soon after its end.
          An event that is not due yet, or has ended, meets a wait too. One cancelled before this step does not.
        - A wait lasts while the event is claimed. If it comes again, it is not begun anew; if it was met meanwhile, the
          event that met it stays, and a release is due at once. An event that has ended or was removed waits no more.
        - Late but not overtaken counts: an abandoned claim may still be settled until the event is claimed again. It
          ends as if it had been settled in time: the error of the abandonment is removed, the attempt is not counted as
          lost, and the entry names the worker that had the claim.
        - Any other claim that is not current gets ``LeaseLost`` as its outcome (a value, not raised), and nothing of it
          is written.
        - An exact repeat of the newest settlement of an event (same token and fence, same kind) returns the outcome of
          the first call and writes nothing. A store that lost the server's reply repeats the call by itself. If the
          event was settled again in the meantime, the outcome of that repeat is ``LeaseLost`` too.
        - ``connection``: as in ``add_events``. The caller's writes and the settlement are one commit. Not together with
          ``then_claim``.
        - ``with_entries``: each ``Settled`` carries the log entry that its settlement wrote, as ``read_event_log``
          returns it. An exact repeat writes no entry and carries none, also if the store repeats the call by itself.
          Without ``with_entries``, no outcome carries an entry.
        """
        ...

    async def current_claims(self, ids: Sequence[int]) -> list[ClaimRef | None]:
        """Return the claim that a settlement of each event must carry now; None for an event that cannot be settled.

        It is the current claim of a PROCESSING event, or the abandoned claim of a PENDING event that was not claimed
        again. A server uses it for workers that keep no token. The result holds secrets: authenticate the caller first.
        """
        ...

    async def expire_events(self, *, max_attempts: int | None = None, limit: int = 1000) -> int:
        """Take back events of any bus whose lease is over, as ``claim_next_events`` does, and claim nothing.

        Returns how many were taken back. Any process may call this at any time, any number of times.
        """
        ...

    async def reset_event(self, ref: EventRef, *, reason: str) -> Event:
        """Take a PROCESSING event from its worker, on behalf of an administrator.

        The event becomes PENDING and due and gets its attempt back; a RESET entry carries the ``reason``. The worker's
        token is invalid at once. An event that is not PROCESSING is returned unchanged. The reason is kept as in
        ``settle_events``. Raises ``EventNotFound``.
        """
        ...

    async def cancel_event(self, ref: EventRef, *, reason: str) -> Event:
        """Cancel one event as ``cancel_events`` does, and return it as it is afterwards. Raises ``EventNotFound``."""
        ...

    async def cancel_events(self, refs: Sequence[EventRef], *, reason: str) -> list[Event | None]:
        """End PENDING and PROCESSING events as CANCELLED, on behalf of a caller that holds no claim on them.

        - An event leaves the queue. It is no dead letter: it is kept, counted and trimmed like a COMPLETED one.
        - The CANCELLED entry carries payload, results, errors and the ``reason``. The reason is kept as in
          ``settle_events``.
        - A claim on the event is revoked in the same step: the fence rises by one, and the worker's token is invalid at
          once. Any settlement of it gets ``LeaseLost``, also that of an abandoned claim.
        - The claims on its handlers end too. The locks of all these claims are freed, and so is the ordering key.
        - An event that has ended is returned unchanged, so a repeat changes nothing.
        - It is one step, in the order of ``refs``. Returns each event as it is afterwards, None for an unknown one.
        """
        ...

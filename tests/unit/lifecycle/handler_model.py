"""The handlers of an event: their claims, their results and the lock between them, as a store composes them."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace
from tests.unit.lifecycle.explorer import (
    FENCE,
    LEASE,
    LEAVES_LOCK_AS_FOUND,
    NOW,
    OVER,
    RENEWS_WITHOUT_LOCK,
    Broken,
    Tally,
)
from tests.unit.lifecycle.lock_model import alive as lock_alive
from tests.unit.lifecycle.lock_model import lock_claim
from tests.unit.lifecycle.part import (
    CURRENT,
    LOST,
    NEW,
    SETTLED_LAST,
    SHAPES,
    Move,
    Part,
    event_claim,
    find_row,
    live_handler_claim,
    renamed,
)

from durabus.lifecycle import handlers
from durabus.lifecycle.state import Applied, EventState, HandlerState, LockState, Refused
from durabus.model.claim import HandlerClaim, HandlerClaimRequest
from durabus.model.result import HandlerResult
from durabus.model.statuses import LIVE, SETTLED, TERMINAL, EventStatus, ResultStatus

LOCK_KEY = "handler:event:explored"
BUS_LOCK = "event:bus:explored"
"""The lock of a serial mode that every claim on the event holds."""
OUTCOMES = (ResultStatus.SUCCEEDED, ResultStatus.TRANSIENT, ResultStatus.UNRECOVERABLE)

Write = Callable[[EventState], Applied | Refused]


class HandlerModel:
    """One handler of the event. ``serial``: it shares a lock with the others."""

    def __init__(self, handler_id: str, tally: Tally, *, serial: bool, careless: str) -> None:
        self._careless = careless
        self.trying = ""
        self._id = handler_id
        self._tally = tally
        self._serial = serial
        self._requests = self._all_requests()
        self._writes = [(claim, self._all_writes(claim)) for claim in map(self._claim, SHAPES)]

    def check_untouched(self, part: Part, state: EventState) -> None:
        """Check what must hold for the handler over every step that is not a grant of it."""
        row, old = find_row(state, self._id), find_row(part.state, self._id)
        if row is not None and row.result.fence < self._floor(part):
            raise Broken(f"the fence of {self._id} went down")
        if row is not None and row.result.fence > self._floor(part):
            raise Broken(f"something other than a grant moved the fence of {self._id}")
        had_succeeded = old is not None and old.result.status is ResultStatus.SUCCEEDED
        if had_succeeded and (row is None or row.result.status is not ResultStatus.SUCCEEDED):
            raise Broken(f"{self._id} had succeeded and does not any more")

    def moves(self, part: Part) -> list[Move]:
        """Return everything that workers may do with the handler, and the end of its lease."""
        row = find_row(part.state, self._id)
        found: list[Move] = []
        for name, request in self._requests:
            found += self._claimed(part, row, name, request)
        is_live = part.state.event.status in LIVE
        held = (row.token, row.result.fence) if row is not None and is_live else None
        for claim, writes in self._writes:
            if held == (claim.token, claim.fence):
                for name, verb, write in writes:
                    found += self._written(part, name, verb, claim, write)
            else:
                self._check_refused(part.state, writes)
        if row is not None and live_handler_claim(row):
            found.append(Move(f"lease of {self._id} over", self._over(part, row)))
        return found

    def _all_requests(self) -> list[tuple[str, HandlerClaimRequest]]:
        """Return requests by new and old tokens under the event's current claim, and by a new one under others."""
        tokens = (NEW, CURRENT, SETTLED_LAST, LOST) if self._serial else (NEW, CURRENT, SETTLED_LAST)
        asked = [(token, SHAPES[0]) for token in tokens]
        asked += [(NEW, shape) for shape in SHAPES[1:]]
        return [
            (
                f"claim {self._id} by {token}",
                HandlerClaimRequest(
                    event=event_claim(*shape),
                    handler_ids=(self._id,),
                    worker_id="w",
                    token=token if token == LOST else f"{self._id}/{token}",
                    lease=LEASE,
                ),
            )
            for token, shape in asked
        ]

    def _all_writes(self, claim: HandlerClaim) -> list[tuple[str, str, Write]]:
        by = f"by {claim.token}/{claim.fence}"
        found: list[tuple[str, str, Write]] = [
            (f"renew {by}", "renew_handler", lambda state: handlers.renew_handler(state, claim, LEASE, NOW)),
            (f"release {by}", "release_handler", lambda state: handlers.release_handler(state, claim)),
        ]
        outcomes = OUTCOMES if claim.fence == FENCE else OUTCOMES[:1]
        return found + [(f"{status} {by}", "complete_handler", self._completion(claim, status)) for status in outcomes]

    def _completion(self, claim: HandlerClaim, status: ResultStatus) -> Write:
        outcome = HandlerResult(handler_id=self._id, status=status)
        return lambda state: handlers.complete_handler(state, claim, outcome)

    def _claimed(self, part: Part, row: HandlerState | None, name: str, request: HandlerClaimRequest) -> list[Move]:
        self.trying = name
        got = handlers.claim_handler(part.state, request, NOW, BUS_LOCK)
        if got is None:
            self._tally.refused["claim_handler"] += 1
            return []
        state, claim = got
        if part.state.event.status is not EventStatus.PROCESSING or request.event != event_claim(*SHAPES[0]):
            raise Broken("a handler is claimed by somebody who does not hold the event")
        if row is not None and row.token == request.token:
            if state != part.state or (claim.token, claim.fence) != (row.token, row.result.fence):
                raise Broken("the repeat of a handler claim is not answered with the claim that is held")
            return []
        if row is not None and (live_handler_claim(row) or row.result.status in SETTLED):
            raise Broken(f"a live or settled claim on {self._id} is displaced")
        self._check_grant(part, state, row)
        lock = self._lock_taken(part.lock, request.token) if self._serial else part.lock
        if isinstance(lock, Refused):
            self._tally.seen["serial handler kept waiting"] += 1
            return []
        self._tally.applied["claim_handler"] += 1
        self._tally.seen["takeover of a handler"] += row is not None and row.token is not None
        return [Move(name, renamed(part._replace(state=state, lock=lock)))]

    def _floor(self, part: Part) -> int:
        return FENCE if self._id in part.fenced else 0

    def _check_grant(self, part: Part, state: EventState, old: HandlerState | None) -> None:
        row = find_row(state, self._id)
        if row is None or row.result.fence <= self._floor(part):
            raise Broken(f"{self._id} is granted with a fence that is not larger")
        if row.result.attempts != (0 if old is None else old.result.attempts) + 1:
            raise Broken(f"a grant of {self._id} must count one attempt")

    def _lock_taken(self, lock: LockState | None, token: str) -> LockState | Refused:
        """Return the lock for as long as the claim. A lock that the token has already is renewed with it."""
        took = handlers.claim_lock(
            lock, key=LOCK_KEY, worker_id="w", token=token, lease=LEASE, fence=FENCE + 1, now=NOW
        )
        if isinstance(took, Refused) or self._careless == LEAVES_LOCK_AS_FOUND:
            return took
        return handlers.renew_lock(took, lock_claim(token, took.fence, LOCK_KEY), LEASE, NOW)

    def _check_refused(self, state: EventState, writes: list[tuple[str, str, Write]]) -> None:
        """Check that messages without the current claim are refused. A repeat is accepted and writes nothing."""
        for self.trying, verb, write in writes:
            outcome = write(state)
            if isinstance(outcome, Refused):
                self._tally.refused[verb] += 1
                self._tally.seen["stale write on a handler"] += 1
            elif verb == "renew_handler" or outcome.state != state or outcome.records:
                raise Broken(f"{verb}: a stale write is accepted")
            else:
                self._tally.seen["repeat answered to a handler"] += 1

    def _written(self, part: Part, name: str, verb: str, claim: HandlerClaim, write: Write) -> list[Move]:
        self.trying = name
        outcome = write(part.state)
        if isinstance(outcome, Refused):
            raise Broken(f"{verb}: the holder is refused")
        again = write(outcome.state)
        if isinstance(again, Refused) or again.state != outcome.state:
            raise Broken(f"{verb}: the repeat of an applied call is not answered alike")
        lock = self._lock_after(part.lock, claim, verb) if self._serial else part.lock
        if isinstance(lock, Refused):
            return []
        self._tally.applied[verb] += 1
        self.check_untouched(part, outcome.state)
        self._check_attempts(part, outcome.state, verb)
        return [Move(name, renamed(part._replace(state=outcome.state, lock=lock)))]

    def _lock_after(self, lock: LockState | None, claim: HandlerClaim, verb: str) -> LockState | Refused | None:
        """Return the lock after a step. A renewal needs it; the end of the claim frees it if the claim still has it."""
        shown = lock_claim(claim.token, FENCE, LOCK_KEY)
        if verb == "renew_handler":
            kept = handlers.renew_lock(lock, shown, LEASE, NOW)
            return lock if isinstance(kept, Refused) and self._careless == RENEWS_WITHOUT_LOCK else kept
        freed = handlers.release_lock(lock, shown)
        return lock if isinstance(freed, Refused) else freed

    def _check_attempts(self, part: Part, state: EventState, verb: str) -> None:
        row, old = find_row(state, self._id), find_row(part.state, self._id)
        change = 0 if row is None or old is None else row.result.attempts - old.result.attempts
        if change != (-1 if verb == "release_handler" else 0):
            raise Broken(f"{verb} changed the attempts of {self._id} by {change}")

    def _over(self, part: Part, row: HandlerState) -> Part:
        """End the lease of a handler. A dead letter is due for a requeue with the last of them."""
        late = replace(row, result=replace(row.result, expires_ts=OVER))
        rows = tuple(late if other is row else other for other in part.state.handlers)
        lock = part.lock
        if lock is not None and lock_alive(lock) and lock.token == row.token:
            lock = replace(lock, expires_ts=OVER)
        state = replace(part.state, handlers=rows)
        if state.event.status in TERMINAL and not part.stopped and not any(map(live_handler_claim, rows)):
            state = replace(state, event=replace(state.event, due_ts=min(state.event.due_ts, NOW)))
        return renamed(part._replace(state=state, lock=lock))

    def _claim(self, shape: tuple[str, int]) -> HandlerClaim:
        token, fence = shape
        return HandlerClaim(
            id=1, handler_id=self._id, token=f"{self._id}/{token}", fence=fence, attempts=1, expires_ts=NOW + LEASE
        )

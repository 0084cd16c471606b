"""The plain claims and completions that a busy log is made of, many at once.

They do what ``kernel.transition`` does to each, in one loop: a batch shares its instant, its queue and its holder.
Whatever is not plain goes the kernel's way. The differential tests hold both ways against each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from msgspec.structs import replace

from durabus.backends.fold.wire import Completions, Sent
from durabus.backends.memory.store import MemoryStore
from durabus.errors import LeaseLost
from durabus.kernel.state import EventState, Record, SettledClaim
from durabus.model.claim import Claim, ClaimRef, ClaimRequest
from durabus.model.settlement import Complete, Settled
from durabus.model.statuses import Action, EventMode, EventStatus
from durabus.store.claims import SettleAnswer


class BulkCore(MemoryStore):
    """``settle`` takes settlements as they lie in the log."""

    def settle(self, sent: Sequence[Sent], then_claim: ClaimRequest | None) -> SettleAnswer:
        """As ``settle_events``."""
        with self._lock:
            self._check_open()
            now = self._clock.now()
            outcomes: list[Settled | LeaseLost] = []
            for one in sent:
                if isinstance(one, Completions):
                    outcomes += self._complete_all(one, now)
                else:
                    outcomes += [self._settle(settlement, now) for settlement in one.settlements()]
            return SettleAnswer(outcomes, [] if then_claim is None else self._claim(then_claim, now))

    def _complete_all(self, done: Completions, now: float) -> list[Settled | LeaseLost]:
        token, fence, states = done.token, done.fence, self._states
        most = self._max_history + self._max_history // 5
        outcomes: list[Settled | LeaseLost] = []
        records: list[Record] = []
        bus = lane = None
        for id_, milliseconds in zip(done.ids, done.times, strict=True):
            state = states.get(id_)
            if state is None or not _plainly_held(state, token, fence) or token in self._event_locks:
                self._log.append(records)
                records = []
                outcomes.append(self._settle(Complete(ClaimRef(id_, token, fence), (), (), milliseconds), now))
                continue
            event = replace(state.event, status=EventStatus.COMPLETED, updated_ts=now, expires_ts=None)
            answer = Settled(id_, EventStatus.COMPLETED)
            states[id_] = EventState(event, None, (), SettledClaim(token, fence, Action.COMPLETED, answer))
            records.append(Record(Action.COMPLETED, event, now, event.worker_id, None, milliseconds))
            outcomes.append(answer)
            self._let_go(id_, token)
            if lane is None or event.bus != bus:
                bus, lane = event.bus, self._lane(event.bus)
            lane.left(event)
            lane.history[id_] = None
            if len(lane.history) > most:
                self._log.append(records)
                records = []
                self._forget_excess(lane, self._max_history)
        self._log.append(records)
        return outcomes

    def _claim(self, request: ClaimRequest, now: float) -> list[Claim]:
        token, states = request.token, self._states
        plain = request.mode is EventMode.PARALLEL and not request.tags and request.event_id is None
        if not plain or token in self._held:
            return super()._claim(request, now)
        lane = self._lane(request.bus)
        self._expire(lane, request.max_attempts, now)
        worker_id, expires_ts = request.worker_id, now + request.lease
        revision = self._revisions.get(request.bus, "")
        claims: list[Claim] = []
        records: list[Record] = []
        for id_ in list(islice(lane.eligible(now), request.limit)):
            before = states[id_]
            event = before.event
            event = replace(
                event,
                status=EventStatus.PROCESSING,
                attempts=event.attempts + 1,
                fence=event.fence + 1,
                worker_id=worker_id,
                updated_ts=now,
                picked_ts=now,
                started_ts=None,
                expires_ts=expires_ts,
            )
            states[id_] = EventState(event, token, before.handlers, before.settled)
            records.append(Record(Action.PICKED, event, now, worker_id))
            lane.leased(event)
            claims.append(Claim(event, token, before.results, revision))
        if claims:
            self._log.append(records)
            self._held[token] = {claim.event.id: None for claim in claims}
        return claims


def _plainly_held(state: EventState, token: str, fence: int) -> bool:
    """Whether the claim is current, and no handler has a part of its own in it."""
    event = state.event
    return (
        state.token == token and event.fence == fence and event.status is EventStatus.PROCESSING and not state.handlers
    )

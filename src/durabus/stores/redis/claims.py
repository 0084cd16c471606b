"""``durabus.store.claims.Claims`` and ``durabus.store.processes.Processes``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from durabus.errors import EventNotFound, LeaseLost
from durabus.lifecycle.waits import StoredMatches, has_waits
from durabus.model.claim import Claim, ClaimRef, ClaimRequest
from durabus.model.event import Event
from durabus.model.limits import stored_text
from durabus.model.settlement import Cancel, Complete, Fail, Release, Settled, Settlement, add_entries
from durabus.model.statuses import EventStatus
from durabus.model.wait import memo_of
from durabus.store.claims import SettleAnswer
from durabus.store.events import EventRef
from durabus.store.features import require
from durabus.store.processes import EndedProcesses
from durabus.stores.redis.core import RedisCore
from durabus.stores.redis.events import children_to, known_events, known_ref
from durabus.stores.redis.log import LogRecords
from durabus.stores.redis.records import REASONS, event_of, events_of, given, result_to, results_of

SettleCode = int | tuple[EventStatus, float | bool]
"""The outcome of one settlement: 0 for COMPLETED, another number for a refusal, or a new status and the retry time."""

Looked = dict[tuple[int, str], tuple[str | bool, int]]
"""For each new wait the memo of a stored event that meets it, and the id up to which the store has looked."""

EXPIRE_AT_ONCE = 1000
"""Maximum number of events that one step takes back, so that calls of workers run in between."""

decode_codes = msgspec.msgpack.Decoder(list[int]).decode
_renewed = msgspec.msgpack.Decoder(tuple[float, list[int]]).decode
_current = msgspec.msgpack.Decoder(list[tuple[str, int] | bool]).decode
_outcomes = msgspec.msgpack.Decoder(list[SettleCode]).decode
_ended = msgspec.msgpack.Decoder(tuple[list[str], float]).decode
decode_outcome = msgspec.msgpack.Decoder(tuple[EventStatus, float | bool]).decode


class RedisClaims(RedisCore):
    """Implements ``store.claims.Claims`` on Redis."""

    async def claim_next_events(self, request: ClaimRequest) -> list[Claim]:
        return _claims(request.token, await self._call("claim_next_events", *_asked(request)))

    async def start_events(self, refs: Sequence[ClaimRef]) -> list[Event | LeaseLost]:
        if not refs:
            self._check_open()
            return []
        codes, *records = await self._call("start_events", *((ref.id, ref.token, ref.fence) for ref in refs))
        events = iter(events_of(records))
        return [
            LeaseLost(ref.id, REASONS[code]) if code else next(events)
            for ref, code in zip(refs, decode_codes(codes), strict=True)
        ]

    async def renew_event_claims(self, refs: Sequence[ClaimRef], *, lease: float) -> list[float | LeaseLost]:
        if not refs:
            self._check_open()
            return []
        asked = [(ref.id, ref.token, ref.fence) for ref in refs]
        expires, codes = _renewed(await self._call("renew_event_claims", lease, asked))
        return [LeaseLost(ref.id, REASONS[code]) if code else expires for ref, code in zip(refs, codes, strict=True)]

    async def settle_events(
        self,
        settlements: Sequence[Settlement],
        *,
        then_claim: ClaimRequest | None = None,
        connection: object | None = None,
        with_entries: bool = False,
    ) -> SettleAnswer:
        if connection is not None:
            require(self.features, "caller_transactions", "settle_events(connection=…)")
        if not settlements and then_claim is None:
            self._check_open()
            return SettleAnswer([], [])
        then = None if then_claim is None else _asked(then_claim)
        looked = await self._look_for_stored(settlements) if has_waits(settlements) else {}
        blobs: list[bytes] = []
        asked = _in_runs(settlements, blobs, looked)
        packed, *records = await self._call("settle_events", asked, then, with_entries, blobs=blobs)
        outcomes = [_settled(one.ref.id, outcome) for one, outcome in zip(settlements, _outcomes(packed), strict=True)]
        if with_entries:
            entries, records = records[1 : 1 + records[0]], records[1 + records[0] :]
            outcomes = add_entries(outcomes, settlements, LogRecords(entries).entries())
        return SettleAnswer(outcomes, [] if then_claim is None else _claims(then_claim.token, records))

    async def _look_for_stored(self, settlements: Sequence[Settlement]) -> Looked:
        """Look for the stored events that new waits are about, outside of the step: it looks only at later events."""
        matches, looked = StoredMatches(settlements, ()), Looked()
        for (bus, type_), after in matches.after.items():
            last, more = after, 1
            while more:
                last, more, *records = await self._call("stored_events", bus, type_, last)
                matches.look_at(events_of(records))
            for id_, handler_id in matches.of(bus, type_):
                event = matches.found.get((id_, handler_id))
                looked[id_, handler_id] = (False if event is None else memo_of(event), last)
        return looked

    async def current_claims(self, ids: Sequence[int]) -> list[ClaimRef | None]:
        if not ids:
            self._check_open()
            return []
        found = _current(await self._call("current_claims", *(known_ref(id_) for id_ in ids)))
        return [None if isinstance(one, bool) else ClaimRef(id_, *one) for id_, one in zip(ids, found, strict=True)]

    async def expire_events(self, *, max_attempts: int | None = None, limit: int = 1000) -> int:
        self._check_open()
        taken, bus = 0, ""
        while taken < limit:
            at_once = min(limit - taken, EXPIRE_AT_ONCE)
            count, go_on = await self._call("expire_events", max_attempts, at_once, bus)
            taken += count
            if not go_on:
                break
            # One call may leave events of its last bus, so the next call looks at that bus again.
            bus = bus if count == at_once else go_on.decode()
        return taken

    async def reset_event(self, ref: EventRef, *, reason: str) -> Event:
        records = await self._call("reset_event", known_ref(ref), stored_text(reason))
        if not records:
            raise EventNotFound(ref)
        return event_of(*records)

    async def cancel_event(self, ref: EventRef, *, reason: str) -> Event:
        (event,) = await self.cancel_events([ref], reason=reason)
        if event is None:
            raise EventNotFound(ref)
        return event

    async def cancel_events(self, refs: Sequence[EventRef], *, reason: str) -> list[Event | None]:
        if not refs:
            self._check_open()
            return []
        asked = [known_ref(ref) for ref in refs]
        return known_events(await self._call("cancel_events", stored_text(reason), asked))


class RedisProcesses(RedisCore):
    """Implements ``store.processes.Processes`` on Redis."""

    async def show_presence(self, incarnation: str) -> bool:
        await self._call("show_presence", incarnation)
        return True

    async def withdraw_presence(self, incarnation: str) -> None:
        await self._call("withdraw_presence", incarnation)

    async def ended_processes(self) -> EndedProcesses:
        return EndedProcesses(*_ended(await self._call("ended_processes")))

    async def end_process(self, incarnation: str, *, max_attempts: int | None = None, limit: int = 1000) -> int:
        self._check_open()
        found, after = await self._call("events_of_process", incarnation, blobs=[b""])
        while after:
            more, after = await self._call("events_of_process", incarnation, blobs=[after])
            found += more
        first = sorted(found)[: max(limit, 0)]
        parts = [first[start : start + EXPIRE_AT_ONCE] for start in range(0, len(first), EXPIRE_AT_ONCE)] or [[]]
        taken = 0
        for part in parts:
            is_all = part is parts[-1] and len(first) == len(found)
            taken += await self._call("end_process", incarnation, max_attempts, part, is_all)
        return taken


def _asked(request: ClaimRequest) -> tuple[Any, ...]:
    return (
        request.bus, request.worker_id, request.token, request.limit, request.lease, request.mode.value, request.tags,
        request.max_attempts, request.event_id,
    )  # fmt: skip


def _claims(token: str, records: list[Any]) -> list[Claim]:
    revision = records[0].decode()
    return [
        Claim(event_of(state, data), token, results_of(results), revision)
        for state, data, results in zip(records[1::3], records[2::3], records[3::3], strict=True)
    ]


def _in_runs(settlements: Sequence[Settlement], blobs: list[bytes], looked: Looked) -> list[tuple[Any, ...]]:
    """Return what ``settle_events.lua`` takes. Plain completions of one claim and one handler become one item."""
    asked: list[tuple[Any, ...]] = []
    run: list[Any] = []
    token, fence, handler_id = "", 0, None
    for one in settlements:
        ref = one.ref
        if type(one) is not Complete or not one.is_plain:
            asked.append(_settlement(one, blobs, looked))
            token, fence = "", 0
            continue
        if ref.token != token or ref.fence != fence or one.handler_id != handler_id or not token:
            token, fence, handler_id, run = ref.token, ref.fence, one.handler_id, []
            asked.append(("done", token, fence, run, handler_id))
        run += (ref.id, False if one.execution_time_ms is None else one.execution_time_ms)
    return asked


def _settlement(one: Settlement, blobs: list[bytes], looked: Looked) -> tuple[Any, ...]:
    ref = one.ref
    results = [(*result_to(r), *looked.get((ref.id, r.handler_id), ())) for r in one.results] if one.results else ()
    claim = (ref.id, ref.token, ref.fence, results, children_to(one.children, blobs))
    match one:
        case Complete():
            spent = (one.execution_time_ms, one.status_code)
            return ("complete", *claim, one.errors, *spent, one.reason, one.handler_id)
        case Fail():
            return ("fail", *claim, one.error, one.delay, one.execution_time_ms, one.status_code)
        case Release():
            return ("release", *claim, one.delay, one.reason, one.until_children)
        case Cancel():
            return ("cancel", *claim, one.reason)


def _settled(id_: int, outcome: SettleCode) -> Settled | LeaseLost:
    if outcome == 0:
        return Settled(id_, EventStatus.COMPLETED)
    if isinstance(outcome, int):
        return LeaseLost(id_, REASONS[outcome])
    status, retry = outcome
    return Settled(id_, status, given(retry))

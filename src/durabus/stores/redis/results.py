"""``durabus.store.results.Results``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from durabus.errors import LeaseLost
from durabus.lifecycle.state import NOT_DONE
from durabus.model.claim import ClaimRef, HandlerClaim, HandlerClaimRequest, OfferedHandler, OfferRequest
from durabus.model.result import HandlerResult
from durabus.model.settlement import HandlerSettlement, Keep, Settled
from durabus.store.events import EventRef
from durabus.stores.redis.claims import decode_codes, decode_outcome
from durabus.stores.redis.core import RedisCore
from durabus.stores.redis.events import children_to, known_ref
from durabus.stores.redis.records import REASONS, decode_handler, event_of, given, result_to, results_of

CLEAN_AT_ONCE = 1000

_renewed = msgspec.msgpack.Decoder(tuple[float, list[int]]).decode


class RedisResults(RedisCore):
    """Implements ``store.results.Results`` on Redis."""

    async def list_results(self, ref: EventRef) -> list[HandlerResult]:
        results = results_of(await self._call("list_results", known_ref(ref)))
        return sorted(results, key=lambda result: result.handler_id)

    async def read_results(self, ids: Sequence[int]) -> list[tuple[HandlerResult, ...]]:
        if not ids:
            self._check_open()
            return []
        records = await self._call("read_results", *(known_ref(id_) for id_ in ids))
        return [results_of(record) for record in records]

    async def keep_results(self, kept: Sequence[Keep]) -> list[LeaseLost | None]:
        if not kept:
            self._check_open()
            return []
        blobs: list[bytes] = []
        asked = [
            (
                one.ref.id,
                one.ref.token,
                one.ref.fence,
                [result_to(result) for result in one.results],
                children_to(one.children, blobs),
                one.ref.handler_id if isinstance(one.ref, HandlerClaim) else False,
            )
            for one in kept
        ]
        codes = decode_codes(await self._call("keep_results", *asked, blobs=blobs))
        return [LeaseLost(one.ref.id, REASONS[code]) if code else None for one, code in zip(kept, codes, strict=True)]

    async def claim_next_handler_result(self, request: HandlerClaimRequest) -> HandlerClaim | None:
        event = request.event
        record = await self._call(
            "claim_next_handler_result",
            event.id,
            event.token,
            event.fence,
            request.handler_ids,
            request.worker_id,
            request.token,
            request.lease,
            request.mode.value,
        )
        if not record:
            return None
        return _claim_of(event.id, request.token, record)

    async def claim_offered_handlers(self, request: OfferRequest) -> list[OfferedHandler]:
        records = await self._call(
            "claim_offered_handlers",
            request.bus,
            tuple(dict.fromkeys(request.handler_ids)),
            request.worker_id,
            request.token,
            request.limit,
            request.lease,
            request.mode.value,
        )
        found = []
        for state, data, results, handler in zip(*(iter(records),) * 4, strict=True):
            event = event_of(state, data)
            found.append(OfferedHandler(event, _claim_of(event.id, request.token, handler), results_of(results)))
        return found

    async def renew_handler_claims(self, claims: Sequence[HandlerClaim], *, lease: float) -> list[float | LeaseLost]:
        if not claims:
            self._check_open()
            return []
        asked = [_asked(claim) for claim in claims]
        expires, codes = _renewed(await self._call("renew_handler_claims", lease, asked))
        return [
            LeaseLost(claim.id, REASONS[code]) if code else expires for claim, code in zip(claims, codes, strict=True)
        ]

    async def settle_handlers(self, settlements: Sequence[HandlerSettlement]) -> list[HandlerResult | LeaseLost]:
        if not settlements:
            self._check_open()
            return []
        answers = await self._call("settle_handlers", *(_settlement(one) for one in settlements))
        return [
            LeaseLost(one.claim.id, REASONS[answer]) if isinstance(answer, int) else decode_handler(answer).result()
            for one, answer in zip(settlements, answers, strict=True)
        ]

    async def release_handler_claim(self, claim: HandlerClaim, *, delay: float = 0.0) -> None:
        (outcome,) = await self.settle_handlers([HandlerSettlement(claim, None, delay)])
        if isinstance(outcome, LeaseLost):
            raise outcome

    async def complete_handler_result(self, claim: HandlerClaim, outcome: HandlerResult) -> HandlerResult:
        (stored,) = await self.settle_handlers([HandlerSettlement(claim, outcome)])
        if isinstance(stored, LeaseLost):
            raise stored
        return stored

    async def complete_event_if_done(self, ref: ClaimRef, handler_ids: Sequence[str]) -> Settled | None:
        answer = await self._call("complete_event_if_done", ref.id, ref.token, ref.fence, tuple(handler_ids))
        if isinstance(answer, int):
            if REASONS[answer] == NOT_DONE:
                return None
            raise LeaseLost(ref.id, REASONS[answer])
        status, retry = decode_outcome(answer)
        return Settled(ref.id, status, given(retry))

    async def cleanup_results(self, *, limit: int = 10_000) -> int:
        self._check_open()
        gone = 0
        while gone < limit:
            at_once = min(limit - gone, CLEAN_AT_ONCE)
            count: int = await self._call("cleanup_results", at_once)
            gone += count
            if count < at_once:
                break
        return gone


def _asked(claim: HandlerClaim) -> tuple[int, str, str, int]:
    return claim.id, claim.handler_id, claim.token, claim.fence


def _claim_of(id_: int, token: str, record: bytes) -> HandlerClaim:
    handler = decode_handler(record)
    return HandlerClaim(
        id=id_,
        handler_id=handler.handler_id,
        token=token,
        fence=handler.fence,
        attempts=handler.attempts,
        expires_ts=float(handler.expires),
    )


def _settlement(one: HandlerSettlement) -> tuple[Any, ...]:
    if one.outcome is None:
        return _asked(one.claim), False, False, False, False, one.delay
    _, status, _, error, value, time_ms, *_ = result_to(one.outcome)
    return _asked(one.claim), status, error, value, time_ms, 0.0

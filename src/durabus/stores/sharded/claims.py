"""``durabus.store.claims.Claims`` and ``durabus.store.results.Results`` of all shards."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from durabus.errors import LeaseLost, StoreUnavailableError
from durabus.model.claim import (
    Claim,
    ClaimRef,
    ClaimRequest,
    HandlerClaim,
    HandlerClaimRequest,
    OfferedHandler,
    OfferRequest,
)
from durabus.model.event import Event
from durabus.model.result import HandlerResult
from durabus.model.settlement import HandlerSettlement, Keep, Settled, Settlement
from durabus.model.statuses import EventMode
from durabus.store.claims import SettleAnswer
from durabus.store.contract import EventStore
from durabus.store.events import EventRef
from durabus.store.features import refuse_children, refuse_waits, require
from durabus.store.processes import EndedProcesses
from durabus.stores.sharded.core import ShardedCore

NO_EVENT_HAS_IT = ("\n",)
"""A tag that no event can have: a claim with it returns the events that its token holds, and no others."""


class ShardedClaims(ShardedCore):
    """Implements ``store.claims.Claims`` on several shards. A claim is on the shard of its event."""

    async def claim_next_events(self, request: ClaimRequest) -> list[Claim]:
        """See ``Claims``. The order holds among the events of one shard; the token chooses the first shard to ask.

        A token that holds claims on any shard is a repeat, so the store first asks all shards for those.
        If a shard is down, its events stay there; its error is raised only if the other shards have no events.
        """
        if request.mode is not EventMode.PARALLEL:
            require(self.features, "serial_modes", f"mode={request.mode.value}")
        if request.event_id is not None:
            require(self.features, "claims_by_event_id", "a claim by event_id")
            return await self._claim(request, self._numbers.of_event_id(request.event_id))
        first = self._numbers.of_name(request.token)
        numbers = [(first + step) % self._numbers.count for step in range(self._numbers.count)]
        down: dict[int, StoreUnavailableError] = {}
        claims = await self._held(request, down)
        if claims:
            return _in_order(claims)
        for number in numbers:
            left = request.limit - len(claims)
            if left <= 0:
                break
            claims += await self._claim_from(msgspec.structs.replace(request, limit=left), number, down)
        if down and not claims:
            raise next(iter(down.values()))
        return _in_order(claims)

    async def _held(self, request: ClaimRequest, down: dict[int, StoreUnavailableError]) -> list[Claim]:
        """Return the claims that the token holds on all shards. A single shard looks for them in its own claim."""
        if self._numbers.count == 1:
            return []
        asked = msgspec.structs.replace(request, tags=NO_EVENT_HAS_IT)
        found = await self._all(lambda _, number: self._claim_from(asked, number, down))
        return [claim for claims in found for claim in claims]

    async def _claim_from(
        self, request: ClaimRequest, number: int, down: dict[int, StoreUnavailableError]
    ) -> list[Claim]:
        """Claim from one shard. A shard that is down gives no events and is noted in ``down``: others go on."""
        if number in down:
            return []
        try:
            return await self._claim(request, number)
        except StoreUnavailableError as error:
            down[number] = error
            return []

    async def _claim(self, request: ClaimRequest, number: int) -> list[Claim]:
        claims = await self._shards[number].claim_next_events(request)
        return [self._numbers.claim(claim, number) for claim in claims]

    async def start_events(self, refs: Sequence[ClaimRef]) -> list[Event | LeaseLost]:
        return await self._each(
            refs,
            self._shard_of,
            lambda shard, mine: shard.start_events([self._numbers.inner_claim(one) for one in mine]),
        )

    async def renew_event_claims(self, refs: Sequence[ClaimRef], *, lease: float) -> list[float | LeaseLost]:
        return await self._each(
            refs,
            self._shard_of,
            lambda shard, mine: shard.renew_event_claims([self._numbers.inner_claim(one) for one in mine], lease=lease),
        )

    async def settle_events(
        self,
        settlements: Sequence[Settlement],
        *,
        then_claim: ClaimRequest | None = None,
        connection: object | None = None,
        with_entries: bool = False,
    ) -> SettleAnswer:
        """See ``Claims``. ``then_claim`` is a separate call after the settlements."""
        if connection is not None:
            require(self.features, "caller_transactions", "settle_events(connection=…)")
        refuse_children(self.features, settlements)
        refuse_waits(self.features, settlements)

        async def settle(shard: EventStore, mine: list[Settlement]) -> list[Settled | LeaseLost]:
            inner = [self._numbers.inner_settlement(one) for one in mine]
            return (await shard.settle_events(inner, with_entries=with_entries)).outcomes

        outcomes = await self._each(settlements, lambda one: self._shard_of(one.ref), settle)
        claims = [] if then_claim is None else await self.claim_next_events(then_claim)
        if not settlements and then_claim is None:
            await self._shards[0].settle_events([])
        return SettleAnswer(outcomes, claims)

    async def current_claims(self, ids: Sequence[int]) -> list[ClaimRef | None]:
        return await self._each(
            ids,
            self._numbers.of_ref,
            lambda shard, mine: shard.current_claims([self._numbers.inner(one) for one in mine]),
        )

    async def expire_events(self, *, max_attempts: int | None = None, limit: int = 1000) -> int:
        return await self._up_to(limit, lambda shard, left: shard.expire_events(max_attempts=max_attempts, limit=left))

    async def reset_event(self, ref: EventRef, *, reason: str) -> Event:
        async def reset(shard: EventStore, number: int) -> Event:
            return self._numbers.event(await shard.reset_event(self._numbers.inner_ref(ref), reason=reason), number)

        return await self._ask(reset, self._numbers.of_ref(ref))

    async def cancel_event(self, ref: EventRef, *, reason: str) -> Event:
        async def cancel(shard: EventStore, number: int) -> Event:
            return self._numbers.event(await shard.cancel_event(self._numbers.inner_ref(ref), reason=reason), number)

        return await self._ask(cancel, self._numbers.of_ref(ref))

    async def cancel_events(self, refs: Sequence[EventRef], *, reason: str) -> list[Event | None]:
        return await self._each(
            refs,
            self._numbers.of_ref,
            lambda shard, mine: shard.cancel_events([self._numbers.inner_ref(ref) for ref in mine], reason=reason),
        )

    def _shard_of(self, ref: ClaimRef) -> int:
        return self._numbers.of_ref(ref.id)


class ShardedResults(ShardedCore):
    """Implements ``store.results.Results`` on several shards. A handler claim is on the shard of its event."""

    async def list_results(self, ref: EventRef) -> list[HandlerResult]:
        return await self._shards[self._numbers.of_ref(ref)].list_results(self._numbers.inner_ref(ref))

    async def keep_results(self, kept: Sequence[Keep]) -> list[LeaseLost | None]:
        refuse_children(self.features, kept)
        return await self._each(
            kept,
            lambda one: self._numbers.of_ref(one.ref.id),
            lambda shard, mine: shard.keep_results([self._numbers.inner_keep(one) for one in mine]),
        )

    async def claim_next_handler_result(self, request: HandlerClaimRequest) -> HandlerClaim | None:
        async def claim(shard: EventStore, number: int) -> HandlerClaim | None:
            inner = msgspec.structs.replace(request, event=self._numbers.inner_claim(request.event))
            found = await shard.claim_next_handler_result(inner)
            return None if found is None else self._numbers.handler(found, number)

        return await self._ask(claim, self._numbers.of_ref(request.event.id))

    async def renew_handler_claims(self, claims: Sequence[HandlerClaim], *, lease: float) -> list[float | LeaseLost]:
        return await self._each(
            claims,
            lambda one: self._numbers.of_ref(one.id),
            lambda shard, mine: shard.renew_handler_claims(
                [self._numbers.inner_handler(one) for one in mine], lease=lease
            ),
        )

    async def claim_offered_handlers(self, request: OfferRequest) -> list[OfferedHandler]:
        """See ``Results``. The order holds among the events of one shard; the token chooses the first shard to ask."""
        first, count = self._numbers.of_name(request.token), self._numbers.count
        down: dict[int, StoreUnavailableError] = {}
        found: list[OfferedHandler] = []
        if count > 1:  # a token that holds claims on any shard is a repeat
            asked = msgspec.structs.replace(request, limit=0)
            held = await self._all(lambda _, number: self._offers_of(asked, number, down))
            found = [one for some in held for one in some]
        if not found:
            for step in range(count):
                left = msgspec.structs.replace(request, limit=request.limit - len(found))
                if left.limit > 0:
                    found += await self._offers_of(left, (first + step) % count, down)
        if down and not found:
            raise next(iter(down.values()))
        return sorted(found, key=lambda one: one.event.id)

    async def _offers_of(
        self, request: OfferRequest, number: int, down: dict[int, StoreUnavailableError]
    ) -> list[OfferedHandler]:
        """Claim offers from one shard. A shard that is down gives none and is noted in ``down``: others go on."""
        if number in down:
            return []
        try:
            found = await self._shards[number].claim_offered_handlers(request)
        except StoreUnavailableError as error:
            down[number] = error
            return []
        numbers = self._numbers
        return [
            OfferedHandler(numbers.event(one.event, number), numbers.handler(one.claim, number), one.results)
            for one in found
        ]

    async def settle_handlers(self, settlements: Sequence[HandlerSettlement]) -> list[HandlerResult | LeaseLost]:
        def inner(one: HandlerSettlement) -> HandlerSettlement:
            return msgspec.structs.replace(one, claim=self._numbers.inner_handler(one.claim))

        return await self._each(
            settlements,
            lambda one: self._numbers.of_ref(one.claim.id),
            lambda shard, mine: shard.settle_handlers([inner(one) for one in mine]),
        )

    async def release_handler_claim(self, claim: HandlerClaim, *, delay: float = 0.0) -> None:
        inner = self._numbers.inner_handler(claim)
        await self._ask(
            lambda shard, _: shard.release_handler_claim(inner, delay=delay), self._numbers.of_ref(claim.id)
        )

    async def complete_handler_result(self, claim: HandlerClaim, outcome: HandlerResult) -> HandlerResult:
        inner = self._numbers.inner_handler(claim)
        return await self._ask(
            lambda shard, _: shard.complete_handler_result(inner, outcome), self._numbers.of_ref(claim.id)
        )

    async def read_results(self, ids: Sequence[int]) -> list[tuple[HandlerResult, ...]]:
        return await self._each(
            ids,
            self._numbers.of_ref,
            lambda shard, mine: shard.read_results([self._numbers.inner(one) for one in mine]),
        )

    async def complete_event_if_done(self, ref: ClaimRef, handler_ids: Sequence[str]) -> Settled | None:
        async def complete(shard: EventStore, number: int) -> Settled | None:
            settled = await shard.complete_event_if_done(self._numbers.inner_claim(ref), handler_ids)
            return None if settled is None else self._numbers.answer(settled, number)

        return await self._ask(complete, self._numbers.of_ref(ref.id))

    async def cleanup_results(self, *, limit: int = 10_000) -> int:
        return await self._up_to(limit, lambda shard, left: shard.cleanup_results(limit=left))


class ShardedProcesses(ShardedCore):
    """Implements ``store.processes.Processes`` on several shards. Each shard sees the end of a process for itself."""

    async def show_presence(self, incarnation: str) -> bool:
        return all(await self._all(lambda shard, _: shard.show_presence(incarnation)))

    async def withdraw_presence(self, incarnation: str) -> None:
        await self._all(lambda shard, _: shard.withdraw_presence(incarnation))

    async def ended_processes(self) -> EndedProcesses:
        found = await self._all(lambda shard, _: shard.ended_processes())
        names = {name for one in found for name in one.incarnations}
        return EndedProcesses(sorted(names), min(one.look_again_in for one in found))

    async def end_process(self, incarnation: str, *, max_attempts: int | None = None, limit: int = 1000) -> int:
        return await self._up_to(
            limit, lambda shard, left: shard.end_process(incarnation, max_attempts=max_attempts, limit=left)
        )


def _in_order(claims: list[Claim]) -> list[Claim]:
    return sorted(claims, key=lambda claim: (-claim.event.priority, claim.event.id))

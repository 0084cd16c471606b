"""How the verbs of the store reach the log, and ``durabus.store.results.Results``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from durabus.errors import LeaseLost
from durabus.model.claim import ClaimRef, HandlerClaim, HandlerClaimRequest, OfferedHandler, OfferRequest
from durabus.model.event import Event, NewEvent
from durabus.model.result import HandlerResult
from durabus.model.settlement import HandlerSettlement, Keep, Settled, Settlement
from durabus.store.events import EventRef
from durabus.store.features import Features
from durabus.stores.replicated_log import commands as c
from durabus.stores.replicated_log.core import ReplicatedLogCore
from durabus.stores.replicated_log.node import Node
from durabus.stores.replicated_log.public_lane import travels_apart
from durabus.stores.replicated_log.wire import packed_keep, wire_ref


class ReplicatedLogCalls:
    """How the verbs reach the node. ``_current`` is for verbs that read, the others are for verbs that write."""

    features: Features
    _node: Node

    @property
    def _core(self) -> ReplicatedLogCore:
        return self._node.replica.core

    async def _current(self) -> ReplicatedLogCore:
        await self._node.catch_up()
        return self._node.replica.core

    async def _write(self, command: c.Written) -> Any:
        return await self._node.command(command)

    async def _count(self, command: c.Written) -> int:
        count: int = await self._node.command(command)
        return count

    async def _publish(self, new: Sequence[NewEvent]) -> list[Event]:
        apart = [c.Attach(one.event_id, one.metadata_json) for one in new if one.metadata_json and travels_apart(one)]
        await asyncio.gather(*map(self._write, apart))  # together, so that they share records
        return await self._node.publish(new)

    async def _publish_children(
        self, parents: Sequence[Settlement | Keep], outcomes: Sequence[Settled | LeaseLost | None]
    ) -> None:
        """Show children on the public lane, too. The command has stored them already, so their records add nothing.

        If this fails, the caller repeats its call. The repeat stores nothing and publishes what is missing.
        """
        if any(one.children for one in parents) and (new := self._core.not_published(parents, outcomes)):
            await self._publish(new)

    async def _list(self, command: c.Written | Sequence[Any]) -> list[Any]:
        """Run the command of a batch and return its list; an empty batch returns an empty list."""
        self._node.check_open()
        if isinstance(command, Sequence):
            return []
        answer: list[Any] = await self._node.command(command)
        return answer


class ReplicatedLogResults(ReplicatedLogCalls):
    """Implements ``store.results.Results`` on a replicated log."""

    async def keep_results(self, kept: Sequence[Keep]) -> list[LeaseLost | None]:
        packed = tuple(packed_keep(one) for one in kept)
        outcomes: list[LeaseLost | None] = await self._list(kept and c.KeepResults(packed))
        await self._publish_children(kept, outcomes)
        return outcomes

    async def claim_next_handler_result(self, request: HandlerClaimRequest) -> HandlerClaim | None:
        claim: HandlerClaim | None = await self._write(c.ClaimNextHandlerResult(request))
        return claim

    async def renew_handler_claims(self, claims: Sequence[HandlerClaim], *, lease: float) -> list[float | LeaseLost]:
        return await self._list(claims and c.RenewHandlerClaims(tuple(claims), lease))

    async def claim_offered_handlers(self, request: OfferRequest) -> list[OfferedHandler]:
        if self._core.nothing_offered(request):
            # A worker that looks for offers again and again must not make the log grow.
            await self._node.catch_up()
            if self._core.nothing_offered(request):
                return []
        return await self._list(c.ClaimOfferedHandlers(request))

    async def settle_handlers(self, settlements: Sequence[HandlerSettlement]) -> list[HandlerResult | LeaseLost]:
        return await self._list(settlements and c.SettleHandlers(tuple(settlements)))

    async def release_handler_claim(self, claim: HandlerClaim, *, delay: float = 0.0) -> None:
        (outcome,) = await self.settle_handlers([HandlerSettlement(claim, None, delay)])
        if isinstance(outcome, LeaseLost):
            raise outcome

    async def complete_handler_result(self, claim: HandlerClaim, outcome: HandlerResult) -> HandlerResult:
        (stored,) = await self.settle_handlers([HandlerSettlement(claim, outcome)])
        if isinstance(stored, LeaseLost):
            raise stored
        return stored

    async def read_results(self, ids: Sequence[int]) -> list[tuple[HandlerResult, ...]]:
        return await (await self._current()).read_results(ids)

    async def list_results(self, ref: EventRef) -> list[HandlerResult]:
        return await (await self._current()).list_results(ref)

    async def complete_event_if_done(self, ref: ClaimRef, handler_ids: Sequence[str]) -> Settled | None:
        settled: Settled | None = await self._write(c.CompleteEventIfDone(wire_ref(ref), tuple(handler_ids)))
        return settled

    async def cleanup_results(self, *, limit: int = 10_000) -> int:
        return await self._count(c.CleanupResults(limit))

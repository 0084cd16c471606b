"""Bugs in what handlers leave behind: results, steps, children, waits, batches, offers, cancellations and presence;
and in what callers are told.

They are planted as those of ``planted_bugs`` are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from hashlib import sha256
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace
from tests.simulation.planted_bugs import PlantedBug, Rule, rule

import durabus.stores.memory.registrations as memory_registrations
import durabus.stores.memory.results as memory_results
from durabus.bus.handle import Handle
from durabus.bus.publisher import Publisher
from durabus.lifecycle.handlers import claim_handler, keep_results, offered_handlers
from durabus.lifecycle.state import Applied, EventState, HandlerState, Refused
from durabus.lifecycle.waits import is_met_by, waits_of
from durabus.model.claim import (
    INCARNATION_LENGTH,
    MARK,
    Claim,
    ClaimRef,
    HandlerClaim,
    HandlerClaimRequest,
    OfferRequest,
    default_worker_id,
)
from durabus.model.event import Event, NewEvent
from durabus.model.result import HandlerResult
from durabus.model.settlement import Complete, Fail, Keep
from durabus.model.statuses import SETTLED, EventStatus, ResultStatus
from durabus.model.wait import NOT_MET, EventWait, met
from durabus.stores.memory.waits import Waiter, WaitIndex
from durabus.worker import cancelling, process_watch
from durabus.worker.batches import BatchCall, Verdict
from durabus.worker.children.emissions import EmittingCall
from durabus.worker.coordination import Coordinator
from durabus.worker.progress import EventProgress


def memo_without_fence() -> AbstractContextManager[Any]:
    """The store keeps what a former holder reports while another worker has the event."""
    original = keep_results

    def unfenced(state: EventState, keep: Keep) -> Applied | Refused:
        if state.event.status is EventStatus.PROCESSING and state.token is not None:
            keep = replace(keep, ref=ClaimRef(state.event.id, state.token, state.event.fence))
        return original(state, keep)

    return patch.object(memory_results, "keep_results", unfenced)


def success_kept_only_with_the_end() -> AbstractContextManager[Any]:
    """The worker goes on to the next handler at once, and writes all results with the end of the event."""

    async def settle(self: EventProgress, result: HandlerResult, *, others_run: bool) -> None:
        self.settled.append(result)

    return patch.object(EventProgress, "settle", settle)


def memo_lost_with_a_failure() -> AbstractContextManager[Any]:
    """A retry begins without the results of the attempt before it."""

    def forgetful(original: Rule) -> Rule:
        return lambda state, command, now: original(replace(state, handlers=()), command, now)

    return rule(Fail, forgetful)


def end_without_results() -> AbstractContextManager[Any]:
    """The log entry of an event with one handler says only that it has ended."""

    def plain(original: Rule) -> Rule:
        return lambda state, command, now: original(state, replace(command, handler_id=None), now)

    return rule(Complete, plain)


def late_result_overrides_a_cancellation() -> AbstractContextManager[Any]:
    """The store takes the result of a worker whose claim a cancellation has revoked."""

    def overridden(original: Rule) -> Rule:
        def complete(state: EventState, command: Complete, now: float) -> Applied | Refused:
            event, ref = state.event, command.ref
            if event.status is EventStatus.CANCELLED and ref.fence == event.fence - 1:
                held = replace(event, status=EventStatus.PROCESSING, fence=ref.fence)
                state = replace(state, event=held, token=ref.token)
            return original(state, command, now)

        return complete

    return rule(Complete, overridden)


def child_keyed_by_attempt() -> AbstractContextManager[Any]:
    """A handler that runs again makes its child again."""
    original = EmittingCall.identify

    def identify(self: EmittingCall, new: NewEvent, key: str | None) -> NewEvent:
        return original(self, new, f"{key} of claim {self.event.fence}")

    return patch.object(EmittingCall, "identify", identify)


def emission_before_success() -> AbstractContextManager[Any]:
    """A child is stored as soon as its handler emits it, whatever becomes of the handler."""
    original = Publisher.send

    def send(self: Publisher, handle: Handle, run: EmittingCall | None = None) -> None:
        original(self, handle)

    return patch.object(Publisher, "send", send)


def presence_by_host_and_pid() -> AbstractContextManager[Any]:
    """A process has the name of the process that had its host and pid before, and so hides the end of that one."""

    def name() -> str:
        return MARK + sha256(default_worker_id().encode()).hexdigest()[: INCARNATION_LENGTH - 1]

    return patch.object(process_watch, "new_incarnation", name)


def frozen_process_counted_as_dead() -> AbstractContextManager[Any]:
    """The store takes a process for dead that has been silent for less time than two signs of life are apart."""
    return patch.object(memory_registrations, "PRESENT_FOR", 0.5)


@contextmanager
def handler_claimed_twice() -> Iterator[None]:
    """The store grants an offered handler although the lease of another claim on it is not over."""

    def free(state: EventState, now: float) -> EventState:
        handlers = tuple(
            replace(one, result=replace(one.result, expires_ts=min(one.result.expires_ts, now)))
            if one.result.expires_ts is not None
            else one
            for one in state.handlers
        )
        return replace(state, handlers=handlers)

    def offered(state: EventState, request: OfferRequest, now: float) -> list[HandlerClaimRequest]:
        return offered_handlers(free(state, now), request, now)

    def claim(state: EventState, request: HandlerClaimRequest, now: float) -> tuple[EventState, HandlerClaim] | None:
        return claim_handler(free(state, now), request, now)

    with patch.multiple(memory_results, offered_handlers=offered, claim_handler=claim):
        yield


@contextmanager
def end_before_the_last_handler() -> Iterator[None]:
    """The node that coordinates an event completes it without the handlers of other nodes that still run."""
    original = Coordinator.read

    async def wait(
        _self: Coordinator, _claim: Claim, _awaited: Collection[str], *, first: bool
    ) -> tuple[HandlerResult, ...]:
        return ()

    async def read(self: Coordinator, id_: int) -> tuple[HandlerResult, ...]:
        return tuple(result for result in await original(self, id_) if result.status in SETTLED)

    with patch.multiple(Coordinator, wait=wait, read=read):
        yield


@contextmanager
def wait_met_twice() -> Iterator[None]:
    """A later event takes the place of the one that had met a wait."""
    original, note = WaitIndex.meet, WaitIndex.note
    known: dict[Waiter, EventWait] = {}

    def remember(self: WaitIndex, state: EventState) -> None:
        known.update({(state.event.id, result.handler_id): wait for result, wait in waits_of(state.results)})
        note(self, state)

    def again(handler: HandlerState, id_: int, event: Event) -> HandlerState:
        result = handler.result
        wait = known.get((id_, result.handler_id))
        is_over = result.status is ResultStatus.KEPT and result.value_json != NOT_MET
        if wait is None or not is_over or not is_met_by(wait, id_, event):
            return handler
        return HandlerState(met(result, event))

    def meet(self: WaitIndex, event: Event) -> list[Event]:
        due = original(self, event)
        for id_ in {id_ for id_, _ in known} & self._states.keys():
            state = self._states[id_]
            self._states[id_] = replace(state, handlers=tuple(again(one, id_, event) for one in state.handlers))
        return due

    with patch.multiple(WaitIndex, meet=meet, note=remember):
        yield


def wait_without_a_look_back() -> AbstractContextManager[Any]:
    """A wait misses the event that was published after its own one and before the handler began to wait."""
    return patch.object(WaitIndex, "with_stored", lambda self, settlement: settlement)


def batch_verdict_for_another_event() -> AbstractContextManager[Any]:
    """Each event of a batch gets the verdict on the one before it."""
    original = BatchCall._deliver

    def deliver(self: BatchCall, verdicts: Sequence[Verdict]) -> None:
        original(self, [*verdicts[-1:], *verdicts[:-1]])

    return patch.object(BatchCall, "_deliver", deliver)


def expiry_not_looked_at() -> AbstractContextManager[Any]:
    """A worker begins an event however late it claims it."""
    return patch.object(Event, "has_expired", False)


def request_answered_by_the_last_handler() -> AbstractContextManager[Any]:
    """A request returns the last value of the handlers, not the first one."""
    original = Handle.finish

    def finish(self: Handle, event: Event, results: tuple[HandlerResult, ...], reason: str | None = None) -> None:
        original(self, event, results[::-1], reason)

    return patch.object(Handle, "finish", finish)


def cancel_that_leaves_the_children() -> AbstractContextManager[Any]:
    """A cancellation with children looks for those that wait, and misses those that run."""
    return patch.object(cancelling, "WITH_LIVE_CHILDREN", (EventStatus.PENDING,))


HANDLER_BUGS = (
    PlantedBug("memo without fence", memo_without_fence),
    PlantedBug("memo lost with a failure", memo_lost_with_a_failure),
    PlantedBug("success kept only with the end", success_kept_only_with_the_end),
    PlantedBug("end without results", end_without_results),
    PlantedBug("cancel that a late result overrides", late_result_overrides_a_cancellation),
    PlantedBug("child keyed by attempt", child_keyed_by_attempt),
    PlantedBug("emission before success", emission_before_success),
    PlantedBug("presence by host:pid", presence_by_host_and_pid),
    PlantedBug("frozen process counted as dead", frozen_process_counted_as_dead),
    PlantedBug("two workers hold one handler claim", handler_claimed_twice),
    PlantedBug("event ends before its last handler", end_before_the_last_handler),
    PlantedBug("wait met twice", wait_met_twice),
    PlantedBug("wait without a look back", wait_without_a_look_back),
    PlantedBug("batch verdict for another event", batch_verdict_for_another_event),
    PlantedBug("expiry not looked at", expiry_not_looked_at),
    PlantedBug("request answered by the last handler", request_answered_by_the_last_handler),
    PlantedBug("cancel that leaves the children", cancel_that_leaves_the_children),
)

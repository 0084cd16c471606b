"""The classic bugs of queues, planted at run time. The checks must catch each of them, or they prove nothing.

Each bug is a context in which durabus has it. A docstring describes the buggy behaviour. durabus knows nothing of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec
from msgspec.structs import replace

import durabus.queue.locks
import durabus.stores.memory.claims as memory_claims
import durabus.worker.worker as worker_module
from durabus import EventBus
from durabus.errors import DurabusError, LeaseLost
from durabus.lifecycle import transition
from durabus.lifecycle.handlers import claim_lock
from durabus.lifecycle.state import NOT_YOURS, Applied, EventState, Expire, Grant, Refused, Renew
from durabus.lifecycle.transition import publish
from durabus.model.claim import ClaimRef, default_worker_id
from durabus.model.event import Event, NewEvent
from durabus.model.log_entry import LogPage
from durabus.model.query import EventQuery
from durabus.model.settlement import Complete, Fail, Settled
from durabus.model.statuses import EventStatus, ResultStatus
from durabus.store.claims import SettleAnswer
from durabus.stores.memory.bus_queue import BusQueue, OrderingKeys
from durabus.stores.memory.core import MemoryCore
from durabus.stores.memory.log import MemoryLog
from durabus.stores.memory.store import MemoryStore
from durabus.stores.replicated_log.store import ReplicatedLogStore
from durabus.testing.simulation.loop import VirtualLoop
from durabus.testing.simulation.processes import Host, host_here
from durabus.worker import attempt, dispatcher, heartbeat
from durabus.worker.claim_table import ClaimTable
from durabus.worker.claimed_event import ClaimedEvent
from durabus.worker.execution import execute
from durabus.worker.heartbeat import Heartbeat
from durabus.worker.poller import Poller
from durabus.worker.slots import Slots

Rule = Callable[[EventState, Any, float], Applied | Refused]


class PlantedBug(msgspec.Struct, frozen=True):
    """A bug, and the ``store`` that it is planted in."""

    what: str
    plant: Callable[[], AbstractContextManager[Any]]
    store: str = "memory"


def rule(command: type, changed: Callable[[Rule], Rule]) -> AbstractContextManager[Any]:
    """Another rule of the lifecycle for one command."""
    return patch.dict(transition._RULES, {command: changed(transition._RULES[command])})


def with_current_claim(original: Rule) -> Rule:
    """The store takes every writer for the holder."""

    def unfenced(state: EventState, command: Any, now: float) -> Applied | Refused:
        if state.event.status is EventStatus.PROCESSING and state.token is not None:
            command = replace(command, ref=ClaimRef(state.event.id, state.token, state.event.fence))
        return original(state, command, now)

    return unfenced


@contextmanager
def rescue_without_state_guard() -> Iterator[None]:
    """The store takes back events by the lease that it granted first. It ignores renewals and the end of the event."""

    def due(self: BusQueue, now: float) -> Iterator[int]:
        while self._leases and self._leases[0][0] <= now:
            yield self._leases.pop(0)[1]

    def unguarded(original: Rule) -> Rule:
        def expire(state: EventState, command: Expire, now: float) -> Applied | Refused:
            seen = replace(state, event=replace(state.event, status=EventStatus.PROCESSING, expires_ts=now))
            return original(seen, command, now)

        return expire

    with patch.object(BusQueue, "expired", due), rule(Expire, unguarded):
        yield


@contextmanager
def lease_by_worker_clock() -> Iterator[None]:
    """The worker's own clock decides when its lease ends."""
    ahead: dict[str, float] = {}
    born = Host.__init__

    def remember(self: Host, *args: Any, **options: Any) -> None:
        born(self, *args, **options)
        ahead[self.name] = self.wall_ahead

    def by_worker(original: Rule) -> Rule:
        def grant(state: EventState, command: Any, now: float) -> Applied | Refused:
            applied = original(state, command, now)
            if isinstance(applied, Refused) or applied.state.event.expires_ts is None:
                return applied
            event = applied.state.event
            wrong = (event.expires_ts or 0.0) + ahead.get((event.worker_id or "").partition(":")[0], 0.0)
            return replace(applied, state=replace(applied.state, event=replace(event, expires_ts=wrong)))

        return grant

    with patch.object(Host, "__init__", remember), rule(Grant, by_worker), rule(Renew, by_worker):
        yield


def ignored_renew_error() -> AbstractContextManager[Any]:
    return patch.object(Heartbeat, "_give_up", lambda self, held, reason: None)


def identity_by_host_and_pid() -> AbstractContextManager[Any]:
    """A token is host, pid and a counter: after a restart with the same pid a worker repeats its old tokens."""
    asked: Counter[Host] = Counter()

    def token(_incarnation: str = "") -> str:
        asked[host_here()] += 1
        return f"{default_worker_id()}:{asked[host_here()]}"

    return patch.object(worker_module, "new_token", token)


def liveness_by_worker_row() -> AbstractContextManager[Any]:
    """A claim lasts as long as a node is registered under the worker's name."""

    def expire(
        self: MemoryCore, queue: BusQueue, max_attempts: int | None, now: float, limit: int | None = None
    ) -> int:
        rows = [key[1] for known in self._handlers.values() for key, one in known.items() if one.lives(now)]
        alive = {row.rpartition(":")[0] for row in rows}
        gone = [
            state
            for state in (self._states[id_] for id_ in sorted(queue.live))
            if state.event.status is EventStatus.PROCESSING and state.event.worker_id not in alive
        ]
        for state in gone[:limit]:
            lost = replace(state, event=replace(state.event, expires_ts=now))
            applied = transition.transition(lost, Expire(max_attempts), now)
            if isinstance(applied, Applied):
                self._apply(state, applied, now)
        return len(gone)

    return patch.object(MemoryCore, "_expire", expire)


@contextmanager
def attempt_counted_at_failure() -> Iterator[None]:
    def uncounted(original: Rule) -> Rule:
        def grant(state: EventState, command: Grant, now: float) -> Applied | Refused:
            less = replace(state, event=replace(state.event, attempts=state.event.attempts - 1))
            return original(less, command, now)

        return grant

    def counted(original: Rule) -> Rule:
        def fail(state: EventState, command: Fail, now: float) -> Applied | Refused:
            more = replace(state, event=replace(state.event, attempts=state.event.attempts + 1))
            applied = original(more, command, now)
            return Applied(state) if isinstance(applied, Applied) and not applied.records else applied

        return fail

    with rule(Grant, uncounted), rule(Fail, counted):
        yield


@contextmanager
def wake_only_on_notify() -> Iterator[None]:
    """Workers do not poll, and a worker that begins to wait after a hint misses it."""

    async def deaf(self: MemoryStore, bus: str, *, timeout: float) -> bool:  # noqa: ASYNC109
        hint = self._waiting.add(bus)
        try:
            async with asyncio.timeout(timeout):
                await hint
        except TimeoutError:
            return False
        return True

    async def listen(self: Poller) -> None:
        while True:
            await self._idle.wait()
            if await self._hint(self._poll_interval):
                self.nudge()

    with patch.object(MemoryStore, "wait_for_work", deaf), patch.object(Poller, "listen", listen):
        yield


def settle_again_without_request_key() -> AbstractContextManager[Any]:
    """The store refuses the repeat of a settlement whose reply was lost."""
    return patch.object(transition, "_repeat", lambda state, ref, actions: Refused(NOT_YOURS))


def publish_again_without_request_key() -> AbstractContextManager[Any]:
    def add(self: MemoryStore, new: NewEvent, now: float) -> Event:
        applied = publish(new, self._next_id, now)
        self._next_id += 1
        event = applied.state.event
        self._ids[event.event_id] = event.id
        self._apply(None, applied, now)
        return event

    return patch.object(MemoryStore, "_add", add)


def cursor_by_event_id() -> AbstractContextManager[Any]:
    """A reader uses ``WHERE id > last`` and misses entries of earlier events that are logged late."""
    original = MemoryLog.page

    def page(self: MemoryLog, after: str, until: str | None, limit: int) -> LogPage:
        whole = original(self, "", until, 1_000_000).entries
        last = next((entry.id for entry in whole if entry.position == after), 0)
        entries = [entry for entry in whole if entry.id >= last and int(entry.position) > int(after or 0)][:limit]
        return LogPage(entries, entries[-1].position if entries else after)

    return patch.object(MemoryLog, "page", page)


def broker_ack_as_truth() -> AbstractContextManager[Any]:
    """A node takes a settlement for applied because the broker has the record."""
    original = ReplicatedLogStore.settle_events

    async def settle(self: ReplicatedLogStore, settlements: Any, **options: Any) -> SettleAnswer:
        answer = await original(self, settlements, **options)
        outcomes: list[Settled | LeaseLost] = [
            Settled(one.ref.id, EventStatus.COMPLETED) if isinstance(outcome, LeaseLost) else outcome
            for one, outcome in zip(settlements, answer.outcomes, strict=True)
        ]
        return SettleAnswer(outcomes, answer.claims)

    return patch.object(ReplicatedLogStore, "settle_events", settle)


def reset_all_at_start() -> AbstractContextManager[Any]:
    original = EventBus.start

    async def start(self: EventBus) -> EventBus:
        await original(self)
        try:
            page = await self.store.find(EventQuery(bus=self.name, statuses=(EventStatus.PROCESSING,)))
            for event in page.events:
                await self.store.reset_event(event.id, reason="left behind by a crash")
        except DurabusError:
            pass
        return self

    return patch.object(EventBus, "start", start)


def renewal_without_fence() -> AbstractContextManager[Any]:
    return rule(Renew, with_current_claim)


def complete_without_fence() -> AbstractContextManager[Any]:
    return rule(Complete, with_current_claim)


def fence_that_stands_still() -> AbstractContextManager[Any]:
    def same(original: Rule) -> Rule:
        def grant(state: EventState, command: Grant, now: float) -> Applied | Refused:
            back = min(state.event.fence, 1)
            return original(replace(state, event=replace(state.event, fence=state.event.fence - back)), command, now)

        return grant

    return rule(Grant, same)


def serial_lock_not_looked_at() -> AbstractContextManager[Any]:
    original = claim_lock
    return patch.object(memory_claims, "claim_lock", lambda lock, **options: original(None, **options))


def next_of_a_serial_batch_begun_early() -> AbstractContextManager[Any]:
    original = Slots.put

    def put(self: Slots, claimed: ClaimedEvent) -> None:
        original(self, claimed)
        asyncio.get_running_loop().call_soon(self.go)

    return patch.multiple(Slots, put=put, _may_begin=lambda self: bool(self._queue))


def key_not_looked_at() -> AbstractContextManager[Any]:
    return patch.object(OrderingKeys, "is_next", lambda self, event: True)


def retry_at_once() -> AbstractContextManager[Any]:
    def hasty(original: Rule) -> Rule:
        return lambda state, command, now: original(
            state, command if command.delay is None else replace(command, delay=0.0), now
        )

    return rule(Fail, hasty)


@contextmanager
def timeout_counted_as_success() -> Iterator[None]:
    async def optimistic(*args: Any) -> Any:
        outcome = await execute(*args)
        if outcome.status is ResultStatus.TIMED_OUT:
            return replace(outcome, status=ResultStatus.SUCCEEDED, error=None)
        return outcome

    with patch.object(dispatcher, "execute", optimistic), patch.object(attempt, "execute", optimistic):
        yield


def lease_counted_from_the_answer() -> AbstractContextManager[Any]:
    """A worker runs events of a claim whose reply came late."""
    return patch.object(ClaimTable, "came_late", lambda self, deadline, claims: False)


def deadline_behind_a_cancelled_call() -> AbstractContextManager[Any]:
    """The heartbeat waits for a store that takes its time to end a cancelled renewal."""

    async def held_up(call: Coroutine[Any, Any, Any], seconds: float) -> Any:
        async with asyncio.timeout(seconds):
            return await call

    return patch.object(heartbeat, "in_time", held_up)


@contextmanager
def deadline_noticed_a_beat_later() -> Iterator[None]:
    """The heartbeat checks deadlines only when it renews, and gives a claim past its deadline one more try."""
    original = Heartbeat._give_up

    def give_up(self: Heartbeat[Any], held: Any, reason: str) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        if reason != "could not be renewed in time" or held.deadline <= loop.local_time():
            original(self, held, reason)

    patches = patch.multiple(Heartbeat, _give_up=give_up, _pause=lambda self, _began: self._tick)
    with patch.object(heartbeat, "TICK", 1 / 3), patches:
        yield


def lock_counted_from_the_answer() -> AbstractContextManager[Any]:
    """A holder works under a lock whose reply came late."""
    return patch.object(durabus.queue.locks, "SAFETY", float("inf"))


def late_settlement_after_a_newer_grant() -> AbstractContextManager[Any]:
    """The store takes the last holder but one for the holder, as if no worker had claimed the event since."""

    def overtaken(original: Rule) -> Rule:
        def complete(state: EventState, command: Complete, now: float) -> Applied | Refused:
            ref, event = command.ref, state.event
            if ref.fence == event.fence - 1 and state.token is not None and event.status is EventStatus.PROCESSING:
                command = replace(command, ref=ClaimRef(event.id, state.token, event.fence))
            return original(state, command, now)

        return complete

    return rule(Complete, overtaken)


def late_success_leaves_its_error() -> AbstractContextManager[Any]:
    def kept(original: Rule) -> Rule:
        def complete(state: EventState, command: Complete, now: float) -> Applied | Refused:
            outcome = original(state, command, now)
            if isinstance(outcome, Refused) or state.abandoned is None:
                return outcome
            return replace(
                outcome, state=replace(outcome.state, event=replace(outcome.state.event, errors=state.event.errors))
            )

        return complete

    return rule(Complete, kept)


def abandoned_claim_renewed() -> AbstractContextManager[Any]:
    """The store replies that it renewed an abandoned claim, and leaves the event in the queue."""

    def renewed(original: Rule) -> Rule:
        def renew(state: EventState, command: Renew, now: float) -> Applied | Refused:
            outcome = original(state, command, now)
            return Applied(state) if isinstance(outcome, Refused) and state.settles(command.ref) else outcome

        return renew

    return rule(Renew, renewed)


PLANTED = (
    PlantedBug("rescue without state guard", rescue_without_state_guard),
    PlantedBug("complete without fence", complete_without_fence),
    PlantedBug("late settlement after a newer grant", late_settlement_after_a_newer_grant),
    PlantedBug("late success leaves its error", late_success_leaves_its_error),
    PlantedBug("abandoned claim renewed", abandoned_claim_renewed),
    PlantedBug("lease by worker clock", lease_by_worker_clock),
    PlantedBug("ignored renew error", ignored_renew_error),
    PlantedBug("identity by host:pid", identity_by_host_and_pid),
    PlantedBug("liveness by worker row", liveness_by_worker_row),
    PlantedBug("attempt counted at failure", attempt_counted_at_failure),
    PlantedBug("wake only on NOTIFY", wake_only_on_notify),
    PlantedBug("settle again without request key", settle_again_without_request_key),
    PlantedBug("publish again without request key", publish_again_without_request_key),
    PlantedBug("`id > last` cursor", cursor_by_event_id),
    PlantedBug("broker ack as truth", broker_ack_as_truth, "replicated_log"),
    PlantedBug("reset-all at start", reset_all_at_start),
    PlantedBug("renewal without fence", renewal_without_fence),
    PlantedBug("fence that stands still", fence_that_stands_still),
    PlantedBug("serial lock not looked at", serial_lock_not_looked_at),
    PlantedBug("next event of a serial batch begun early", next_of_a_serial_batch_begun_early),
    PlantedBug("ordering key not looked at", key_not_looked_at),
    PlantedBug("retry at once", retry_at_once),
    PlantedBug("timeout counted as success", timeout_counted_as_success),
    PlantedBug("lease counted from the answer", lease_counted_from_the_answer),
    PlantedBug("lock counted from the answer", lock_counted_from_the_answer),
    PlantedBug("deadline noticed a beat later", deadline_noticed_a_beat_later),
    PlantedBug("deadline behind a cancelled call", deadline_behind_a_cancelled_call, "replicated_log"),
)

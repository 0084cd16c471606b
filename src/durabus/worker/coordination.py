"""The node that claimed an event coordinates it: it offers the handlers of other nodes, and awaits their results."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from msgspec.structs import replace

from durabus.clock import monotonic
from durabus.errors import StoreClosedError, StoreError
from durabus.model.claim import Claim
from durabus.model.payload import encode_payload
from durabus.model.policies import RetryPolicy
from durabus.model.result import OFFERED_AT_ONCE, HandlerResult, offer
from durabus.model.statuses import SETTLED, ResultStatus
from durabus.store.contract import EventStore
from durabus.worker.handler import Handler
from durabus.worker.steps import SEPARATOR

logger = logging.getLogger("durabus.worker")

LOOK_SOON = 0.05
"""Seconds until the first read of the results of other nodes, if no hint comes before."""
LOOK_SELDOM = 0.5
"""Longest pause between two reads. Each pause after a read without news is ``LONGER`` as long as the one before."""
LONGER = 1.5
HINT_GAP = 0.005
"""Seconds between a hint and the read: several handlers that end together share one read."""
SHORT_SLEEP = 1.0
"""An event keeps its claim while a remote handler sleeps up to this many seconds. For a longer sleep it goes back."""
CLOCK_KEPT = 10.0
"""Seconds for which the difference between the clocks of the store and of this process is remembered."""

FAILED = frozenset({ResultStatus.TRANSIENT, ResultStatus.TIMED_OUT})
NO_NODE = "Cancelled: it never started, and no node has this handler any more"
RETRY_IN = "retry_in"
"""The key of a failed result under which the node that ran the handler says in how many seconds it may run again."""
WAITS = "waits"
"""The key under which a handler that waits for events names its waits: the release of the event stores them."""


class SharePlan(NamedTuple):
    """Which handlers of an event this node runs under its claim, and which ones workers claim one by one."""

    here: tuple[Handler, ...]
    offers: tuple[HandlerResult, ...]
    """New offers."""
    awaited: frozenset[str]
    """All handlers that are offered or claimed: their results decide how the attempt ends."""
    absent: tuple[str, ...]
    """Handlers that no live node has."""
    gone: tuple[HandlerResult, ...]
    """Results that end the offers of handlers that no node has any more."""


class RemoteEnd(NamedTuple):
    """How the attempt ended for the handlers on other nodes."""

    failures: tuple[str, ...] = ()
    waits: tuple[float, ...] = ()
    """Seconds until each of the failed handlers may run again."""
    goes_on_in: float | None = None
    """Seconds until the first handler that sleeps goes on."""
    event_waits: tuple[HandlerResult, ...] = ()
    """The waits of handlers that wait for events."""
    absent: tuple[str, ...] = ()
    """Handlers that no live node has."""


def plan_of(
    claim: Claim,
    handlers: tuple[Handler, ...],
    others: Collection[str],
    is_live: Callable[[str], bool],
    *,
    serial: bool,
) -> SharePlan:
    """Decide where the handlers of an event run.

    A handler that is offered or claimed already, by the node that coordinated the event before, is awaited and never
    run here: so no handler runs twice at once. If there are such handlers, all others of a serial event are offered
    too, because only the lock of the handlers keeps them from running together.
    """
    results = {result.handler_id: result for result in claim.results}
    known = {handler.id for handler in handlers} | set(others)
    offered = {result.handler_id for result in claim.results if result.is_offered}
    # In the order of the results: a set of texts has another order in every process.
    never_begun = [one for one in claim.results if one.handler_id in offered - known and _never_begun(one, claim)]
    held = {one for one in offered - known if results[one].status is ResultStatus.PROCESSING}
    left = [one for one in others if one not in offered and not _is_spent(results.get(one))]
    to_offer = [one for one in left if is_live(one)]
    here = tuple(handler for handler in handlers if handler.id not in offered)
    awaited = (offered & known) | held
    if serial and awaited:
        to_offer += [handler.id for handler in here if not _is_spent(results.get(handler.id))]
        here = ()
    return SharePlan(
        here,
        tuple(offer(one, _before_its_wait(results.get(one))) for one in to_offer),
        frozenset(awaited.union(to_offer)),
        tuple(one for one in left if one not in to_offer),
        tuple(replace(r, status=ResultStatus.CANCELLED, error=NO_NODE, expires_ts=None) for r in never_begun),
    )


def _before_its_wait(result: HandlerResult | None) -> HandlerResult | None:
    """Return the result of a handler with one attempt less if that attempt only ended in a wait."""
    waited = result is not None and result.status is ResultStatus.PENDING and any(_event_waits(result))
    return replace(result, attempts=max(result.attempts - 1, 0)) if result is not None and waited else result


def _never_begun(result: HandlerResult, claim: Claim) -> bool:
    """Whether the handler is offered and has not begun in any attempt, as far as the results of its event show.

    One that has begun has an error or the time of a call, a worker has claimed it, or it has kept a step.
    """
    if result.status is not ResultStatus.PENDING or result.expires_ts != OFFERED_AT_ONCE or result.error is not None:
        return False
    if result.attempts or result.fence or result.execution_time_ms is not None:
        return False
    return not any(one.status is ResultStatus.KEPT and handler_of(one) == result.handler_id for one in claim.results)


def handler_of(step: HandlerResult) -> str:
    """Return the id of the handler that has kept the step."""
    return step.handler_id.partition(SEPARATOR)[0]


def _is_spent(result: HandlerResult | None) -> bool:
    """Whether no further attempt changes the result: the handler is done, or its node says that no attempt is left."""
    return result is not None and (result.status in SETTLED or (result.status in FAILED and retry_in(result) is None))


def retry_in(result: HandlerResult) -> float | None:
    """Seconds until a failed handler may run again; None if its node said that no attempt is left."""
    value = result.value if result.value_json is not None else None
    return value.get(RETRY_IN, 0.0) if isinstance(value, dict) else 0.0


def failed_result(
    handler_id: str, status: ResultStatus, error: str, retry: float | None, value: dict[str, Any] | None = None
) -> HandlerResult:
    """Return the result of a failed handler for the node that coordinates the event."""
    text = encode_payload({**(value or {}), RETRY_IN: retry}, "handler result")
    return HandlerResult(handler_id=handler_id, status=status, error=error, value_json=text)


def sleeping_result(handler_id: str, delay: float, waits: Iterable[HandlerResult]) -> HandlerResult:
    """Return the result of a handler that waits for events. It is offered when its own event is claimed again.

    It carries the waits to the node that coordinates the event. Only a settlement of the event may store them: that
    step looks for events that have come already, and none can come between the look and the release.
    """
    texts = {wait.handler_id: wait.value_json for wait in waits}
    return HandlerResult(
        handler_id=handler_id,
        status=ResultStatus.PENDING,
        value_json=encode_payload({RETRY_IN: delay, WAITS: texts}, "handler result"),
    )


def _event_waits(result: HandlerResult) -> Iterator[HandlerResult]:
    value = result.value
    texts = value.get(WAITS, {}) if isinstance(value, dict) else {}
    for name, text in texts.items():
        yield HandlerResult(handler_id=name, status=ResultStatus.WAITING, attempts=1, value_json=text)


def timed_out_elsewhere(
    claim: Claim, awaited: Collection[str], limit: str
) -> tuple[RemoteEnd, tuple[HandlerResult, ...]]:
    """End the attempt for handlers on other nodes after the timeout of the event. The results end the claims on them.

    The retry policy of a handler is known to its own node only, so the default policy decides.
    """
    event, policy = claim.event, RetryPolicy()
    most = event.max_attempts if event.max_attempts is not None else policy.max_attempts
    spent = most is not None and event.attempts >= most
    delay = None if spent else policy.delay_before(event.attempts + 1, random.random)
    stopped = []
    for result in claim.results:
        if result.handler_id in awaited and result.status not in SETTLED:
            ran = result.status is ResultStatus.PROCESSING
            error = f"EventTimeout: stopped {'while it ran' if ran else 'before it started'}, {limit}"
            status = ResultStatus.TIMED_OUT if ran else ResultStatus.PENDING
            stopped.append(replace(failed_result(result.handler_id, status, error, delay), attempts=result.attempts))
    texts = tuple(f"{result.handler_id}: {result.error}" for result in stopped)
    return RemoteEnd(texts, (delay,) if stopped and delay is not None else ()), tuple(stopped)


class AwaitedHandlers:
    """An event that waits for handlers on other nodes."""

    __slots__ = ("awaited", "done", "first", "id", "mine", "results")

    def __init__(self, id_: int, awaited: Collection[str], mine: Collection[str], *, first: bool) -> None:
        self.id = id_
        self.awaited = awaited
        self.mine = mine
        """The awaited handlers that this node has as well."""
        self.first = first
        self.results: tuple[HandlerResult, ...] = ()
        self.done: asyncio.Future[tuple[HandlerResult, ...]] = asyncio.get_running_loop().create_future()


class Coordinator:
    """Waits for the handlers of all events that this node coordinates, with one read of the store for all of them.

    ``is_live`` tells whether another live node has a handler; ``route`` returns this node's own handlers for a type.
    ``want`` is called with handlers that this node should claim itself.
    """

    def __init__(
        self,
        store: EventStore,
        *,
        is_live: Callable[[str], bool],
        route: Callable[[str], tuple[Handler, ...]],
        want: Callable[[Counter[str]], None],
    ) -> None:
        self._store = store
        self.is_live = is_live
        self._route = route
        self._want = want
        self._wanted: Counter[str] = Counter()
        self._waiting: dict[AwaitedHandlers, None] = {}
        """Kept in arrival order. A set would iterate in a different order in every run."""
        self._news = asyncio.Event()
        self._pause = LOOK_SOON
        self._clock: tuple[float, float] | None = None
        self.task: asyncio.Task[None] | None = None
        """The task that reads results while an event waits for them."""

    def hint(self) -> None:
        """Read the results soon: a handler may have ended."""
        if self._waiting:
            self._news.set()

    async def wait(self, claim: Claim, awaited: Collection[str], *, first: bool) -> tuple[HandlerResult, ...]:
        """Return all results of the event once each awaited handler has ended its call, sleeps, or has no live node.

        With ``first``, also once one of them has returned a value.
        """
        mine = Counter(handler.id for handler in self._route(claim.event.type) if handler.id in awaited)
        waiting = AwaitedHandlers(claim.event.id, awaited, mine, first=first)
        self._waiting[waiting] = None
        self._wanted += mine
        if mine:
            self._want(self._wanted)
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._watch(), name="durabus-coordinator")
        elif self._pause > LOOK_SOON:
            self._news.set()
        try:
            return await waiting.done
        finally:
            self._waiting.pop(waiting, None)
            self._wanted -= mine

    async def read(self, id_: int) -> tuple[HandlerResult, ...]:
        """Return the results of an event as they are now."""
        return (await self._store.read_results([id_]))[0]

    async def end_of(self, results: Iterable[HandlerResult], awaited: Collection[str]) -> RemoteEnd:
        """Return how the attempt ended for the awaited handlers."""
        now = await self._now()
        failures: list[str] = []
        waits: list[float] = []
        sleeps: list[float] = []
        absent: list[str] = []
        event_waits: list[HandlerResult] = []
        for result in results:
            if result.handler_id not in awaited or result.status in SETTLED:
                continue
            if result.status in FAILED:
                failures.append(f"{result.handler_id} on {result.worker_id}: {result.error or result.status}")
                delay = retry_in(result)
                waits += [] if delay is None else [delay]
            elif result.status is ResultStatus.PENDING and result.expires_ts is None:
                sleeps.append(retry_in(result) or 0.0)
                event_waits += _event_waits(result)
            elif result.status is ResultStatus.PENDING and (result.expires_ts or 0.0) > now:
                sleeps.append((result.expires_ts or 0.0) - now)
            else:
                absent.append(result.handler_id)
        sleeps_for = min(sleeps, default=None)
        return RemoteEnd(tuple(failures), tuple(waits), sleeps_for, tuple(event_waits), tuple(absent))

    async def _watch(self) -> None:
        self._pause = LOOK_SOON
        while self._waiting:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause):
                    await self._news.wait()
                await asyncio.sleep(HINT_GAP)
            self._news.clear()
            try:
                news = await self._look()
            except StoreClosedError as error:
                for waiting in self._waiting:
                    if not waiting.done.done():
                        waiting.done.set_exception(error)
                return
            except StoreError as error:
                logger.debug("results of other nodes not read: %s", error)
                news = False
            except Exception:
                logger.exception("results of other nodes not read, trying again")
                news = False
            self._pause = LOOK_SOON if news else min(self._pause * LONGER, LOOK_SELDOM)

    async def _look(self) -> bool:
        """Read the results of all events that wait. Returns whether there was anything new."""
        waiting = list(self._waiting)
        found = await self._store.read_results([one.id for one in waiting])
        needs_clock = any(result.is_offered and result.expires_ts for results in found for result in results)
        now, news = await self._now() if needs_clock else 0.0, False
        for one, results in zip(waiting, found, strict=True):
            if one.done.done():
                continue
            news = news or results != one.results
            one.results = results
            if self._has_ended(one, now):
                one.done.set_result(results)
        return news

    def _has_ended(self, waiting: AwaitedHandlers, now: float) -> bool:
        results = {result.handler_id: result for result in waiting.results if result.handler_id in waiting.awaited}
        if waiting.first and any(r.status is ResultStatus.SUCCEEDED and r.value_json for r in results.values()):
            return True
        return len(results) == len(waiting.awaited) and all(self._is_over(r, waiting, now) for r in results.values())

    def _is_over(self, result: HandlerResult, waiting: AwaitedHandlers, now: float) -> bool:
        """Whether the handler has ended its call in this attempt, sleeps for long, or has no live node."""
        expires = result.expires_ts
        if not result.is_offered or expires is None:
            return True
        if expires > now:
            return result.status is ResultStatus.PENDING and expires > now + SHORT_SLEEP
        return not (result.handler_id in waiting.mine or self.is_live(result.handler_id))

    async def _now(self) -> float:
        """The time by the clock of the store."""
        local = monotonic()
        if self._clock is None or local > self._clock[1] + CLOCK_KEPT:
            self._clock = await self._store.now() - local, local
        return local + self._clock[0]

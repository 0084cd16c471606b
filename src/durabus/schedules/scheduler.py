"""The scheduler: a part of every node that serves a bus. It publishes the ticks of the bus's schedules.

Every node claims due states as a worker claims events. The step that completes a state stores its ticks and the next
state, so a node that dies at any moment leaves either all of them or none, and another node claims the state again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from durabus.errors import DurabusError, EventNotFound, StoreClosedError, StoreError
from durabus.model.claim import Claim, ClaimRequest, default_worker_id, new_token
from durabus.model.event import Event, NewEvent
from durabus.model.settlement import Cancel, Complete, Fail, Release, Settlement
from durabus.model.statuses import EventStatus, Takeover
from durabus.schedules.firing import Replaced, fire
from durabus.schedules.reading import LIVE
from durabus.schedules.schedule import Overlap, Schedule, ScheduleAction, state_bus, state_event, state_id, state_of
from durabus.schedules.schedules import REPLACED
from durabus.schedules.timing import milliseconds
from durabus.store.contract import EventStore
from durabus.store.outage import LATE, Outage
from durabus.worker.poller import Poller
from durabus.worker.process_watch import ProcessWatch

logger = logging.getLogger("durabus.schedules")

SCHEDULES = "schedules"
"""The name of this caller, if it shares an outage with the worker of the bus."""
CLAIMED_AT_ONCE = 100
LEASE = 10.0
"""Seconds. A worker holds a state for milliseconds; this is how long one that stands still delays a tick."""
LOOK_EVERY = 5.0
"""Maximum seconds until a node finds a due state without a hint."""
FIRST_DELAY, LONGEST_DELAY = 10.0, 3_600.0
"""Seconds until a state that this node could not handle is tried again, twice as long each time."""
STOP_WITHIN = 1.0
"""Seconds that a shutdown waits for the store to take what a node has decided."""
AWAY_GRACE = 0.25
"""Seconds that a shutdown waits for cancelled calls of a store that is away."""
STATES_KEPT = 10_000
"""How many ended states of all schedules of a bus the store keeps."""
TRIM_AFTER = 1_000


async def _nothing() -> None:
    """Do nothing before a claim."""


class Scheduler:
    """Handles the due states of the schedules of one bus.

    ``prepare`` is called at the start and after each ``nudge``. ``nodes`` returns how many nodes serve the bus.
    """

    def __init__(
        self,
        store: EventStore,
        bus: str,
        *,
        takeover: Takeover = Takeover.PRESENCE,
        outage: Outage | None = None,
        nodes: Callable[[], int] = lambda: 1,
        prepare: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self._store = store
        self._bus = bus
        self._prepare = prepare
        self._wake = asyncio.Event()
        self._outage = outage or Outage(logger, f"the store of bus {bus!r} fails")
        self._poller = Poller(
            store,
            state_bus(bus),
            poll_interval=LOOK_EVERY,
            wake=self._wake.set,
            nodes=nodes,
            outage=self._outage,
            polls=lambda: self._knows_any,
            first_line=LATE,  # the worker of the bus reports it too
        )
        self._watch = ProcessWatch.of(store, takeover)
        self._lease = max(LEASE, 2 * store.features.minimum_lease)
        self._knows_any = False
        """Whether this node has ever claimed a state. Until then it only looks at the store now and then."""
        self._holding: list[Claim] = []
        self._settled = 0
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to claim due states."""
        if self._tasks:
            return
        self._watch.join(self._holds)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._serve(), name=f"durabus-schedules-{self._bus}"),
            loop.create_task(self._listen(), name=f"durabus-schedules-listen-{self._bus}"),
        ]

    def nudge(self) -> None:
        """Look now: there may be something to do."""
        self._poller.nudge()

    async def stop(self, timeout: float) -> None:  # noqa: ASYNC109  (the whole of it is bounded)
        """Finish what is under way, and claim nothing more. Repeatable.

        It waits a second at most, and less than the worker does for a store that is away. What it still holds then is
        free when the lease is over.
        """
        if self._stopping or not self._tasks:
            return
        self._stopping = True
        self._wake.set()
        serving, listening = self._tasks
        listening.cancel()
        await asyncio.wait({serving}, timeout=min(timeout, STOP_WITHIN))
        serving.cancel()
        # The worker of the bus uses the watch too. It stops after this, and tells the store.
        self._watch.drop(self._holds)
        await asyncio.wait(self._tasks, timeout=AWAY_GRACE)

    def _holds(self) -> bool:
        return bool(self._holding)

    async def _listen(self) -> None:
        with suppress(StoreClosedError):
            await self._poller.listen()

    async def _serve(self) -> None:
        await self._watch.shown()
        asked: ClaimRequest | None = None
        settlements: list[Settlement] = []
        while self._holding or not self._stopping:
            if not (self._holding or self._poller.should_claim):
                self._wake.clear()
                await self._wake.wait()
                continue
            try:
                if self._holding and not settlements:
                    settlements = await self._decide(self._holding)
                if not self._stopping:
                    if asked is None and not self._holding:
                        await self._prepare()
                    asked = asked or self._request()
                claims = await self._exchange(settlements, asked)
                settlements, self._holding = [], claims
                self._knows_any = self._knows_any or bool(claims)
                if asked is not None:
                    self._poller.on_claimed(len(claims), asked.limit)
                    asked = None
                self._outage.answered(SCHEDULES)
            except StoreClosedError:
                return
            except Exception as error:  # noqa: BLE001  (whatever it was, the schedules go on)
                pause = self._outage.failed(error, SCHEDULES, unforeseen=not isinstance(error, DurabusError))
                await asyncio.sleep(pause)

    def _request(self) -> ClaimRequest:
        return ClaimRequest(
            bus=state_bus(self._bus),
            worker_id=default_worker_id(),
            token=new_token(self._watch.incarnation),
            limit=CLAIMED_AT_ONCE,
            lease=self._lease,
        )

    async def _exchange(self, settlements: Sequence[Settlement], asked: ClaimRequest | None) -> list[Claim]:
        """Settle what was claimed before, and claim what is due now."""
        if not settlements:
            return [] if asked is None else await self._store.claim_next_events(asked)
        answer = await self._store.settle_events(settlements, then_claim=asked)
        self._settled += len(settlements)
        if self._settled >= TRIM_AFTER:
            self._settled = 0
            await self._store.cleanup_excess_events(state_bus(self._bus), keep=STATES_KEPT)
        return answer.claims

    async def _decide(self, claims: Sequence[Claim]) -> list[Settlement]:
        """Return the settlements of claimed states."""
        decided: list[Settlement] = []
        states: list[tuple[Claim, Schedule]] = []
        for claim in claims:
            try:
                states.append((claim, state_of(claim.event)))
            except DurabusError as error:
                decided.append(_failed(claim, error))
        known = await self._known(states)
        published: list[NewEvent] = []
        following: list[NewEvent] = []
        for claim, state in states:
            try:
                settlement = await self._settlement(claim, state, known)
            except StoreError:
                raise
            except (DurabusError, ValueError, OverflowError) as error:
                settlement = _failed(claim, error)
            if not self._store.features.children and settlement.children:
                *ticks, after = settlement.children
                published += ticks
                following.append(after)
                settlement = Complete(claim.ref)
            decided.append(settlement)
        if following:
            # Two steps: once the store has the next state, no node looks for the ticks of this one.
            await self._store.add_events(published)
            await self._store.add_events(following)
        return decided

    async def _known(self, states: Sequence[tuple[Claim, Schedule]]) -> dict[str, Event]:
        """Read the newer states of these schedules, and the last ticks of those that skip: one call for all."""
        wanted = [state_id(self._bus, state.name, state.number + 1) for _, state in states]
        wanted += [state.last_event_id for _, state in states if state.overlap is Overlap.SKIP and state.last_event_id]
        found = await self._store.get_events(wanted) if wanted else []
        return {event.event_id: event for event in found if event is not None}

    async def _settlement(self, claim: Claim, state: Schedule, known: dict[str, Event]) -> Settlement:
        if state_id(self._bus, state.name, state.number + 1) in known:
            return Cancel(claim.ref, REPLACED)
        replaced = None if state.action is ScheduleAction.FIRE else await self._end_replaced(state)
        if state.action is ScheduleAction.DELETE:
            return Cancel(claim.ref, "the schedule was deleted")
        now = milliseconds(claim.event.picked_ts or claim.event.due_ts)
        last = known.get(state.last_event_id or "")
        firing = fire(self._bus, state, now, last_is_live=last is not None and last.status in LIVE, replaced=replaced)
        if not firing.changes(state):
            return Release(claim.ref, state.due_in(now), reason="the schedule is not due yet")
        return Complete(claim.ref, children=(*firing.ticks, state_event(self._bus, firing.after, now)))

    async def _end_replaced(self, state: Schedule) -> Replaced | None:
        """End the state before a change, if its caller has not. Returns what a worker made of it meanwhile."""
        if state.number == 1:
            return None
        try:
            before = await self._store.cancel_event(state_id(self._bus, state.name, state.number - 1), reason=REPLACED)
        except EventNotFound:
            return None
        if before.status is not EventStatus.COMPLETED or before.picked_ts is None:
            return None
        return Replaced(milliseconds(before.picked_ts), state_of(before).runs)


def _failed(claim: Claim, error: BaseException) -> Fail:
    delay = min(FIRST_DELAY * 2.0 ** min(claim.event.retry_count, 20), LONGEST_DELAY)
    logger.error("a schedule of bus %r cannot be handled, next try in %g s: %s", claim.event.bus, delay, error)
    return Fail(claim.ref, f"{type(error).__name__}: {error}", delay)

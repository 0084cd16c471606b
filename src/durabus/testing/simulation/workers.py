"""The workers of a simulated fleet: what their handlers do, by the plan of each event, and what they record of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from durabus.bus.event_bus import EventBus
from durabus.errors import EventBusShutdownError, LeaseLost, StoreError
from durabus.model.event import Event
from durabus.model.policies import RetryPolicy
from durabus.model.result import BatchFailed, Snooze, Suspended, UnrecoverableError
from durabus.model.statuses import ResultMode
from durabus.queue.event_queue import EventQueue
from durabus.testing.history.history import Effect, StepEffect
from durabus.testing.simulation.processes import BUS, REQUESTED, TRY_AGAIN, Process
from durabus.testing.simulation.scenario import BATCH_HANDLER, EventPlan, plan_of
from durabus.worker.handler import Context
from durabus.worker.steps import WAIT_FOR

NEVER = 1e6


class WorkerProcess(Process):
    """A process with handlers, and the record of what they do."""

    def note(self, event: Event, handler: str, what: str) -> None:
        """Record what a handler does."""
        self._write(
            Effect(self._now(), self.host, event.id, event.event_id, handler, event.fence, event.attempts, what)
        )

    async def work(self, event: Event, handler: str, ctx: Context | None = None) -> EventPlan:
        """Do what the event's plan says, and record it."""
        plan, outcome = self._planned(event)
        self.note(event, handler, "start")
        try:
            if ctx is not None:
                await self._durable_verbs(ctx, handler, plan)
            await asyncio.sleep(_seconds(event, plan, outcome))
            if ctx is not None and outcome == "done" and self.scenario.awaited:
                await self._emit_child(ctx, handler, plan)
        except BaseException as error:
            self.note(event, handler, "asleep" if isinstance(error, Suspended) else "cancelled")
            raise
        self.note(event, handler, "done" if outcome == "done" else "raised")
        if outcome != "done":
            raise _error(outcome)
        return plan

    async def work_on_batch(self, events: list[Event]) -> dict[str, int]:
        """Do what the plans of all events say, at the same time, and return or raise a verdict on each."""
        plans = {event: self._planned(event) for event in events}
        for event in events:
            self.note(event, BATCH_HANDLER, "start")
        try:
            await asyncio.sleep(max(_seconds(event, *plans[event]) for event in events))
        except BaseException:
            for event in events:
                self.note(event, BATCH_HANDLER, "cancelled")
            raise
        for event, (_, outcome) in plans.items():
            self.note(event, BATCH_HANDLER, "done" if outcome == "done" else "raised")
        errors = {event: _error(outcome) for event, (_, outcome) in plans.items() if outcome != "done"}
        if errors:
            raise BatchFailed(errors)
        return {event.event_id: plan.number for event, (plan, _) in plans.items() if plan.number % 3 == 0}

    def _planned(self, event: Event) -> tuple[EventPlan, str]:
        """Return the plan of the event, and the outcome of this attempt."""
        plan = plan_of(self.scenario, event.payload["number"])
        attempt = min(event.attempts, len(plan.outcomes)) - 1
        return plan, "done" if event.payload.get("child") else plan.outcomes[attempt]

    async def _durable_verbs(self, ctx: Context, handler: str, plan: EventPlan) -> None:
        """Emit a child, unless it is awaited later; snooze; run the steps, with a sleep after the first; wait."""
        if not self.scenario.awaited:
            await self._emit_child(ctx, handler, plan)
        if plan.snooze and ctx.fence == 1:
            raise Snooze(plan.snooze)
        for number, length in enumerate(plan.steps):
            name = f"step-{number}"
            value = await ctx.step(name, partial(self._compute, ctx, handler, name), length)
            self._note_step(ctx, handler, name, "returned", value)
            if number == 0 and plan.sleep:
                await ctx.sleep(plan.sleep)
        if plan.wait is not None:
            met = await ctx.wait_for(plan.wait.type, where=plan.wait.where, timeout=plan.wait.timeout)
            self._note_step(ctx, handler, WAIT_FOR, "waited", None if met is None else met.event_id)

    async def _emit_child(self, ctx: Context, handler: str, plan: EventPlan) -> None:
        if plan.child and not ctx.event.payload.get("child") and handler == "handler-0":
            payload = {"number": plan.number, "group": plan.group, "child": True}
            if self.scenario.keyed:
                child = ctx.emit("sim.child", {**payload, "fence": ctx.fence}, key="child")
            else:
                child = ctx.emit("sim.child", payload)
            if self.scenario.awaited:
                await child

    async def _compute(self, ctx: Context, handler: str, name: str, length: float) -> str:
        self._note_step(ctx, handler, name, "computed")
        await asyncio.sleep(length)
        return f"{self.host} with fence {ctx.fence}"

    def _note_step(self, ctx: Context, handler: str, name: str, what: str, value: str | None = None) -> None:
        self._write(StepEffect(self._now(), self.host, ctx.event.id, handler, name, ctx.fence, what, value))


def _seconds(event: Event, plan: EventPlan, outcome: str) -> float:
    return NEVER if outcome == "timeout" else plan.seconds[event.attempts % len(plan.seconds)]


def _error(outcome: str) -> Exception:
    return UnrecoverableError("planned") if outcome == "unrecoverable" else ConnectionError("planned")


class BusWithoutSchedules(EventBus):
    """A bus that looks for no schedules: no scenario has any, and the calls would change what each seed does."""

    def _start_scheduler(self) -> None:
        pass


class BusWorker(WorkerProcess):
    """A worker with handlers of the bus."""

    async def run(self) -> None:
        """Start the bus. Try again until it succeeds."""
        scenario = self.scenario
        bus = self.bus = BusWithoutSchedules(
            self.store,
            name=BUS,
            retry=RetryPolicy(max_retries=scenario.max_retries, base_delay=scenario.base_delay, max_delay=4.0),
            concurrency=scenario.concurrency,
            lease=scenario.lease,
            poll_interval=scenario.lease / 2,
            mode=scenario.mode,
            handler_mode=scenario.handler_mode,
            results=ResultMode.STRICT if scenario.strict else ResultMode.SOON,
        )
        limit = 2 * scenario.lease
        for name in self._names():
            if name == BATCH_HANDLER:
                within = scenario.lease / 10
                bus.subscribe("sim.*", self.work_on_batch, id=name, timeout=limit, batch=scenario.batch, within=within)
            else:
                bus.subscribe("sim.*", self._handler(name), id=name, timeout=limit)
        with contextlib.suppress(EventBusShutdownError):  # shut down before it had started
            await _until_stored(bus.start)

    def _names(self) -> tuple[str, ...]:
        """Return the names of the handlers that this worker has."""
        names = self.scenario.handler_names
        if self.scenario.split:
            place = int(self.host.partition(".")[0].rpartition("-")[2])
            return (names[place % len(names)],)
        return names

    def _handler(self, name: str) -> Callable[[Event, Context], Any]:
        async def handle(event: Event, ctx: Context) -> int | str | None:
            plan = await self.work(event, name, ctx)
            if event.type == REQUESTED:
                return f"{name} on {self.host} with fence {ctx.fence}"
            return plan.number if plan.number % 3 == 0 else None

        return handle


class QueueWorker(WorkerProcess):
    """A worker that polls and finalizes events through ``EventQueue``."""

    async def run(self) -> None:
        """Work on one event after the other."""
        queue = EventQueue(self.store, bus=BUS, abandoned_after=self.scenario.lease)
        while not self.done:
            try:
                event = await queue.poll()
                if event is None:
                    await asyncio.sleep(TRY_AGAIN)
                    continue
                await self._one(queue, event)
            except StoreError:
                await asyncio.sleep(TRY_AGAIN)

    async def _one(self, queue: EventQueue, event: Event) -> None:
        try:
            async with asyncio.timeout(self.scenario.lease * 0.8):
                await self.work(event, "queue")
            error: tuple[BaseException, ...] = ()
        except (TimeoutError, ConnectionError) as raised:
            if event.attempts < 3:  # noqa: PLR2004  (its lease runs out)
                return
            error = (raised,)
        except UnrecoverableError as raised:
            error = (raised,)
        for _ in range(3):
            try:
                await queue.finalize(event.id, error_results=error)
            except LeaseLost:
                return
            except StoreError:
                await asyncio.sleep(TRY_AGAIN)
            else:
                return


async def _until_stored(action: Callable[[], Any]) -> None:
    while True:
        try:
            await action()
        except StoreError:
            await asyncio.sleep(TRY_AGAIN)
        else:
            return

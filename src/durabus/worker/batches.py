"""Batches: events wait until a batch handler takes them as one list, and each event gets its own outcome.

An event that waits for its batch keeps its claim and yields its slot. A batch that runs uses one slot.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from durabus.clock import milliseconds_since, perf_counter
from durabus.errors import ConfigurationError, InvalidEventError, PayloadDecodeError
from durabus.model.event import Event
from durabus.model.result import BatchFailed, Success
from durabus.model.statuses import ResultStatus
from durabus.worker.batch import BatchContext, BatchOptions, argument_of
from durabus.worker.execution import (
    HandlerOutcome,
    OnError,
    checked,
    from_end,
    from_exception,
    from_return,
    in_thread,
    run_in_time,
)
from durabus.worker.handler import Context, Handler
from durabus.worker.progress import EventProgress
from durabus.worker.telemetry import SlowWarning
from durabus.worker.threads import Closed, HandlerThreads, NotStarted, ThreadCall

Verdict = tuple[HandlerOutcome | NotStarted, BaseException | None]
"""The outcome of an event, and the error that it came from."""


class Member:
    """One event that waits for its batch, or runs in it."""

    __slots__ = ("_joined", "_progress", "_yielded", "argument", "context", "event", "variables", "verdict")

    def __init__(self, context: Context, argument: Any, progress: EventProgress) -> None:
        self.context = context
        self.event = context.event
        self.argument = argument
        self.variables = contextvars.copy_context()
        self.verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._progress = progress
        self._yielded = False
        self._joined = perf_counter()

    def time_at(self, instant: float) -> float:
        """The time by the clock of the store at an instant of ``perf_counter``, at most as late as it really is."""
        return (self.event.picked_ts or 0.0) + instant - self._joined

    @property
    def has_left(self) -> bool:
        """Whether its claim was lost or given back, or its attempt is over: its verdict is dropped."""
        return self.verdict.cancelled()

    def yield_slot(self) -> None:
        """Let another event run while this one waits."""
        self._yielded = True
        self._progress.yield_slot()

    def take_slot(self) -> None:
        """Note that the event runs again and uses its slot."""
        if self._yielded:
            self._yielded = False
            self._progress.resume()

    def fresh_variables(self) -> contextvars.Context:
        """Return context variables without those of the event: a batch belongs to several events."""
        return self._progress.fresh_variables()


class BatchCall:
    """One call of a batch handler."""

    def __init__(self, handler: Handler, members: Sequence[Member], threads: HandlerThreads) -> None:
        self._handler = handler
        self.members = members
        self._threads = threads
        self._began = 0.0
        """The time of the call by the clock of the store."""

    @property
    def is_left(self) -> bool:
        """Whether all events have left it."""
        return all(member.has_left for member in self.members)

    async def run(self, context: BatchContext) -> None:
        """Call the handler, and give each event its verdict."""
        began = perf_counter()
        self._began = self.members[0].time_at(began)
        try:
            returned = await self._call(context)
            verdicts = self._judge(returned, milliseconds_since(began))
        except NotStarted as error:
            verdicts = [(error, None)] * len(self.members)
        except Closed:
            raise  # Python closes this coroutine, as when its loop is gone: the events come back with their leases
        except BaseException as raised:
            verdicts = self._judge_end(raised, milliseconds_since(began))
            if isinstance(raised, asyncio.CancelledError) and _is_cancelled():
                self._deliver(verdicts)
                raise
        self._count([outcome for outcome, _ in verdicts if isinstance(outcome, HandlerOutcome)])
        self._deliver(verdicts)

    def _call(self, context: BatchContext) -> Coroutine[Any, Any, Any]:
        handler, items = self._handler, [member.argument for member in self.members]
        if handler.is_async:
            return self._in_time(handler.call(items, context))
        call = ThreadCall(handler, context.events, self._threads, partial(handler.call, items, context))
        return in_thread(handler, context.events[0], call)

    async def _in_time(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        handler, first = self._handler, self.members[0].event
        slow = handler.slow_timeout
        with nullcontext() if slow is None else SlowWarning(first, handler.id, slow):
            return await run_in_time(coroutine, handler.timeout)

    def _judge(self, returned: Any, milliseconds: float) -> list[Verdict]:
        """Return the verdicts of a call that returned. Raises if it named an event that is not in the batch."""
        if isinstance(returned, Success):
            returned = returned.value
        if isinstance(returned, BaseException):
            raise returned
        if returned is None:
            returned = {}
        if not isinstance(returned, Mapping):
            raise ConfigurationError(
                f"batch handler {self._handler.id} returned {type(returned).__name__}: it must return None, or a "
                "mapping from event_id to a value or an error"
            )
        values = {key.event_id if isinstance(key, Event) else key: value for key, value in returned.items()}
        foreign = values.keys() - {member.event.event_id for member in self.members}
        if foreign:
            raise InvalidEventError(
                f"batch handler {self._handler.id} gave a verdict on {min(map(str, foreign))!r}, which is not "
                f"the event_id of one of the {len(self.members)} events of its batch: all of them have failed"
            )
        return [self._verdict(values.get(member.event.event_id), milliseconds) for member in self.members]

    def _verdict(self, value: Any, milliseconds: float) -> Verdict:
        outcome = from_return(value, milliseconds, began=self._began)
        if self._handler.result_type is not None:
            outcome = checked(self._handler, outcome)
        return outcome, value if isinstance(value, BaseException) and not outcome.is_suspended else None

    def _judge_end(self, raised: BaseException, milliseconds: float) -> list[Verdict]:
        """Return the verdicts of a call that raised: on the events that it names, or on all of them."""
        if isinstance(raised, BatchFailed):
            try:
                return self._judge(raised.errors, milliseconds)
            except InvalidEventError as foreign:
                raised = foreign
        outcome = from_end(self._handler, raised, milliseconds, began=self._began)
        return [(outcome, None if outcome.is_suspended else raised)] * len(self.members)

    def _count(self, outcomes: Sequence[HandlerOutcome]) -> None:
        """Report to the breaker. It counts a batch as one event, which failed if the handler succeeded for none."""
        breaker, batch = self._handler.breaker, self.members[0].event.id
        if any(outcome.status is ResultStatus.SUCCEEDED for outcome in outcomes):
            breaker.succeeded(batch)
        elif any(outcome.status in (ResultStatus.TRANSIENT, ResultStatus.TIMED_OUT) for outcome in outcomes):
            breaker.failed(batch)
        else:
            breaker.abandoned()

    def _deliver(self, verdicts: Sequence[Verdict]) -> None:
        for member, verdict in zip(self.members, verdicts, strict=True):
            if not member.verdict.done():
                member.verdict.set_result(verdict)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Batcher:
    """Collects the events of one handler: at most one batch waits, and any number run."""

    def __init__(
        self, handler: Handler, options: BatchOptions, threads: HandlerThreads, *, on_idle: Callable[[], object]
    ) -> None:
        self._handler = handler
        self._options = options
        self._threads = threads
        self._on_idle = on_idle
        self._inside = 0
        """The number of events that wait for an outcome."""
        self._waiting: dict[str, Member] = {}
        """The next batch, by event id, in the order in which the worker claimed the events."""
        self._timer: asyncio.Handle | None = None
        self._running: dict[str, tuple[BatchCall, asyncio.Task[None]]] = {}
        """The batch in which each event runs, by event id. An event that has left stays until the batch ends."""
        self.hurries = False
        """Whether each batch begins at once: the worker stops, and no further event will come."""

    async def execute(self, context: Context, progress: EventProgress, on_error: OnError | None) -> HandlerOutcome:
        """Wait until a batch with this event has run, and return the outcome of the event."""
        event = context.event
        try:
            member = Member(context, argument_of(event, self._handler.item_type), progress)
        except PayloadDecodeError as error:
            self._handler.breaker.abandoned()
            return from_exception(error, 0.0, on_error, began=event.picked_ts)
        member.yield_slot()
        self._inside += 1
        try:
            while (earlier := self._running.get(event.event_id)) is not None:
                await asyncio.wait({earlier[1]})  # the event has left that call, which must not run beside the next
            self._add(member)
            outcome, raised = await member.verdict
        except BaseException:
            self._leave(member)
            raise
        finally:
            member.take_slot()
            self._inside -= 1
            self._tell_if_idle()
        if isinstance(outcome, NotStarted):
            raise outcome
        if on_error is not None and raised is not None:
            on_error(raised)
        return outcome

    def begin(self) -> None:
        """Run a batch of the events that wait."""
        self._stop_timer()
        members, self._waiting = list(self._waiting.values()), {}
        if not members:
            return
        first = members[0]
        first.take_slot()
        batch = BatchCall(self._handler, members, self._threads)
        task = asyncio.get_running_loop().create_task(
            batch.run(BatchContext(members, first.context.worker_id, first.context.emitter)),
            name=f"durabus-batch-{self._handler.id}",
            context=first.fresh_variables(),
        )
        self._running.update(dict.fromkeys((member.event.event_id for member in members), (batch, task)))
        task.add_done_callback(lambda _task: self._ended(batch))

    def _add(self, member: Member) -> None:
        self._waiting[member.event.event_id] = member
        if len(self._waiting) >= self._options.size:
            self.begin()
        elif self._timer is None:
            within = 0.0 if self.hurries else self._options.within
            self._timer = asyncio.get_running_loop().call_later(within, self.begin)

    def _leave(self, member: Member) -> None:
        """The event has lost its claim, is given back, or has used up its time."""
        event_id = member.event.event_id
        member.verdict.cancel()
        self._handler.breaker.abandoned()
        if self._waiting.get(event_id) is member:
            del self._waiting[event_id]
            if not self._waiting:
                self._stop_timer()
        elif (running := self._running.get(event_id)) is not None and running[0].is_left:
            running[1].cancel()  # nothing that it does counts any more

    def _ended(self, batch: BatchCall) -> None:
        for member in batch.members:
            del self._running[member.event.event_id]
        self._tell_if_idle()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell_if_idle(self) -> None:
        if not (self._inside or self._running):
            self._on_idle()


class Batches:
    """The batches of all handlers of one dispatcher."""

    def __init__(self, threads: HandlerThreads) -> None:
        self._threads = threads
        self._batchers: dict[Handler, Batcher] = {}
        """The batches of handlers that have waiting or running events."""
        self._hurries = False

    async def execute(
        self, handler: Handler, context: Context, progress: EventProgress, on_error: OnError | None = None
    ) -> HandlerOutcome:
        """Do what ``durabus.worker.execution.execute`` does, for a handler that takes batches."""
        batcher = self._batchers.get(handler)
        if batcher is None:
            if handler.batch is None:
                raise ConfigurationError(f"handler {handler.id} takes no batches")
            forget = partial(self._batchers.pop, handler, None)
            batcher = self._batchers[handler] = Batcher(handler, handler.batch, self._threads, on_idle=forget)
            batcher.hurries = self._hurries
        return await batcher.execute(context, progress, on_error)

    def begin(self, handler: Handler) -> None:
        """Let the waiting batch of a handler begin: no further event comes, because it was unsubscribed."""
        if handler in self._batchers:
            self._batchers[handler].begin()

    def hurry(self, *, hurries: bool) -> None:
        """Begin all batches at once, from now on, because the worker stops; or wait again, because it starts."""
        self._hurries = hurries
        for batcher in self._batchers.values():
            batcher.hurries = hurries
            if hurries:
                batcher.begin()

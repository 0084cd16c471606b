"""One attempt of an event: its handlers run one by one or side by side, all of them or until one returns a value."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from typing import Any

from msgspec.structs import replace

from durabus.model.claim import Claim
from durabus.model.event import Event
from durabus.model.result import HandlerResult
from durabus.model.statuses import SETTLED, Completion, HandlerMode, ResultStatus
from durabus.worker.batches import Batches
from durabus.worker.children.emissions import RUN, EmittingCall
from durabus.worker.execution import HandlerOutcome, describe, execute, result_of
from durabus.worker.handler import Context, Handler
from durabus.worker.progress import EventProgress
from durabus.worker.steps import Steps
from durabus.worker.telemetry import Tracing, traced
from durabus.worker.threads import HandlerThreads


async def run_handler(run: EmittingCall, call: Awaitable[HandlerOutcome], progress: EventProgress) -> HandlerOutcome:
    """Call a handler. What it emitted goes with its success; if that cannot be stored, the call has failed."""
    RUN.set(run)
    try:
        outcome = await call
    except BaseException:
        run.fail()
        raise
    finally:
        RUN.set(None)
    if not run.held:
        run.is_over = True
    elif outcome.status is ResultStatus.SUCCEEDED:
        try:
            progress.owe(run.name, await run.succeed())
        except Exception as error:  # noqa: BLE001  (without the child the work is not done)
            text = f"a child event was not stored: {describe(error)}"
            return HandlerOutcome(ResultStatus.TRANSIENT, outcome.milliseconds, None, text)
    else:
        run.fail()
    return outcome


GRACE = 2.0
"""Seconds that a handler may take to end after the attempt stopped it."""

ENOUGH = SETTLED - {ResultStatus.UNRECOVERABLE}
"""Results that do not count against an event once one handler has returned its value."""

HandlerCall = tuple[Handler, HandlerOutcome, HandlerResult]
RemoteResults = asyncio.Future[tuple[HandlerResult, ...]]
"""The results of an event once the handlers on other nodes have ended."""


class Attempt:
    """Runs the handlers of a claim. Its attributes show at any moment what was done so far, even if it is cancelled."""

    def __init__(
        self,
        claim: Claim,
        handlers: tuple[Handler, ...],
        *,
        mode: HandlerMode,
        completion: Completion,
        tracing: Tracing | None,
        batches: Batches,
    ) -> None:
        self._claim = claim
        self._batches = batches
        self.handlers = handlers
        self._mode = mode
        self.is_first = completion is Completion.FIRST
        self._tracing = tracing
        self._earlier = {result.handler_id: result for result in claim.results}
        self.calls: list[HandlerCall] = []
        """The calls of handlers that have ended."""
        self.stopped: list[HandlerResult] = []
        """The results of handlers whose value was not needed any more."""
        self.running: dict[str, Handler] = {}
        self.awaited: frozenset[str] = frozenset()
        """The handlers that run under claims of their own, on this or other nodes."""
        self._left = 0
        """How many handlers have not ended yet."""
        self.blocked_for = 0.0
        """Seconds until the first open breaker admits a call; 0 if no breaker was open."""
        self.winner = next((r.handler_id for r in claim.results if self.wins(r)), None)

    async def run(
        self, context: Context, threads: HandlerThreads, progress: EventProgress, remote: RemoteResults | None = None
    ) -> None:
        """Run the handlers that are left. ``progress`` gets the results that no further attempt will change.

        ``remote`` are the results of other nodes: one of them may be enough.
        """
        left = [handler for handler in self.handlers if not self._is_over(handler)]
        self._left = len(left)
        try:
            if self.winner is None and self._mode is HandlerMode.PARALLEL and (len(left) > 1 or remote is not None):
                await self._side_by_side(left, context, threads, progress, remote)
            else:
                for handler in left:
                    if self.winner is not None:
                        self._stop(handler, ResultStatus.CANCELLED, "before it started")
                    else:
                        await self._one(handler, context, threads, progress)
            await progress.steps_ended()
        finally:
            progress.end()
        if self.winner is not None:
            self.leave_only_the_winner()

    async def _one(self, handler: Handler, context: Context, threads: HandlerThreads, progress: EventProgress) -> None:
        wait = handler.breaker.admit()
        if wait:
            self._left -= 1
            self.blocked_for = min(self.blocked_for or wait, wait)
            return
        self.running[handler.id] = handler
        before = self._earlier.get(handler.id)
        if before is not None and before.fence:
            # The handler was claimed by itself before: its fence grows with those claims too.
            context = replace(context, event=replace(context.event, fence=context.event.fence + before.fence))
        run = EmittingCall(handler.id, self._claim.event, progress.parts.store)
        if handler.takes_context:
            context = replace(context, steps=Steps(run, self._claim, progress))
        outcome = await run_handler(run, self._execute(handler, context, threads, progress), progress)
        del self.running[handler.id]
        self._left -= 1
        result = result_of(handler, outcome, before.attempts + 1 if before else 1)
        self.calls.append((handler, outcome, result))
        if outcome.status in SETTLED:
            if self.winner is None and self.wins(result):
                self.winner = handler.id
            others_run = self._left > 0 or bool(self.awaited)
            await progress.settle(result, others_run=others_run and self.winner is None)

    async def _execute(
        self, handler: Handler, context: Context, threads: HandlerThreads, progress: EventProgress
    ) -> HandlerOutcome:
        batches = None if handler.batch is None else self._batches
        if self._tracing is None:
            running = batches.execute(handler, context, progress) if batches else execute(handler, context, threads)
            return await running
        with traced(self._tracing, context.event, handler.id) as call:
            if batches is None:
                outcome = await execute(handler, context, threads, call.failed)
            else:
                outcome = await batches.execute(handler, context, progress, call.failed)
            if outcome.error is not None and call.error is None:
                call.failed(RuntimeError(outcome.error))
            return outcome

    async def _side_by_side(
        self,
        handlers: list[Handler],
        context: Context,
        threads: HandlerThreads,
        progress: EventProgress,
        remote: RemoteResults | None,
    ) -> None:
        tasks = {asyncio.create_task(self._one(h, context, threads, progress)): h for h in handlers}
        pending = set(tasks)
        try:
            while pending and self.winner is None:
                awaited: set[asyncio.Future[Any]] = {*pending} if remote is None else {*pending, remote}
                done = (await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED))[0]
                if remote is not None and remote in done:
                    self.winner = next((r.handler_id for r in remote.result() if self.wins(r)), self.winner)
                    remote = None
                for task in done & pending:
                    task.result()
                pending = {task for task in pending if task not in done}
        finally:
            await _end(tasks)
        for task in pending:
            handler = tasks[task]
            if self.running.pop(handler.id, None) is not None:
                self._stop(handler, ResultStatus.ABORTED, "while it ran")
            elif not any(called is handler for called, _, _ in self.calls):
                self._stop(handler, ResultStatus.CANCELLED, "before it started")
        order = {handler.id: number for number, handler in enumerate(self.handlers)}
        self.calls.sort(key=lambda call: order[call[0].id])

    def _stop(self, handler: Handler, status: ResultStatus, when: str) -> None:
        before = self._earlier.get(handler.id)
        attempts = (before.attempts if before else 0) + (status is ResultStatus.ABORTED)
        error = f"{status.capitalize()}: stopped {when}, handler {self.winner} answered first"
        self.stopped.append(HandlerResult(handler_id=handler.id, status=status, attempts=attempts, error=error))

    def leave_only_the_winner(self) -> None:
        """Count only the handler that returned the value. The errors of the others stay readable as ABORTED results."""
        counted: list[HandlerCall] = []
        for call in self.calls:
            if call[1].status is ResultStatus.SUCCEEDED:
                counted.append(call)
            else:
                self.stopped.append(replace(call[2], status=ResultStatus.ABORTED))
        self.calls = counted
        known = {result.handler_id for result in self.stopped} | {handler.id for handler, _, _ in counted}
        for result in self._claim.results:
            if result.status not in ENOUGH and result.handler_id not in known:
                self.stopped.append(replace(result, status=ResultStatus.ABORTED, worker_id=None, expires_ts=None))
        self.blocked_for = 0.0

    def wins(self, result: HandlerResult) -> bool:
        """Whether the result ends an event with completion ``first``: any value but None does, also a falsy one."""
        return self.is_first and result.status is ResultStatus.SUCCEEDED and result.value_json is not None

    def _is_over(self, handler: Handler) -> bool:
        before, event = self._earlier.get(handler.id), self._claim.event
        if before is None or (before.status is ResultStatus.PENDING and before.error is None):
            return False  # it has not begun, or it sleeps
        return before.status in SETTLED or used_up(handler, event, event.attempts - 1)


def used_up(handler: Handler, event: Event, attempts: int) -> bool:
    """Whether the event may have no attempt beyond ``attempts`` with this handler."""
    limit = event.max_attempts if event.max_attempts is not None else handler.retry.max_attempts
    return limit is not None and attempts >= limit


async def _end(tasks: Collection[asyncio.Task[None]]) -> None:
    """Stop the tasks that still run. A task that refuses is left behind, and nothing it does is written."""
    left = {task for task in tasks if not task.done()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=GRACE)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # only the first error counts, and asyncio would report the others as forgotten

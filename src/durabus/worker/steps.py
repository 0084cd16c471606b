"""Durable steps of a handler: the store keeps the value of each, so a later attempt does not compute it again.

A step is kept as a result of the event under ``{handler id} > {step name}``, with the status KEPT. There is no replay:
a name and its arguments find their value, or the step runs.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from durabus.clock import milliseconds_since, monotonic
from durabus.errors import ConfigurationError, InvalidPayloadError, LeaseLost
from durabus.model.claim import Claim
from durabus.model.event import Event
from durabus.model.limits import MAX_SECONDS, Duration, check_name, seconds
from durabus.model.payload import decode_payload, encode_payload
from durabus.model.policies import RetryPolicy
from durabus.model.result import HandlerResult, Suspended, UnrecoverableError
from durabus.model.statuses import STEPS, ResultStatus
from durabus.model.wait import MAX_WAITS, NOT_MET, EventWait, Scalar, key_of, met_event, new_wait, wait_of, waiting
from durabus.worker.children.emissions import RUN, EmittingCall
from durabus.worker.fingerprints import fingerprint as fingerprint_of
from durabus.worker.progress import EventProgress
from durabus.worker.suspensions import Suspensions

logger = logging.getLogger("durabus.worker")

MAX_STEPS = 1_000
MAX_STEP_BYTES = 256 * 1024
LONGEST_WAIT = MAX_SECONDS / 4
"""Seconds after which an event that waits without a timeout is claimed again, only to go on waiting."""
SEPARATOR = " > "
"""Stands between the id of a handler and the name of its step. Neither may contain it."""
SLEEP = "sleep"
SLEEP_UNTIL = "sleep_until"
WAIT_FOR = "wait_for"
VERBS = (SLEEP, WAIT_FOR)
"""Names of steps that belong to verbs of the context."""

Retry = RetryPolicy | Mapping[str, Any] | None


class StepError(UnrecoverableError):
    """A step cannot be kept: its value is not JSON or too large, it sleeps, or the handler has too many steps.

    The step has run. A retry would run it again with the same end, so the event ends. The same holds for a handler that
    swallows the exception of its own sleep or wait.
    """


class Memo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored value of a step."""

    value: Any = None
    arguments: str = ""
    """A fingerprint of the arguments."""


class BegunStep(NamedTuple):
    """A step that begins, or whose value is kept."""

    name: str
    key: str
    fingerprint: str
    memo: Memo | None


_MEMO = msgspec.json.Decoder(Memo)


class Steps:
    """The steps of one handler in one attempt of an event."""

    def __init__(self, call: EmittingCall, claim: Claim, progress: EventProgress) -> None:
        self._prefix = prefix = call.name + SEPARATOR
        self._call = call
        self._claim = claim
        self._progress = progress
        self._running = progress.running_steps()
        self._began = monotonic()
        self._used: set[str] = set()
        self._numbers: Counter[str] = Counter()
        self._unused: dict[str, dict[str, Memo]] = {}
        """The kept values that no step of this attempt has used yet, by the name of the step and by key."""
        self._misused: dict[tuple[str, str], str] = {}
        """Keys of kept values that a step with other arguments got, by name and by the arguments of the kept value."""
        self._failed: dict[tuple[str, str], list[str]] = {}
        """Keys of steps that raised in this attempt, by name and arguments: the next step like that is their next try.
        """
        self._slept: dict[str, str] = {}
        self._waited: dict[str, HandlerResult] = {}
        self.suspensions = Suspensions(self._now)
        for result in claim.results:
            if result.status in STEPS and result.value_json and result.handler_id.startswith(prefix):
                key = result.handler_id.removeprefix(prefix)
                name = key.partition("#")[0]
                if name == SLEEP:
                    self._slept[key] = result.value_json
                elif name == WAIT_FOR:
                    self._waited[key] = result
                else:
                    self._unused.setdefault(name, {})[key] = _MEMO.decode(result.value_json)

    def begin(self, name: str, function: object, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> BegunStep:
        """Return the step of this name with its kept value, if it has one. Equal arguments find their own value first.

        The second step of a name is ``name#2``, and so on. Raises ``LeaseLost`` if the claim is known to be lost, or if
        the attempt has ended: the function must not run then.
        """
        self._refuse_lost()
        check_name(name, "step name")
        if name in VERBS or ">" in name or "#" in name:
            raise ConfigurationError(
                f"step name={name!r}: it must not contain '>' or '#', and {SLEEP!r} and {WAIT_FOR!r} are the names of "
                "ctx.sleep and ctx.wait_for"
            )
        if not callable(function):
            raise ConfigurationError(
                f"step {name!r}: {function!r:.80} is not callable: give the function and its arguments apart, as "
                "ctx.step(name, charge, order)"
            )
        fingerprint = fingerprint_of(*arguments)
        unused = self._unused.get(name, {})
        alike = next((key for key, memo in unused.items() if memo.arguments == fingerprint), None)
        misused = self._misused.get((name, fingerprint))
        if alike is None and misused is not None:
            # A second call of the function would double its effect.
            raise StepError(
                f"step {misused!r} was kept with these arguments, and an earlier step of this attempt, with other "
                f"arguments, got its value: the steps named {name!r} run in another order than before. Give each of "
                f'them a name of its own, as f"{name} {{item}}"'
            )
        failed = self._failed.get((name, fingerprint))
        key = alike or (failed.pop(0) if failed else self._next_key(name))
        self._use(key)
        memo = unused.pop(key, None)
        if memo is not None and memo.arguments != fingerprint:
            self._misused[name, memo.arguments] = key
            logger.warning(
                "step %r of event %s was kept with other arguments: its kept value is used",
                key,
                self._claim.event.event_id,
            )
        return BegunStep(name, key, fingerprint, memo)

    def refuse_late(self) -> None:
        """Raise ``LeaseLost`` if the attempt has ended. It waits for steps that run, and for what belongs to them."""
        step = _step_around(self._prefix)
        if self._progress.is_over or (self._call.is_over and (step is None or step.is_over)):
            raise self._call.ended()

    def _refuse_in_step(self, verb: str) -> None:
        step = _step_around(self._prefix)
        if step is not None:
            raise _not_in_step(f"ctx.{verb}", step.name.removeprefix(self._prefix))

    def _refuse_lost(self) -> None:
        self.refuse_late()
        if self._progress.lost is not None:
            raise LeaseLost(self._progress.lost.subject, self._progress.lost.reason)
        if self._progress.parent is not None and self._progress.parent.lost:
            raise LeaseLost(self._claim.event.event_id, "the event was cancelled, or another claim may hold it")

    def failed(self, step: BegunStep, error: BaseException) -> None:
        """Note that a step raised. If the handler begins it again with equal arguments, it has the same key.

        Raises ``StepError`` if the function snoozed.
        """
        self._failed.setdefault((step.name, step.fingerprint), []).append(step.key)
        if holds(error, Suspended):
            raise _not_in_step("Snooze", step.key) from error

    @property
    def held(self) -> int:
        """The number of events that the handler has emitted outside of steps and that are not stored."""
        return len(self._call.held or ())

    def run(self, step: BegunStep) -> EmittingCall:
        """Return what holds the events that a try of the step emits."""
        return EmittingCall(self._prefix + step.key, self._claim.event, self._progress.parts.store)

    async def keep(self, step: BegunStep, value: Any, run: EmittingCall, *, attempts: int, began: float) -> Any:
        """Store the value together with what the step emitted, and return it as later attempts will get it."""
        memo = {"value": value, "arguments": step.fingerprint}
        try:
            text = encode_payload(memo, f"value of step {step.key!r}", limit=MAX_STEP_BYTES)
        except InvalidPayloadError as error:
            raise StepError(f"{error}; return plain JSON, and for a large value a reference to it") from error
        milliseconds = milliseconds_since(began)
        children = await run.succeed() if run.held else []
        await self._progress.keep(self._result(step.key, text, attempts, milliseconds), children)
        return _MEMO.decode(text).value

    async def sleep(self, delay: float, verb: str = SLEEP) -> None:
        """Give slot and claim back, and go on when ``delay`` seconds have passed by the clock of the store."""
        self._refuse_lost()
        self._refuse_in_step(verb)
        key, now = self._next_key(SLEEP), self._now()
        self._use(key)
        kept = self._slept.get(key)
        end = now + delay if kept is None else float(decode_payload(kept))
        if end > now:
            result = self._result(key, encode_payload(end), 1, None) if kept is None else None
            raise self.suspensions.begin(verb, end, result)

    async def sleep_until(self, instant: datetime) -> None:
        """Sleep until an instant, which must have a time zone. An instant in the past does not sleep."""
        if not isinstance(instant, datetime) or instant.tzinfo is None:
            raise ConfigurationError(f"sleep_until({instant!r}): must be a datetime with a time zone, such as UTC")
        await self.sleep(seconds(max(instant.timestamp() - self._now(), 0.0), SLEEP_UNTIL), SLEEP_UNTIL)

    async def wait_for(
        self,
        event_type: str,
        where: Mapping[str, Scalar] | None,
        timeout: float | None,  # noqa: ASYNC109  (the event waits in the store, not this coroutine)
    ) -> Event | None:
        """Return the first matching event, or None after the timeout. Gives slot and claim back until then."""
        self._progress.require("waits", "ctx.wait_for")
        self._refuse_lost()
        self._refuse_in_step(WAIT_FOR)
        bus, now = self._claim.event.bus, self._now()
        wait = new_wait(bus, event_type, where, None if timeout is None else now + timeout)
        key = self._key_of_wait(wait)
        self._use(key)
        known = self._waited.get(key)
        if known is not None and known.status is ResultStatus.KEPT:
            if known.value_json != NOT_MET and not _is_of(known, wait):
                self._report_change(key)
            return met_event(known.value_json or NOT_MET, bus)
        if known is not None:
            asked, wait = wait, wait_of(known)
            if (asked.shape, asked.key) != (wait.shape, wait.key):
                self._report_change(key)
            # The store has looked until the claim. So the end of the wait must have come before it, not only by now.
            if wait.until is not None and (self._claim.event.picked_ts or 0.0) >= wait.until:
                await self._progress.keep(self._result(key, NOT_MET, 1, None), [])
                return None
        if self.suspensions.count(WAIT_FOR) >= MAX_WAITS:
            raise StepError(
                f"handler {self._prefix.removesuffix(SEPARATOR)} waits for more than {MAX_WAITS} events at once: "
                "emit child events that wait"
            )
        end = now + LONGEST_WAIT if wait.until is None else wait.until
        raise self.suspensions.begin(WAIT_FOR, end, waiting(self._prefix + key, wait))

    def swallowed(self) -> StepError:
        """Return the error of a handler that returns although a sleep or wait of its attempt is not over."""
        return StepError(
            f"handler {self._prefix.removesuffix(SEPARATOR)} returned before the end of its "
            f"{self.suspensions.verbs}: it swallowed the exception that ends the attempt there. Let the exception "
            "pass: do not catch BaseException (a bare except does), do not use return_exceptions=True, and await each "
            "task that sleeps or waits"
        )

    def _report_change(self, key: str) -> None:
        logger.warning(
            "%r of event %s began with another type or other fields: these go on", key, self._claim.event.event_id
        )

    def _key_of_wait(self, wait: EventWait) -> str:
        """Return the key of a known wait for the same events, else that of a new wait, or of one that has changed."""
        known = {key: result for key, result in self._waited.items() if key not in self._used}
        alike = next((key for key, result in known.items() if _is_of(result, wait)), None)
        if alike is not None:
            return alike
        while True:
            key = self._next_key(WAIT_FOR)
            # An event of another type is left to the call that waits for it.
            if key not in known or _type_of(known[key]) in (None, wait.type):
                return key

    def running(self) -> Callable[[], None]:
        """Note that a step runs; the result notes its end. The attempt ends after its steps."""
        step: Future[None] = Future()
        self._running.add(step)

        def ended() -> None:
            self._running.discard(step)
            step.set_result(None)

        return ended

    def _next_key(self, name: str) -> str:
        while True:
            self._numbers[name] += 1
            number = self._numbers[name]
            key = name if number == 1 else f"{name}#{number}"
            if key not in self._used:
                return key

    def _use(self, key: str) -> None:
        self._used.add(key)
        if len(self._used) > MAX_STEPS:
            raise StepError(
                f"handler {self._prefix.removesuffix(SEPARATOR)} has more than {MAX_STEPS:,} steps, sleeps and waits "
                "in one attempt: emit child events for the rest of the work"
            )

    def _now(self) -> float:
        """The time by the clock of the store, at most as late as it really is."""
        return (self._claim.event.picked_ts or 0.0) + monotonic() - self._began

    def _result(self, key: str, value_json: str, attempts: int, milliseconds: float | None) -> HandlerResult:
        return HandlerResult(
            handler_id=self._prefix + key,
            status=ResultStatus.KEPT,
            attempts=attempts,
            value_json=value_json,
            execution_time_ms=milliseconds,
        )


class Tries:
    """How often a step is tried, and how long one try may take."""

    def __init__(self, key: str, retry: Retry, timeout: Duration | None) -> None:
        self._key = key
        self._policy = None if retry is None else RetryPolicy().merged(retry)
        self.limit = None if timeout is None else seconds(timeout, "timeout", allow_zero=False)
        self.attempt = 1

    def pause_after(self, error: Exception) -> float:
        """Return the seconds before the next try. Raises the error if there is none."""
        policy = self._policy
        if isinstance(error, UnrecoverableError) or holds(error, StepError) or policy is None:
            raise error
        if policy.max_attempts is not None and self.attempt >= policy.max_attempts:
            raise error
        self.attempt += 1
        return policy.delay_before(self.attempt, random.random)

    async def awaited(self, value: Any) -> Any:
        """Return the value, awaited within the limit if it is awaitable."""
        if not inspect.isawaitable(value):
            return value
        scope = asyncio.timeout(self.limit)
        try:
            async with scope:
                return await value
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise TimeoutError(f"step {self._key!r} took longer than {self.limit:g} s") from error


def _step_around(prefix: str) -> EmittingCall | None:
    """Return the step whose function calls this, if its name begins with ``prefix``; None outside of such steps."""
    call = RUN.get()
    return call if call is not None and call.name.startswith(prefix) else None


def holds(raised: BaseException, kind: type[BaseException]) -> bool:
    """Whether an error is of this kind, or comes from a task group and has one of this kind in it."""
    if isinstance(raised, BaseExceptionGroup):
        return raised.subgroup(kind) is not None
    return isinstance(raised, kind)


def _not_in_step(what: str, key: str) -> StepError:
    return StepError(
        f"{what} in the function of step {key!r}: after the pause the function would run again from its beginning. "
        f"A step runs to its end: put {what} between two steps of the handler"
    )


def _is_of(result: HandlerResult, wait: EventWait) -> bool:
    """Whether a stored wait, or the event that met it, is one of ``wait``."""
    if result.status is ResultStatus.WAITING:
        known = wait_of(result)
        return (known.shape, known.key) == (wait.shape, wait.key)
    event = met_event(result.value_json or NOT_MET, "")
    return event is not None and event.type == wait.type and key_of(event.payload, tuple(wait.where)) == wait.key


def _type_of(result: HandlerResult) -> str | None:
    """Return the type of the event that met a wait; None if none has."""
    event = met_event(result.value_json or NOT_MET, "") if result.status is ResultStatus.KEPT else None
    return None if event is None else event.type

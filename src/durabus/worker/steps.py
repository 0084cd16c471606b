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
from datetime import datetime
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from durabus.clock import monotonic, perf_counter
from durabus.errors import ConfigurationError, InvalidPayloadError
from durabus.model.claim import Claim
from durabus.model.limits import Duration, check_name, seconds
from durabus.model.payload import decode_payload, encode_payload
from durabus.model.policies import RetryPolicy
from durabus.model.result import HandlerResult, Suspended, UnrecoverableError
from durabus.model.statuses import ResultStatus
from durabus.worker.progress import EventProgress

logger = logging.getLogger("durabus.worker")

MAX_STEPS = 1_000
MAX_STEP_BYTES = 256 * 1024
SEPARATOR = " > "
"""Stands between the id of a handler and the name of its step. Neither may contain it."""
SLEEP = "sleep"

Retry = RetryPolicy | Mapping[str, Any] | None


class StepError(UnrecoverableError):
    """A step cannot be kept: its value is not JSON or too large, or the handler has too many steps.

    The step has run. A retry would run it again with the same end, so the event ends.
    """


class Memo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored value of a step."""

    value: Any = None
    arguments: str | None = None
    """A fingerprint of the arguments; None if they are not JSON."""


class BegunStep(NamedTuple):
    """A step that begins, or whose value is kept."""

    key: str
    fingerprint: str | None
    memo: Memo | None


_MEMO = msgspec.json.Decoder(Memo)


class Steps:
    """The steps of one handler in one attempt of an event."""

    def __init__(self, handler_id: str, claim: Claim, progress: EventProgress) -> None:
        self._prefix = prefix = handler_id + SEPARATOR
        self._claim = claim
        self._progress = progress
        self._began = monotonic()
        self._used: set[str] = set()
        self._numbers: Counter[str] = Counter()
        self._unused: dict[str, dict[str, Memo]] = {}
        """The kept values that no step of this attempt has used yet, by the name of the step and by key."""
        self._slept: dict[str, str] = {}
        for result in claim.results:
            if result.status is ResultStatus.KEPT and result.value_json and result.handler_id.startswith(prefix):
                key = result.handler_id.removeprefix(prefix)
                name = key.partition("#")[0]
                if name == SLEEP:
                    self._slept[key] = result.value_json
                else:
                    self._unused.setdefault(name, {})[key] = _MEMO.decode(result.value_json)

    def begin(self, name: str, arguments: object) -> BegunStep:
        """Return the step of this name with its kept value, if it has one. Equal arguments find their own value first.

        The second step of a name is ``name#2``, and so on.
        """
        check_name(name, "step name")
        if name == SLEEP or ">" in name or "#" in name:
            raise ConfigurationError(
                f"step name={name!r}: it must not contain '>' or '#', and {SLEEP!r} is the name of ctx.sleep"
            )
        fingerprint = _fingerprint(arguments)
        unused = self._unused.get(name, {})
        alike = (key for key, memo in unused.items() if fingerprint is not None and memo.arguments == fingerprint)
        key = next(alike, None) or self._next_key(name)
        self._use(key)
        memo = unused.pop(key, None)
        if memo is not None and memo.arguments != fingerprint:
            logger.warning(
                "step %r of event %s was kept with other arguments: its kept value is used",
                key,
                self._claim.event.event_id,
            )
        return BegunStep(key, fingerprint, memo)

    async def keep(self, step: BegunStep, value: Any, *, attempts: int, began: float) -> Any:
        """Store the value, and return it as later attempts will get it."""
        try:
            text = encode_payload({"value": value, "arguments": step.fingerprint}, f"value of step {step.key!r}")
        except InvalidPayloadError as error:
            raise StepError(f"{error}; return plain JSON from the step") from error
        if len(text.encode()) > MAX_STEP_BYTES:
            raise StepError(
                f"step {step.key!r} returned {len(text.encode()):,} bytes as JSON, the limit is {MAX_STEP_BYTES:,}: "
                "store the large part elsewhere and return a reference to it"
            )
        milliseconds = round((perf_counter() - began) * 1000, 3)
        await self._progress.keep(self._result(step.key, text, attempts, milliseconds))
        return _MEMO.decode(text).value

    async def sleep(self, delay: float) -> None:
        """Give slot and claim back, and go on when ``delay`` seconds have passed by the clock of the store."""
        key, now = self._next_key(SLEEP), self._now()
        self._use(key)
        kept = self._slept.get(key)
        if kept is not None:
            left = float(decode_payload(kept)) - now
            if left > 0:
                raise Suspended(left)
        elif delay > 0:
            raise Suspended(delay, (self._result(key, encode_payload(now + delay), 1, None),))

    async def sleep_until(self, instant: datetime) -> None:
        """Sleep until an instant, which must have a time zone. An instant in the past does not sleep."""
        if not isinstance(instant, datetime) or instant.tzinfo is None:
            raise ConfigurationError(f"sleep_until({instant!r}): must be a datetime with a time zone, such as UTC")
        await self.sleep(seconds(max(instant.timestamp() - self._now(), 0.0), "sleep_until"))

    def running(self) -> Callable[[], None]:
        """Note that a step runs; the result notes its end. The attempt ends after its steps."""
        return self._progress.step_runs()

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
                f"handler {self._prefix.removesuffix(SEPARATOR)} has more than {MAX_STEPS:,} steps in one attempt: "
                "emit child events for the rest of the work"
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
        if isinstance(error, UnrecoverableError) or policy is None:
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


def _fingerprint(arguments: object) -> str | None:
    """Return a short digest of the arguments; None if they are not JSON: then a change cannot be noticed."""
    try:
        text = encode_payload(arguments, "arguments")
    except InvalidPayloadError:
        return None
    return blake2b(text.encode(), digest_size=8).hexdigest()

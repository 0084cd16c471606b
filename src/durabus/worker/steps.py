"""Durable steps of a handler: the store keeps the value of each, so a later attempt does not compute it again.

A step is kept as a result of the event under ``{handler id} > {step name}``, with the status KEPT. There is no replay
and no rule of determinism: a name finds its value, or the step runs.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from hashlib import blake2b
from typing import Any

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


class StepError(UnrecoverableError):
    """A step cannot be kept: its value is not JSON or too large, or the handler has too many steps.

    The step has run. A retry would run it again with the same end, so the event ends.
    """


class Memo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored value of a step."""

    value: Any = None
    arguments: str | None = None
    """A fingerprint of the arguments; None if they are not JSON."""


_MEMO = msgspec.json.Decoder(Memo)


class Steps:
    """The steps of one handler in one attempt of an event."""

    def __init__(self, handler_id: str, claim: Claim, progress: EventProgress) -> None:
        self._prefix = prefix = handler_id + SEPARATOR
        self._claim = claim
        self._progress = progress
        self._began = monotonic()
        self._used: Counter[str] = Counter()
        self._memos = {
            result.handler_id.removeprefix(prefix): result
            for result in claim.results
            if result.status is ResultStatus.KEPT and result.handler_id.startswith(prefix)
        }

    async def run(
        self,
        name: str,
        call: Callable[[], Any],
        arguments: object,
        retry: RetryPolicy | Mapping[str, Any] | None,
        timeout: Duration | None,  # noqa: ASYNC109  (it bounds each try)
    ) -> Any:
        """Return the kept value of the step, or run it, keep its value and return it."""
        key, known = self._next(name)
        fingerprint = _fingerprint(arguments)
        if known is not None and known.value_json is not None:
            memo = _MEMO.decode(known.value_json)
            if memo.arguments != fingerprint:
                logger.warning(
                    "step %r of event %s was kept with other arguments: its kept value is used",
                    key,
                    self._claim.event.event_id,
                )
            return memo.value
        started = perf_counter()
        policy = None if retry is None else RetryPolicy().merged(retry)
        limit = None if timeout is None else seconds(timeout, "timeout", allow_zero=False)
        value, attempts = await _tried(call, policy, limit)
        text = self._encode(key, value, fingerprint)
        await self._keep(key, text, attempts, (perf_counter() - started) * 1000)
        return value

    async def sleep(self, delay: float) -> None:
        """Give slot and claim back, and go on when ``delay`` seconds have passed by the clock of the store."""
        key, known = self._next("sleep")
        now = self._now()
        if known is not None and known.value_json is not None:
            until = float(decode_payload(known.value_json))
            if now >= until:
                return
            raise Suspended(until - now)
        memo = HandlerResult(
            handler_id=self._prefix + key, status=ResultStatus.KEPT, attempts=1, value_json=encode_payload(now + delay)
        )
        raise Suspended(delay, (memo,))

    async def sleep_until(self, instant: datetime) -> None:
        """Sleep until an instant, which must have a time zone. An instant in the past does not sleep."""
        if instant.tzinfo is None:
            raise ConfigurationError(f"sleep_until({instant!r}): give the instant a time zone, such as datetime.UTC")
        await self.sleep(max(instant.timestamp() - self._now(), 0.0))

    def _now(self) -> float:
        """The time by the clock of the store, at most as late as it really is."""
        return (self._claim.event.picked_ts or 0.0) + monotonic() - self._began

    def _next(self, name: str) -> tuple[str, HandlerResult | None]:
        """Return the key of the next step of this name, which is numbered from the second on, and what was kept."""
        check_name(name, "step name")
        if SEPARATOR in name or "#" in name:
            raise ConfigurationError(f"step name={name!r}: it must not contain {SEPARATOR!r} or '#'")
        self._used[name] += 1
        if self._used.total() > MAX_STEPS:
            raise StepError(
                f"handler {self._prefix.removesuffix(SEPARATOR)} has more than {MAX_STEPS:,} steps in one attempt: "
                "emit child events for the rest of the work"
            )
        number = self._used[name]
        key = name if number == 1 else f"{name}#{number}"
        return key, self._memos.get(key)

    def _encode(self, key: str, value: Any, fingerprint: str | None) -> str:
        try:
            text = encode_payload({"value": value, "arguments": fingerprint}, f"value of step {key!r}")
        except InvalidPayloadError as error:
            raise StepError(f"{error}; return plain JSON from the step") from error
        if len(text.encode()) > MAX_STEP_BYTES:
            raise StepError(
                f"step {key!r} returned {len(text.encode()):,} bytes as JSON, the limit is {MAX_STEP_BYTES:,}: "
                "store the large part elsewhere and return a reference to it"
            )
        return text

    async def _keep(self, key: str, value_json: str, attempts: int, milliseconds: float) -> None:
        result = HandlerResult(
            handler_id=self._prefix + key,
            status=ResultStatus.KEPT,
            attempts=attempts,
            value_json=value_json,
            execution_time_ms=round(milliseconds, 3),
        )
        await self._progress.keep(result)


async def _tried(call: Callable[[], Any], policy: RetryPolicy | None, limit: float | None) -> tuple[Any, int]:
    """Call until it succeeds or the policy has no further attempt. Returns the value and the number of attempts."""
    attempt = 1
    while True:
        try:
            async with asyncio.timeout(limit):
                value = call()
                return (await value if inspect.isawaitable(value) else value), attempt
        except UnrecoverableError:
            raise
        except Exception:
            if policy is None or (policy.max_attempts is not None and attempt >= policy.max_attempts):
                raise
        attempt += 1
        await asyncio.sleep(policy.delay_before(attempt, random.random))


def _fingerprint(arguments: object) -> str | None:
    """Return a short digest of the arguments; None if they are not JSON: then a change cannot be noticed."""
    try:
        text = encode_payload(arguments, "arguments")
    except InvalidPayloadError:
        return None
    return blake2b(text.encode(), digest_size=8).hexdigest()


def in_loop_or_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Awaitable[Any]:
    """Call an async function here, and a plain one in a thread, so that it does not stop the event loop."""
    if inspect.iscoroutinefunction(function):
        coroutine: Awaitable[Any] = function(*args, **kwargs)
        return coroutine
    return asyncio.to_thread(function, *args, **kwargs)

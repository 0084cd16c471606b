"""The handlers of an event as people see them: each with its result, its durable steps, its sleeps and its waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from durabus.model.event import Event
from durabus.model.result import HandlerResult
from durabus.model.statuses import STEPS, ResultStatus
from durabus.model.wait import NOT_MET, EventWait, memo_of, met_event, wait_of
from durabus.worker.steps import SEPARATOR, SLEEP, WAIT_FOR


class StepShown(msgspec.Struct, frozen=True, kw_only=True):
    """A step that is kept, a sleep, or a wait."""

    name: str
    attempts: int
    milliseconds: float | None
    """How long it took, its own retries included; None for a sleep."""
    value_json: str | None = None
    """What the step returned; None for a sleep."""
    until_ts: float | None = None
    """When a sleep or a wait ends, by the clock of the store; None for a step, and for a wait without a timeout."""
    waits_for: str | None = None
    """The event that a wait is for, as ``payment.settled where order_id=7``, while it is not met."""
    hidden: bool = False
    """Whether the wait was met by an event that the reader may not see: ``without_foreign_events`` took it out."""
    share: float = 0.0
    """How long it took, as a part of the longest step of its handler."""


class HandlerShown(msgspec.Struct, frozen=True, kw_only=True):
    """One handler of an event."""

    handler_id: str
    result: HandlerResult | None
    """None while its first attempt runs: then only its steps are known."""
    traceback: str | None
    """Where it raised its last error."""
    steps: tuple[StepShown, ...]

    @property
    def status(self) -> ResultStatus:
        """The status of its result. A handler that sleeps, or whose first attempt runs, is PENDING or PROCESSING."""
        return ResultStatus.PROCESSING if self.result is None else self.result.status


class _Memo(msgspec.Struct):
    value: msgspec.Raw = msgspec.Raw(b"null")


class _Met(msgspec.Struct):
    event: msgspec.Raw


class _Failure(msgspec.Struct):
    traceback: str


_MEMO = msgspec.json.Decoder(_Memo)
_MET = msgspec.json.Decoder(_Met)
_FAILURE = msgspec.json.Decoder(_Failure)
_INSTANT = msgspec.json.Decoder(float)


def handlers_of(results: Sequence[HandlerResult]) -> list[HandlerShown]:
    """Return the handlers in the results of an event, in their order, each with its steps."""
    steps: dict[str, list[StepShown]] = {}
    whole: dict[str, HandlerResult] = {}
    for result in results:
        handler_id, separator, name = result.handler_id.partition(SEPARATOR)
        if separator and result.status in STEPS:
            steps.setdefault(handler_id, []).append(_step(name, result))
        else:
            steps.setdefault(result.handler_id, [])
            whole[result.handler_id] = result
    return [
        HandlerShown(
            handler_id=handler_id,
            result=whole.get(handler_id),
            traceback=_traceback(whole.get(handler_id)),
            steps=_with_shares(kept),
        )
        for handler_id, kept in steps.items()
    ]


def without_foreign_events(
    bus: str, results: Sequence[HandlerResult], show: Callable[[Event], Event | None]
) -> tuple[HandlerResult, ...]:
    """Return the results of an event for a reader that may not see every event.

    A wait that was met keeps the whole event that met it, and that may be an event of another tenant. ``show`` returns
    the event as the reader may see it, or None: then the result has no value.
    """
    return tuple(
        msgspec.structs.replace(result, value_json=_shown_memo(bus, result, show)) if _is_met_wait(result) else result
        for result in results
    )


def _is_met_wait(result: HandlerResult) -> bool:
    verb = result.handler_id.partition(SEPARATOR)[2].partition("#")[0]
    return verb == WAIT_FOR and result.status is ResultStatus.KEPT


def _shown_memo(bus: str, result: HandlerResult, show: Callable[[Event], Event | None]) -> str | None:
    try:
        event = met_event(result.value_json or "", bus)
    except msgspec.DecodeError:
        return None  # another program wrote it: it may hold any event
    if event is None:
        return NOT_MET
    seen = show(event)
    return None if seen is None else memo_of(seen)


def _step(name: str, result: HandlerResult) -> StepShown:
    value, until, verb = result.value_json or "null", None, name.partition("#")[0]
    try:
        if result.status is ResultStatus.WAITING:
            wait = wait_of(result)
            return StepShown(name=name, attempts=1, milliseconds=None, until_ts=wait.until, waits_for=_condition(wait))
        if verb == WAIT_FOR and result.value_json is None:
            return StepShown(name=name, attempts=result.attempts, milliseconds=None, hidden=True)
        if verb == SLEEP:
            until = _INSTANT.decode(value)
        elif verb == WAIT_FOR:
            value = bytes(_MET.decode(value).event).decode()
        else:
            value = bytes(_MEMO.decode(value).value).decode()
    except msgspec.DecodeError:
        until = None  # another program wrote it: show it as it is
    return StepShown(
        name=name,
        attempts=result.attempts,
        milliseconds=result.execution_time_ms,
        value_json=value if until is None else None,
        until_ts=until,
    )


def _condition(wait: EventWait) -> str:
    fields = ", ".join(f"{name}={msgspec.json.encode(value).decode()}" for name, value in wait.where.items())
    return f"{wait.type} where {fields}" if fields else wait.type


def _with_shares(steps: Sequence[StepShown]) -> tuple[StepShown, ...]:
    longest = max((step.milliseconds or 0.0 for step in steps), default=0.0)
    if not longest:
        return tuple(steps)
    return tuple(msgspec.structs.replace(step, share=(step.milliseconds or 0.0) / longest) for step in steps)


def _traceback(result: HandlerResult | None) -> str | None:
    if result is None or result.value_json is None:
        return None
    try:
        return _FAILURE.decode(result.value_json).traceback
    except msgspec.DecodeError:
        return None  # this is the handler's return value

"""The options of a bus, checked, as one value that its parts share."""

from __future__ import annotations

from durabus.errors import ConfigurationError
from durabus.model.limits import Duration, seconds
from durabus.model.policies import BreakerPolicy, RetryPolicy
from durabus.model.statuses import Completion, HandlerMode, OnUnhandled
from durabus.worker.telemetry import Tracing
from durabus.worker.worker import WorkerOptions


class BusOptions(WorkerOptions, frozen=True, kw_only=True):
    """What ``EventBus`` was created with; its docstring describes the options. All times are seconds."""

    name: str
    serve: bool
    retry: RetryPolicy
    breaker: BreakerPolicy | None
    handler_mode: HandlerMode
    completion: Completion
    unhandled: OnUnhandled
    max_depth: int
    event_timeout: float | None
    event_slow_timeout: float | None
    handler_slow_timeout: float | None
    max_history_size: int | None
    max_history_drop: bool
    shutdown_timeout: float
    handlers_kept_for: float | None
    archive_after: float
    tracing: Tracing | None


def seconds_or_none(value: Duration | None, option: str) -> float | None:
    """Return a duration in seconds, which is above 0; None stays None."""
    return None if value is None else seconds(value, option, allow_zero=False)


def check_serve(serve: bool) -> bool:  # noqa: FBT001  (the option's own value)
    """Raise if this is neither True nor False: a text such as "false" would count as True."""
    if not isinstance(serve, bool):
        raise ConfigurationError(f"serve={serve!r}: must be True, or False for a bus that only publishes")
    return serve

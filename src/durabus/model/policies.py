"""When a failed attempt is repeated (``RetryPolicy``), and when a failing handler is paused (``BreakerPolicy``).

A caller gives a policy as a whole value, or as a mapping with some of its fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from durabus.errors import ConfigurationError
from durabus.model.limits import Duration, seconds

Value = TypeVar("Value", bound=msgspec.Struct)


def replace_fields(value: Value, override: Value | Mapping[str, Any], option: str) -> Value:
    """Return ``override`` if it is a whole value, else ``value`` after replacing the fields that ``override`` names."""
    if isinstance(override, type(value)):
        return override
    if not isinstance(override, Mapping):
        kind = type(value).__name__
        raise ConfigurationError(f"{option}={override!r}: must be a {kind}, or a mapping with some of its fields")
    unknown = set(override) - set(value.__struct_fields__)
    if unknown:
        raise ConfigurationError(
            f"{option}={dict(override)!r}: no such option {sorted(unknown)}; there are {list(value.__struct_fields__)}"
        )
    return msgspec.structs.replace(value, **override)


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The first attempt starts at once. Attempt n waits ``min(base_delay × multiplier^(n-2), max_delay)`` ± the jitter.

    ``max_retries=3`` means four attempts in total. ``max_retries=None`` means no limit. A delay is never longer than
    ``max_delay``, even with jitter.
    """

    max_retries: int | None = 3
    base_delay: Duration = 1.0
    max_delay: Duration = 30.0
    multiplier: float = 2.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        """Raise if the delays or the limits are not valid."""
        if seconds(self.base_delay, "base_delay") > seconds(self.max_delay, "max_delay"):
            raise ConfigurationError(
                f"base_delay={self.base_delay!r} is longer than max_delay={self.max_delay!r}, so each retry would wait "
                "max_delay: give a max_delay that is at least as long as base_delay"
            )
        retries = self.max_retries
        if retries is not None and (isinstance(retries, bool) or not isinstance(retries, int) or retries < 0):
            raise ConfigurationError(f"max_retries={self.max_retries!r}: must be 0 or more, or None for no limit")
        if not isinstance(self.multiplier, int | float) or not 1 <= self.multiplier < float("inf"):
            raise ConfigurationError(f"multiplier={self.multiplier!r}: must be 1 or more")
        if not isinstance(self.jitter, int | float) or not 0 <= self.jitter <= 1:
            raise ConfigurationError(f"jitter={self.jitter!r}: must be from 0 to 1 (0.1 is ±10 %)")

    @property
    def max_attempts(self) -> int | None:
        """The total number of attempts, including the first; None means no limit."""
        return None if self.max_retries is None else self.max_retries + 1

    def delay_before(self, attempt: int, random: Callable[[], float]) -> float:
        """Return the seconds to wait before ``attempt`` (2 is the first retry). ``random`` returns a number from 0 to
        1.
        """
        base, limit = seconds(self.base_delay, "base_delay"), seconds(self.max_delay, "max_delay")
        if attempt <= 1 or base == 0:
            return 0.0
        try:
            plain = min(base * float(self.multiplier) ** (attempt - 2), limit)
        except OverflowError:
            plain = limit
        jittered = plain * (1 + self.jitter * (2 * random() - 1))
        # A delay above the limit is mirrored below it. If it were cut, half of the retries would come at the same time.
        return min(jittered, 2 * limit - jittered)

    def merged(self, override: RetryPolicy | Mapping[str, Any] | None) -> RetryPolicy:
        """Return this policy after replacing the fields that ``override`` names."""
        if override is None:
            return self
        return replace_fields(self, override, "retry")


class BreakerPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """After too many failures, a handler is not called for ``open_for`` seconds. Then a single event tests it again.

    Too many are more than ``failure_ratio`` of at least ``minimum_samples`` events within ``window`` seconds. An event
    that ended with ``UnrecoverableError`` does not count: the event is at fault, not the handler.
    """

    failure_ratio: float = 0.5
    minimum_samples: int = 4
    window: Duration = 60.0
    open_for: Duration = 30.0

    def __post_init__(self) -> None:
        """Raise if a field is out of range."""
        seconds(self.window, "window", allow_zero=False)
        seconds(self.open_for, "open_for", allow_zero=False)
        if not isinstance(self.failure_ratio, int | float) or not 0 <= self.failure_ratio < 1:
            raise ConfigurationError(
                f"failure_ratio={self.failure_ratio!r}: must be 0 or more and below 1 (0.5 is more than half); "
                "breaker=False switches it off"
            )
        samples = self.minimum_samples
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            raise ConfigurationError(f"minimum_samples={samples!r}: must be a whole number of 1 or more")


BreakerOption = BreakerPolicy | Mapping[str, Any] | bool | None
"""A policy, or a mapping of some of its fields. False switches the breaker off; None and True keep the default."""


def breaker_policy(option: BreakerOption, default: BreakerPolicy | None) -> BreakerPolicy | None:
    """Return the policy that ``option`` asks for; None means no breaker."""
    if option is None:
        return default
    if isinstance(option, bool):
        return (default or BreakerPolicy()) if option else None
    return replace_fields(default or BreakerPolicy(), option, "breaker")

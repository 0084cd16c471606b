"""When a handler that keeps failing is left alone for a while."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from durabus.errors import ConfigurationError
from durabus.model.limits import Duration, seconds
from durabus.model.options import replace_fields


class BreakerPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A handler is not called for ``open_for`` seconds after too many of its events failed; then one probe decides.

    Too many are more than ``failure_ratio`` of at least ``minimum_samples`` events within ``window`` seconds. An event
    that ended with ``UnrecoverableError`` does not count: that is a verdict on the event.
    """

    failure_ratio: float = 0.5
    minimum_samples: int = 4
    window: Duration = 60.0
    open_for: Duration = 30.0

    def __post_init__(self) -> None:
        """Refuse a rule that could not be followed."""
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
"""A policy, some of its fields, False for none; None and True keep what is the default there."""


def breaker_policy(option: BreakerOption, default: BreakerPolicy | None) -> BreakerPolicy | None:
    """The policy that ``option`` asks for; None if there is to be no breaker."""
    if option is None:
        return default
    if isinstance(option, bool):
        return (default or BreakerPolicy()) if option else None
    return replace_fields(default or BreakerPolicy(), option, "breaker")

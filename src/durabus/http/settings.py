"""What an operator may choose; everything is checked before the first request."""

from __future__ import annotations

import msgspec

from durabus.errors import ConfigurationError
from durabus.model.claim import DEFAULT_LEASE
from durabus.model.event import DEFAULT_BUS
from durabus.model.limits import MAX_ATTEMPTS, MAX_PAYLOAD_BYTES, check_name, seconds

KIB = 1024
MAX_BODY = MAX_PAYLOAD_BYTES + 64 * KIB
"""One payload at its limit, and room for the fields around it."""
MAX_BATCH_BODY = 16 * KIB * KIB


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Durations are seconds. The defaults are those of the API's design document."""

    bus: str = DEFAULT_BUS
    """Where requests go that name no bus."""
    lease: float = DEFAULT_LEASE
    """A PROCESSING event of which nothing was heard for so long is an orphan, and others may have it."""
    retry_delay: float = 300.0
    """From a reported failure to the next attempt."""
    max_retries: int = 3
    """Failures after which an event ends FAILED, if it carries no limit of its own."""
    max_wait: float = 30.0
    """Longest time that ``POST /claims`` waits for work."""
    body_timeout: float = 10.0
    """A request's body must be there by then."""
    header_timeout: float = 10.0
    """A request's headers must be there by then; only the stand-alone server can enforce it."""
    scan_every: float = 5.0
    """How often orphans are looked for."""

    def __post_init__(self) -> None:
        """Refuse what could not work."""
        check_name(self.bus, "bus")
        for option in ("lease", "body_timeout", "header_timeout", "scan_every"):
            seconds(getattr(self, option), option, allow_zero=False)
        for option in ("retry_delay", "max_wait"):
            seconds(getattr(self, option), option)
        if not 1 <= self.max_retries <= MAX_ATTEMPTS:
            raise ConfigurationError(f"max_retries={self.max_retries!r}: must be from 1 to {MAX_ATTEMPTS}")

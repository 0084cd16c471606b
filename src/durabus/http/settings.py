"""The settings of a server. They are checked before the first request."""

from __future__ import annotations

import msgspec

from durabus.errors import ConfigurationError
from durabus.model.claim import DEFAULT_LEASE
from durabus.model.event import DEFAULT_BUS
from durabus.model.limits import MAX_ATTEMPTS, MAX_PAYLOAD_BYTES, check_name, seconds

KIB = 1024
MAX_BODY = MAX_PAYLOAD_BYTES + 64 * KIB
"""The largest payload, and room for the fields around it."""
MAX_BATCH_BODY = 16 * KIB * KIB


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Durations are in seconds. The defaults come from the API's design document."""

    bus: str = DEFAULT_BUS
    """The bus of requests that name none."""
    lease: float = DEFAULT_LEASE
    """How long a claim lasts without a sign of life from its worker. Then other workers may claim the event."""
    retry_delay: float = 300.0
    """Time from a reported failure to the next attempt."""
    max_retries: int = 3
    """Number of failures after which an event ends FAILED, unless it has a limit of its own."""
    max_wait: float = 30.0
    """Maximum time that ``POST /claims`` waits for work."""
    body_timeout: float = 10.0
    """Maximum time until the body of a request has arrived."""
    header_timeout: float = 10.0
    """Maximum time until the headers of a request have arrived. Only the stand-alone server can enforce it."""
    scan_every: float = 5.0
    """Interval between scans for events with an expired lease."""

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        check_name(self.bus, "bus")
        for option in ("lease", "body_timeout", "header_timeout", "scan_every"):
            seconds(getattr(self, option), option, allow_zero=False)
        for option in ("retry_delay", "max_wait"):
            seconds(getattr(self, option), option)
        if not 1 <= self.max_retries <= MAX_ATTEMPTS:
            raise ConfigurationError(f"max_retries={self.max_retries!r}: must be from 1 to {MAX_ATTEMPTS}")

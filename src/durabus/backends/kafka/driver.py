"""What all clients of librdkafka are told."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger("durabus.kafka.driver")

QUIET: dict[str, Any] = {
    "logger": logger,  # not to the standard error output
    "log_level": 3,  # errors: its warnings are about what it tries again
    "log.connection.close": False,
    "reconnect.backoff.max.ms": 500,
}

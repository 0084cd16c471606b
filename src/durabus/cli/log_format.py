"""Writes log records to stderr: lines of text for people, or JSON objects for programs."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

LogFormat = Literal["text", "json"]

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
EVERY_RECORD_HAS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Fields of every record. Other fields were passed as ``extra``. Only newer Pythons have ``taskName``."""


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, the record's extras, and a traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in EVERY_RECORD_HAS},
        }
        traceback = record.exc_text or (self.formatException(record.exc_info) if record.exc_info else None)
        if traceback:
            fields["traceback"] = traceback
        return msgspec.json.encode(fields, enc_hook=str).decode()


def set_up_logging(level: int, log_format: LogFormat = "text") -> None:
    """Write records of this level and above to stderr, unless the user's code has configured logging."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=level, handlers=[handler])

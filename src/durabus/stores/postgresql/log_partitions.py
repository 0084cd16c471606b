"""The log is kept by days, so that what is old enough goes as a whole table."""

from __future__ import annotations

DAYS_AHEAD = 7
"""Days of the log that exist in advance."""
PARTITIONS_EVERY = 3600.0
"""Seconds between two looks whether the next days exist."""

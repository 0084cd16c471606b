"""The log has one partition for each day, so that old entries can be dropped as a whole table."""

from __future__ import annotations

DAYS_AHEAD = 7
"""Number of days for which partitions are made in advance."""
PARTITIONS_EVERY = 3600.0
"""Seconds between two checks whether the next partitions exist."""

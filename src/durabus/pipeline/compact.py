"""Small files become large ones, and files that no recent version needs go."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from durabus.errors import ConfigurationError
from durabus.pipeline.lake import Lake
from durabus.pipeline.lock import lake_lock

SHORTEST = 7.0
"""Days. Delta refuses less: somebody may still read what would be deleted, or write what was not committed yet."""


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """How many files a table's newest version had, and has."""

    name: str
    before: int
    after: int


def compact(lake: Lake, *, keep_days: float, now: datetime, wait: float = 0.0) -> list[Compacted]:
    """Every table of the lake. Versions of the last ``keep_days`` stay readable.

    Raises ``PipelineError`` if a run has the lake for longer than ``wait`` seconds.
    """
    if keep_days < SHORTEST:
        raise ConfigurationError(f"keep_days={keep_days:g}: must be {SHORTEST:g} or more")
    with lake_lock(lake.path, wait=wait):
        return [_compact(lake, name, keep_days, now) for name in lake.tables()]


def _compact(lake: Lake, name: str, keep_days: float, now: datetime) -> Compacted:
    detail = lake.detail(name)
    before = after = int(detail["numFiles"])
    if before > 1:
        lake.compact(name)
        after = int(lake.detail(name)["numFiles"])
    if detail["createdAt"].astimezone(UTC) < now - timedelta(days=keep_days):  # a younger one has nothing that old
        lake.vacuum(name, hours=24 * keep_days)
    return Compacted(name=name, before=before, after=after)

"""What the user of a memory store should know."""

from __future__ import annotations

from durabus.store.doctor import Finding


async def examine(_url: str) -> list[Finding]:
    """Always the same."""
    advice = "everything is gone when this process ends: use sqlite:/// for what shall stay"
    return [Finding(level="warning", setting="storage", value="memory", advice=advice)]

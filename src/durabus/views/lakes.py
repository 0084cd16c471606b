"""The lakes that follow a store: how far each one is behind, and what it told about itself after its last run."""

from __future__ import annotations

import re

import msgspec

from durabus.model.lake_summary import LAKE, LakeSummary, StepSummary, TableSummary
from durabus.store.contract import EventStore
from durabus.store.log import ARCHIVE

_SCHEMAS = ("bronze", "silver", "gold", "ops")
_PROJECTION = re.compile(r"gold\.(.+)_v(\d+)")
"""The table of a projection, with its version."""


class LakeView(msgspec.Struct, frozen=True, kw_only=True):
    """A lake. ``summary`` is None before its first run has ended."""

    lake_id: str
    behind: int | None
    """The number of log entries that are not verified in the lake; None while an open transaction hides entries."""
    summary: LakeSummary | None

    @property
    def tables(self) -> list[tuple[TableSummary, StepSummary | None]]:
        """Each table, with the last run of the step that updates it, in the order in which they are made."""
        if self.summary is None:
            return []
        steps = {step.name: step for step in self.summary.steps}
        made = sorted(self.summary.tables, key=lambda table: (_SCHEMAS.index(table.name.partition(".")[0]), table.name))
        return [(table, steps.get(_step_of(table.name))) for table in made]

    def lag(self, step: StepSummary) -> int | None:
        """Return how many log entries of the store the table of a step lacks; None if it is unknown."""
        if self.behind is None or self.summary is None or step.seen is None:
            return None
        return self.behind + max(self.summary.archived - step.seen, 0)

    @property
    def problems(self) -> list[str]:
        """What needs attention, in words."""
        found = self.summary
        if found is None:
            return []
        problems = [f"{step.name} failed: {step.error}" for step in found.steps if step.error is not None]
        problems += [
            f"{one.broken:,} of {one.rows:,} rows of {one.table_name} break the expectation {one.name!r}"
            for one in found.expectations
            if one.broken
        ]
        if found.proof is not None and not found.proof.holds:
            problems.append(f"proof {found.proof.number} does not hold: entries are missing or differ")
        return problems


def _step_of(table: str) -> str:
    """Return the name of the step that updates a table. All analytics are one step."""
    projection = _PROJECTION.fullmatch(table)
    if projection is not None:
        return f"{projection[1]} v{projection[2]}"
    return "analyze" if table.startswith("gold.") else table


async def lakes_of(store: EventStore) -> list[LakeView]:
    """Return the lakes that follow the store, in order of their ids."""
    positions = (await store.read_archives()).positions
    held = await store.log_hold() is not None
    found: list[LakeView] = []
    for name, position in sorted(positions.items()):
        lake_id = name.removeprefix(ARCHIVE)
        text = await store.read_position(f"{LAKE}{lake_id}")
        found.append(
            LakeView(
                lake_id=lake_id,
                behind=None if held else await store.log_lag(position),
                summary=msgspec.json.decode(text, type=LakeSummary) if text else None,
            )
        )
    return found

"""What a run would do with each projection, and why, without reading a row."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from durabus.errors import ConfigurationError, PipelineError
from durabus.pipeline.input_tables import InputTables, in_order
from durabus.pipeline.lake import Lake
from durabus.pipeline.projections import Projection
from durabus.pipeline.schema import EVENTS
from durabus.pipeline.session import SPARK_ERRORS, first_line
from durabus.pipeline.tables import Declaration, EventTable, tables_of_types

UNKNOWN = "unknown"


class PlannedProjection(msgspec.Struct, frozen=True, kw_only=True):
    """How a run updates one projection: the mode, and the reason for it. ``mode`` is ``unknown`` if it would fail."""

    projection: str
    version: int
    inputs: tuple[str, ...]
    mode: str
    why: str


def plan(lake: Lake, declared: Sequence[Declaration]) -> list[PlannedProjection]:
    """Return the plan of each declared projection, in the order of a run."""
    projections = in_order([one for one in declared if isinstance(one, Projection)])
    inputs = InputTables(lake, projections, typed_tables(lake, declared))
    return [_planned(one, inputs) for one in projections]


def typed_tables(lake: Lake, declared: Sequence[Declaration]) -> list[EventTable]:
    """Return the typed tables of single types. Before the first run, the types that a pattern matches are unknown."""
    known = [one for one in declared if lake.exists(EVENTS.name) or not getattr(one, "is_pattern", False)]
    return tables_of_types(lake, known)


def _planned(projection: Projection, inputs: InputTables) -> PlannedProjection:
    try:
        trace = inputs.trace(projection)
        mode, why = trace.mode.value, trace.why
    except (PipelineError, ConfigurationError) as error:
        mode, why = UNKNOWN, str(error)
    except SPARK_ERRORS as error:
        mode, why = UNKNOWN, first_line(error)
    return PlannedProjection(
        projection=projection.name, version=projection.version, inputs=tuple(projection.inputs), mode=mode, why=why
    )

"""What a run would do with each projection and why, and a drawing of which table is made of which. It reads no row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import msgspec

from durabus.errors import ConfigurationError, PipelineError
from durabus.pipeline.input_tables import InputTables, in_order
from durabus.pipeline.lake import Lake
from durabus.pipeline.projections import Projection, is_own_table
from durabus.pipeline.schema import ATTEMPTS, EVENT_LOG, EVENTS
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


_LETTER, _HEIGHT, _GAP, _BETWEEN, _EDGE = 7.3, 34, 16, 90, 20
"""Width of a letter, height of a box, distances between boxes and between columns, and the margin, in pixels."""
_STYLE = """
svg { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; background: #ffffff; }
text { fill: #1f2430; } rect { fill: #eef1f6; stroke: #8a93a6; } path { fill: none; stroke: #8a93a6; }
.gold rect { fill: #fdf3d7; stroke: #b58a12; } .own rect { fill: #e4f2e7; stroke: #4b8a5a; }
@media (prefers-color-scheme: dark) {
  svg { background: #14171d; } text { fill: #e6e9ef; } rect { fill: #232833; stroke: #77819a; }
  path { stroke: #77819a; } .gold rect { fill: #3a2f10; stroke: #d3a52c; } .own rect { fill: #16301d; stroke: #6fb381; }
}"""


def sources_of_tables(declared: Sequence[Declaration]) -> dict[str, tuple[str, ...]]:
    """Return the tables of a lake and the user's own ones, each with the tables that it is made of.

    A table comes after those that it is made of.
    """
    projections = in_order([one for one in declared if isinstance(one, Projection)])
    typed = [one.type if one.is_pattern else one.table for one in declared if isinstance(one, EventTable)]
    found: dict[str, tuple[str, ...]] = {
        EVENT_LOG.name: (),
        EVENTS.name: (EVENT_LOG.name,),
        ATTEMPTS.name: (EVENT_LOG.name,),
        **dict.fromkeys(typed, (EVENTS.name,)),
    }
    for one in projections:
        for name in one.inputs:  # a typed table that a pattern makes, or a table of the user's own
            found.setdefault(name, () if is_own_table(name) else (EVENTS.name,))
        found[f"gold.{one.name}"] = tuple(one.inputs)
    return found


def draw(tables: Mapping[str, Sequence[str]]) -> str:
    """Return an SVG with a box for each table, in columns, and a line from each table to those that are made of it."""
    columns: dict[str, int] = {}
    for name, sources in tables.items():
        columns[name] = 1 + max((columns[one] for one in sources), default=-1)
    in_column = [[name for name in tables if columns[name] == n] for n in range(1 + max(columns.values()))]
    places: dict[str, tuple[float, float, float]] = {}
    left = float(_EDGE)
    for names in in_column:
        width = _LETTER * max(len(name) for name in names) + 24
        for row, name in enumerate(names):
            places[name] = left, _EDGE + row * (_HEIGHT + _GAP), width
        left += width + _BETWEEN
    lines = [_line(places[one], places[name]) for name, sources in tables.items() for one in sources]
    boxes = [_box(name, *places[name]) for name in tables]
    wide = left - _BETWEEN + _EDGE
    high = 2 * _EDGE + max(len(names) for names in in_column) * (_HEIGHT + _GAP) - _GAP
    begin = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide:.0f}" height="{high}" viewBox="0 0 {wide:.0f} {high}" '
        'role="img" aria-label="Which table is made of which">'
    )
    return "\n".join([begin, f"<style>{_STYLE}\n</style>", *lines, *boxes, "</svg>\n"])


def _line(source: tuple[float, float, float], target: tuple[float, float, float]) -> str:
    x, y = source[0] + source[2], source[1] + _HEIGHT / 2
    to_x, to_y = target[0], target[1] + _HEIGHT / 2
    bend = _BETWEEN / 2
    return f'<path d="M{x:.1f} {y:.1f} C{x + bend:.1f} {y:.1f} {to_x - bend:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"/>'


def _box(name: str, x: float, y: float, width: float) -> str:
    kind = "own" if is_own_table(name) else name.partition(".")[0]
    return (
        f'<g class="{kind if kind in ("own", "gold", "bronze") else "silver"}"><rect x="{x:.1f}" y="{y:.1f}" '
        f'width="{width:.1f}" height="{_HEIGHT}" rx="5"/>'
        f'<text x="{x + 12:.1f}" y="{y + _HEIGHT / 2 + 4.5:.1f}">{escape(name)}</text></g>'
    )

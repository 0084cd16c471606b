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


_LETTER, _HEIGHT, _GAP, _BETWEEN, _EDGE = 8.0, 34, 16, 90, 20
"""Width of a letter, height of a box, distances between boxes and between columns, and the margin, in pixels."""
GraphSlot = tuple[str, int]
"""What stands in a column: a table, or the line from a table of an earlier column to one of a later column."""
GraphPlace = tuple[float, float, float]
"""The left edge, the middle and the width of a slot."""
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
    places, wide, high = _places(_slots(tables, columns), columns)
    lines = [_line(one, name, columns, places) for name, sources in tables.items() for one in sources]
    boxes = [_box(name, *places[name, columns[name]]) for name in tables]
    begin = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide:.0f}" height="{high:.0f}" '
        f'viewBox="0 0 {wide:.0f} {high:.0f}" role="img" aria-label="Which table is made of which">'
    )
    return "\n".join([begin, f"<style>{_STYLE}\n</style>", *lines, *boxes, "</svg>\n"])


def _slots(tables: Mapping[str, Sequence[str]], columns: Mapping[str, int]) -> list[list[GraphSlot]]:
    """Return what stands in each column. A line that passes a column has a slot there, so no box hides it."""
    made: list[list[GraphSlot]] = []
    for column in range(1 + max(columns.values())):
        passing = {one for name, sources in tables.items() for one in sources if columns[one] < column < columns[name]}
        names = [name for name in tables if columns[name] == column or name in passing]
        rows = {} if not made else {slot: row for row, slot in enumerate(made[-1])}

        def height(name: str, column: int = column, rows: dict[GraphSlot, int] = rows) -> float:
            before = [name] if columns[name] < column else tables[name]
            found = [rows[one, column - 1] for one in before]
            return sum(found) / len(found) if found else len(rows)

        made.append([(name, column) for name in sorted(names, key=height)])
    return made


def _places(
    slots: Sequence[Sequence[GraphSlot]], columns: Mapping[str, int]
) -> tuple[dict[GraphSlot, GraphPlace], float, float]:
    """Return the place of each slot, and the width and height of the whole drawing."""
    places: dict[GraphSlot, GraphPlace] = {}
    left, lowest = float(_EDGE), 0.0
    for number, column in enumerate(slots):
        width = 24 + _LETTER * max(len(name) for name, _ in column if columns[name] == number)
        top = float(_EDGE)
        for name, _ in column:
            height = _HEIGHT if columns[name] == number else 0
            places[name, number] = left, top + height / 2, width
            top += height + _GAP
        left, lowest = left + width + _BETWEEN, max(lowest, top)
    return places, left - _BETWEEN + _EDGE, lowest - _GAP + _EDGE


def _line(source: str, target: str, columns: Mapping[str, int], places: Mapping[GraphSlot, GraphPlace]) -> str:
    x, y, width = places[source, columns[source]]
    path, bend = [f"M{x + width:.1f} {y:.1f}"], _BETWEEN / 2
    for column in range(columns[source] + 1, columns[target] + 1):
        from_x, from_y = x + width, y
        x, y, width = places[source if column < columns[target] else target, column]
        path.append(f"C{from_x + bend:.1f} {from_y:.1f} {x - bend:.1f} {y:.1f} {x:.1f} {y:.1f}")
        if column < columns[target]:
            path.append(f"H{x + width:.1f}")
    return f'<path d="{" ".join(path)}"/>'


def _box(name: str, x: float, middle: float, width: float) -> str:
    kind = "own" if is_own_table(name) else name.partition(".")[0]
    style = kind if kind in ("own", "gold", "bronze") else "silver"
    return (
        f'<g class="{style}"><rect x="{x:.1f}" y="{middle - _HEIGHT / 2:.1f}" '
        f'width="{width:.1f}" height="{_HEIGHT}" rx="5"/>'
        f'<text x="{x + 12:.1f}" y="{middle + 4.5:.1f}">{escape(name)}</text></g>'
    )

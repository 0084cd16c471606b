"""``durabus pipeline plan`` and ``graph``: what a run does with each projection, and which tables are made of which."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from durabus.cli.declared import Entity, Projections, declared_tables
from durabus.cli.failures import CommandFailed
from durabus.cli.lake import LAKE_DEFAULTS, LakeOptions, opened_lake, refuse_without_spark
from durabus.cli.options import DEFAULTS, Common
from durabus.cli.output import console, plain, print_json, table


def plan(
    *,
    entity: Entity = None,
    projections: Projections = None,
    options: LakeOptions = LAKE_DEFAULTS,
    common: Common = DEFAULTS,
) -> None:
    """Show in which order a run updates the projections, which rows of each it computes, and why.

    append: the new rows only. add: the rows of changed keys, from these rows and new events. upsert, window: the rows
    of changed keys, from all of their events. scd2: all rows of changed entities. full: the whole table.

    Example: durabus pipeline plan --projections projections/ --lake lake
    """
    with opened_lake(options, create=True) as lake:
        from durabus.pipeline.planning import plan as plan_of

        found = plan_of(lake, declared_tables(entity, projections))
    if common.json:
        print_json({"plan": found})
        return
    made = table("projection", "inputs", "mode", "why")
    for one in found:
        made.add_row(f"{one.projection} v{one.version}", "\n".join(one.inputs), one.mode, plain(one.why))
    console().print(made)


def graph(
    *,
    out: Annotated[Path, Parameter(help="The SVG file to write.")] = Path("durabus-tables.svg"),
    entity: Entity = None,
    projections: Projections = None,
    common: Common = DEFAULTS,
) -> None:
    """Draw which table is made of which, as an SVG. It needs neither a store nor a lake.

    Example: durabus pipeline graph --projections projections/ --out tables.svg
    """
    refuse_without_spark()
    from durabus.pipeline.planning import draw, sources_of_tables

    tables = sources_of_tables(declared_tables(entity, projections))
    try:
        out.write_text(draw(tables), encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"cannot write {out}", error.strerror or str(error), "choose another --out") from error
    if common.json:
        print_json({"graph": str(out.absolute()), "tables": tables})
    else:
        print(out.absolute())

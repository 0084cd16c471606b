"""``--projections`` and ``--entity``: the projections, typed tables and expectations of a command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from durabus.cli.failures import CommandFailed, Exit

if TYPE_CHECKING:
    from durabus.pipeline.tables import Declaration

Entity = Annotated[
    str | None, Parameter(help="Payload field that identifies an entity. Adds two projections by this field.")
]
Projections = Annotated[
    str | None,
    Parameter(
        name="--projections",
        help="Projections, typed tables and expectations: a MODULE, a list in it as MODULE:LIST, or a FOLDER of .sql "
        "files.",
    ),
]


def declared_tables(entity: str | None, target: str | None) -> list[Declaration]:
    """Return what ``--entity`` and ``--projections`` declare, after the projection that every lake has."""
    from durabus.pipeline.projections import hourly_counters, journeys, latest_state

    chosen: list[Declaration] = [hourly_counters()]
    if entity is not None:
        chosen += [latest_state(entity), journeys(entity)]
    return chosen if target is None else chosen + _loaded(target)


def _loaded(target: str) -> list[Declaration]:
    from durabus.pipeline.sql_projections import read_sql_folder
    from durabus.pipeline.tables import Declaration

    folder = Path(target)
    if "/" in target and not folder.is_dir():
        raise CommandFailed(f"cannot load {target!r}", "there is no such folder", code=Exit.USAGE)
    if "/" in target or any(folder.glob("*.sql")):  # a folder without them may be a package
        return list(read_sql_folder(folder))
    from durabus.cli.worker import load_module, load_object

    if ":" not in target:
        found = [one for one in vars(load_module(target)).values() if isinstance(one, Declaration)]
        if not found:
            raise CommandFailed(
                f"{target} declares no projection, typed table or expectation",
                hint=f"decorate a function with @projection, or name a list in it, such as {target}:PROJECTIONS",
                code=Exit.USAGE,
            )
        return found
    listed = load_object(target)
    if not isinstance(listed, list | tuple) or not all(isinstance(one, Declaration) for one in listed):
        raise CommandFailed(f"{target} is not a list of projections, typed tables and expectations", code=Exit.USAGE)
    return list(listed)

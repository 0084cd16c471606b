"""Opens the lake of the pipeline in a Spark session, and prints what was found there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from durabus.cli.failures import CommandFailed, Exit, require_installed
from durabus.cli.output import console, pairs, plain, print_json, say, table
from durabus.errors import EventNotFound
from durabus.store.events import EventRef

if TYPE_CHECKING:
    from durabus.pipeline.lake import Lake, QueryResult

LAKE_VARIABLE = "DURABUS_LAKE"
NEEDED = ("pyspark", "pyarrow", "pandas")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LakeOptions:
    """``--lake``, ``--master`` and ``--memory``."""

    lake: Annotated[str, Parameter(env_var=LAKE_VARIABLE, help="Folder or bucket URL of the tables.")] = "lake"
    master: Annotated[str, Parameter(help="Spark master, such as local[2] or spark://host:7077.")] = "local[*]"
    memory: Annotated[str, Parameter(help="Memory of the driver.")] = "1g"


LAKE_DEFAULTS = LakeOptions()


@contextmanager
def opened_lake(options: LakeOptions, *, create: bool = False) -> Iterator[Lake]:
    """Yields the lake in a Spark session. A session that was started here ends with the command."""
    refuse_without_spark()
    from durabus.pipeline.lake import Lake, is_url, lake_path

    place = lake_path(options.lake)
    if not is_url(place) and not create and not Path(place).is_dir():
        raise CommandFailed(
            "no lake found",
            f"{place} does not exist",
            "create it with `durabus pipeline run --lake DIR`, or set --lake or DURABUS_LAKE to an existing one",
            code=Exit.NOT_FOUND,
        )
    from durabus.jars import cache_folder
    from durabus.pipeline.session import SPARK_ERRORS, is_running, root_cause, spark_session

    messages = cache_folder("spark.log")
    messages.parent.mkdir(parents=True, exist_ok=True)
    running = is_running()
    if not running:
        say("starting Spark …")
    spark = spark_session(master=options.master, memory=options.memory, messages=messages)
    try:
        yield Lake(spark, options.lake)
    except SPARK_ERRORS as error:
        raise CommandFailed("the pipeline failed", root_cause(error)) from error
    finally:
        if not running:
            spark.stop()


def refuse_without_spark() -> None:
    """Refuse a command if the extra ``spark`` is not installed."""
    require_installed(NEEDED, what="the pipeline", extras="cli,spark")


def show_archived(ref: EventRef, lake: str, *, as_json: bool) -> None:
    """Print the audit trail of an event that the store has trimmed."""
    with opened_lake(LakeOptions(lake=lake)) as found:
        from durabus.pipeline.lake import archived_trail

        trail = archived_trail(found, ref)
    if not trail.rows:
        raise EventNotFound(ref)
    if as_json:
        print_json({"event": None, "archived": documents(trail)})
        return
    say("the store has trimmed this event; this is its copy in the lake")
    last = trail.rows[-1]
    shown = {
        name: str(last[name]) for name in ("event_id", "bus", "type", "status", "payload") if last[name] is not None
    }
    out = console()
    out.print(pairs((name, plain(value)) for name, value in shown.items()))
    made = table("at", "action", "try", "worker", "error")
    for row in trail.rows:
        made.add_row(
            str(row["at"]), row["action"], str(row["attempt"]), plain(row["worker_id"] or ""), plain(row["error"] or "")
        )
    out.print()
    out.print(made)


def print_result(found: QueryResult, *, as_json: bool) -> None:
    """Print the rows of a query as a table or as JSON."""
    if as_json:
        print_json(documents(found))
        return
    number = {"justify": "right"}
    numbers = {name for name in found.columns if all(isinstance(row[name], int | float) for row in found.rows)}
    made = table(*((name, number) if name in numbers else name for name in found.columns))
    for row in found.rows:
        made.add_row(*("" if row[name] is None else plain(str(row[name])) for name in found.columns))
    console().print(made)


def documents(found: QueryResult) -> list[dict[str, Any]]:
    """Return the rows of a query as values that JSON has."""
    return [{name: _document(value) for name, value in row.items()} for row in found.rows]


def _document(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | list | dict | None) else str(value)

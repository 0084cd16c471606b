"""Opens the lake of the pipeline in a Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from durabus.cli.failures import CommandFailed, Exit, require_installed
from durabus.cli.output import say

if TYPE_CHECKING:
    from durabus.pipeline.lake import Lake

LAKE_VARIABLE = "DURABUS_LAKE"
NEEDED = ("pyspark", "pyarrow", "pandas")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LakeOptions:
    """``--lake``, ``--master`` and ``--memory``."""

    lake: Annotated[str, Parameter(env_var=LAKE_VARIABLE, help="Folder or bucket URL of the tables.")] = "lake"
    master: Annotated[str, Parameter(help="Spark master, such as local[2].")] = "local[*]"
    memory: Annotated[str, Parameter(help="Memory of the driver.")] = "1g"


LAKE_DEFAULTS = LakeOptions()


@contextmanager
def opened_lake(options: LakeOptions, *, create: bool = False) -> Iterator[Lake]:
    """Yields the lake in a Spark session. A session that was started here ends with the command."""
    refuse_without_spark()
    local = "://" not in options.lake
    if local and not create and not Path(options.lake).is_dir():
        raise CommandFailed(
            "no lake found",
            f"{Path(options.lake).absolute()} does not exist",
            "create it with `durabus pipeline run --lake DIR`, or set --lake or DURABUS_LAKE to an existing one",
            code=Exit.NOT_FOUND,
        )
    from durabus.jars import cache_folder
    from durabus.pipeline.lake import Lake
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

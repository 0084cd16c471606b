"""Computes a derived table anew, whole or in part, and takes the last rebuild back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import uuid4

from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.errors import ConfigurationError, PipelineError
from durabus.pipeline.analytics import rebuild_activity
from durabus.pipeline.derive import (
    TRANSFORMS,
    Declared,
    is_made_by,
    merge_entries,
    rebuild_silver,
)
from durabus.pipeline.input_tables import InputTables
from durabus.pipeline.lake import Lake, in_utc, plain_name, version_of
from durabus.pipeline.lake_lock import alone
from durabus.pipeline.projecting import rebuild_projection, update_since
from durabus.pipeline.projections import Projection
from durabus.pipeline.schema import ACTIVITY, EVENTS, RUNS
from durabus.pipeline.session import SPARK_ERRORS, root_cause
from durabus.pipeline.store_session import StoreSession
from durabus.pipeline.tables import Declaration, EventTable, rebuild_table, tables_of_types, write_events


def rebuild(
    lake: Lake,
    name: str,
    declared: Sequence[Declaration],
    *,
    since: datetime | None = None,
    session: StoreSession | None = None,
    wait: float = 0.0,
) -> int:
    """Compute a silver table or a declared table anew. Returns the number of rows read.

    With ``since``, only rows of events with entries at or after this instant are computed; the others stay.
    """
    with alone(lake.path, session, wait=wait):
        if name == ACTIVITY.name and since is None:
            return rebuild_activity(lake)
        if name in TRANSFORMS:
            return rebuild_silver(lake, name) if since is None else _silver_since(lake, name, since)
        projections = {one.name: one for one in declared if isinstance(one, Projection)}
        if name in projections:
            inputs = InputTables(lake, list(projections.values()), tables_of_types(lake, declared))
            if since is None:
                return rebuild_projection(lake, projections[name], inputs)
            _refuse_another_formula(lake, projections[name], name)
            return update_since(lake, projections[name], since, inputs)
        tables = {one.table: one for one in tables_of_types(lake, declared)}
        if name in tables:
            return rebuild_table(lake, tables[name]) if since is None else _table_since(lake, tables[name], since)
    known = ", ".join([*TRANSFORMS, ACTIVITY.name, *projections, *tables])
    raise ConfigurationError(f"no table {name!r} to rebuild: choose {known}, or name yours with --projections")


def _silver_since(lake: Lake, name: str, since: datetime) -> int:
    if not lake.exists(name):
        raise PipelineError(f"the lake has no {name} to rebuild in part: leave out --since")
    return merge_entries(lake, name, F.col("at") >= F.lit(since))


def _table_since(lake: Lake, table: EventTable, since: datetime) -> int:
    _refuse_another_formula(lake, table, table.table)
    return write_events(lake, table, lake.read(EVENTS.name).where(F.col("last_at") >= F.lit(since)))


def _refuse_another_formula(lake: Lake, declared: Declared, name: str) -> None:
    if not is_made_by(lake, declared):
        raise PipelineError(
            f"{name}: its table is absent or was made by another formula, and one table must not have rows of two "
            "formulas: leave out --since"
        )


def rollback(lake: Lake, name: str, *, session: StoreSession | None = None, wait: float = 0.0) -> int:
    """Set a silver table or a projection back to its state before its last rebuild. Returns that version of the table.

    The next run brings the table up to date from there. A projection whose formula has changed is then rebuilt, so
    take back the change of the formula first.
    """
    with alone(lake.path, session, wait=wait):
        table = _table_of(lake, name)
        history = lake.history(table)
        undone = next((one for one in history if _replaces(one["operation"])), None)
        if undone is None or undone["version"] == 0:
            raise PipelineError(f"{table} has had no rebuild that could be taken back")
        if undone["operation"] == _RESTORE:
            raise PipelineError(f"the last rebuild of {table} was taken back already: run or rebuild it first")
        target = next(one for one in history if one["version"] == undone["version"] - 1)
        version = int(target["version"])
        if name not in TRANSFORMS:
            _set_back(lake, plain_name(table).removeprefix("gold."), version_of(table), in_utc(target["timestamp"]))
        try:
            lake.restore(table, version)
        except SPARK_ERRORS as error:
            raise PipelineError(
                f"{table} cannot go back to version {target['version']}: {root_cause(error)}"
            ) from error
        return int(target["version"])


_RESTORE = "RESTORE"


def _replaces(operation: str) -> bool:
    return operation == _RESTORE or "REPLACE TABLE" in operation


def _table_of(lake: Lake, name: str) -> str:
    found = [one for one in lake.tables() if name in (one, plain_name(one).removeprefix("gold."))]
    derived = [one for one in found if one in TRANSFORMS or version_of(one)]
    if not derived:
        raise ConfigurationError(
            f"{name!r} is neither a projection in the lake nor one of {', '.join(TRANSFORMS)}: only these can be set "
            "back; `durabus pipeline tables` lists all tables"
        )
    return max(derived, key=version_of)


def _set_back(lake: Lake, step: str, version: int, at: datetime) -> None:
    """Note that a projection has seen only what it had seen at this instant.

    This comes before the table is set back: if this is killed between the two, the next run computes keys twice.
    """
    noted = lake.read(RUNS.name).where(
        (F.col("step") == step) & (F.col("version") == version) & F.col("error").isNull()
    )
    before = noted.where(F.col("finished_at") <= F.lit(at.replace(tzinfo=UTC))).agg(F.max("watermark")).first()
    seen = -1 if before is None or before[0] is None else int(before[0])
    now = datetime.now(UTC)  # clock: when people read that it ran
    line = (str(uuid4()), step, version, seen, 0, 0.0, now, None)
    lake.append(lake.spark.createDataFrame([line], RUNS.ddl), RUNS)

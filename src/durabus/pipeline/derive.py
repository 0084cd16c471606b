"""Updates derived tables: only the rows whose input has changed are computed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Protocol

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.errors import ConfigurationError
from durabus.pipeline.archive import bronze_end
from durabus.pipeline.lake import Lake
from durabus.pipeline.lake_lock import alone
from durabus.pipeline.news import News
from durabus.pipeline.schema import ATTEMPTS, EVENT_LOG, EVENTS, RUNS, Table
from durabus.pipeline.silver import OF_ATTEMPTS, attempts, events
from durabus.pipeline.store_session import StoreSession
from durabus.pipeline.upserting import of_keys

Transform = Callable[[DataFrame], DataFrame]
_SEEN, _OPEN = "seen", "open"
MOST_OPEN = 10_000
"""Maximum number of claims without an end that the driver keeps in memory."""
TRANSFORMS: dict[str, tuple[Table, Transform, list[str] | None]] = {
    EVENTS.name: (EVENTS, events, None),
    ATTEMPTS.name: (ATTEMPTS, attempts, OF_ATTEMPTS),
}
"""The table of each name, its transform, and the actions that it uses; None for all actions."""


def update_silver(lake: Lake, name: str, news: News | None = None) -> int:
    """Compute the rows of events that have new entries. Returns the number of new entries.

    The column ``last_seq`` says which entries the table has seen, so data and progress are one commit. A killed run
    leaves the table unchanged, and a repeated run changes nothing. ``news`` are the entries that this run has added to
    bronze; a table that has not seen all entries before them does without.
    """
    table, _, actions = TRANSFORMS[name]
    end = bronze_end(lake).rows
    seen = _seen(lake, table)
    if seen is None:  # absent, empty, or of an older durabus
        return rebuild_silver(lake, name)
    if seen == end - 1:
        return 0
    if news is not None and news.first_seq <= seen + 1:
        count = _merge_news(lake, table, actions, news, fresh=news.first_seq == seen + 1 and not news.older)
    else:
        count = merge_entries(lake, name, F.col("seq") > seen)
    lake.memory.keep(name, _SEEN, end - 1)
    return count


def _seen(lake: Lake, table: Table) -> int | None:
    """Return the last ``seq`` that a table has seen; None if it must be computed anew."""
    known: int | None = lake.memory.get(table.name, _SEEN)
    if known is not None:
        return known
    if not lake.exists(table.name) or lake.read(table.name).columns != list(table.columns):
        return None
    newest = lake.value(table.name, "max(last_seq)")
    return None if newest is None else int(newest)


def _merge_news(lake: Lake, table: Table, actions: Sequence[str] | None, news: News, *, fresh: bool) -> int:
    """Write the rows of the events that have new entries. If they are ``fresh``, the table has no row of them yet."""
    count = len(news.table) if actions is None else sum(one in actions for one in news.table["action"].to_pylist())
    if not count:
        return 0
    rows = news.events if table is EVENTS else lake.spark.createDataFrame(news.attempts_table)
    open_before: pa.Table | None = lake.memory.get(ATTEMPTS.name, _OPEN)
    condition = of_keys(pa.table({"id": pa.array(news.ids, pa.int64())}))
    if fresh:
        lake.append(rows.coalesce(1), table)
    elif condition is not None:
        lake.replace_where(rows.coalesce(1), table.name, condition)
    else:
        lake.merge(rows, table.name, table.key, within=news.within)
    if table is ATTEMPTS and open_before is not None:
        others = open_before.filter(pc.invert(pc.is_in(open_before["id"], pa.array(news.ids, pa.int64()))))
        new = news.attempts_table.filter(pc.field("outcome").is_null())
        _keep_open(lake, pa.concat_tables([others, new], promote_options="default"))
    return count


def open_attempts(lake: Lake) -> pa.Table | None:
    """Return the rows of ``silver.attempts`` without an end; None if they are too many for the driver's memory."""
    found: pa.Table | None = lake.memory.get(ATTEMPTS.name, _OPEN)
    if found is None:
        found = lake.read(ATTEMPTS.name).where(F.col("outcome").isNull()).limit(MOST_OPEN + 1).toArrow()
        _keep_open(lake, found)
    return found if len(found) <= MOST_OPEN else None


def _keep_open(lake: Lake, rows: pa.Table) -> None:
    """Keep in memory that these are the rows of ``silver.attempts`` without an end, if they are few."""
    if len(rows) <= MOST_OPEN:
        lake.memory.keep(ATTEMPTS.name, _OPEN, rows)


def merge_entries(lake: Lake, name: str, condition: Column) -> int:
    """Compute the rows of the events with entries that meet a condition. Returns the number of these entries."""
    table, transform, actions = TRANSFORMS[name]
    log = lake.read(EVENT_LOG.name)
    new = log.where(condition)
    if actions is not None:
        new = new.where(F.col("action").isin(actions))
    found = new.agg(F.count("*"), F.min(F.to_date("created_at"))).first()
    count, oldest = (0, None) if found is None else (int(found[0]), found[1])
    if count:
        lake.merge(transform(entries_of(log, new, oldest)), table.name, table.key)
    return count


def rebuild_silver(lake: Lake, name: str) -> int:
    """Compute the whole table from bronze. Returns the number of entries read."""
    table, transform, _ = TRANSFORMS[name]
    end = bronze_end(lake).rows
    log = lake.read(EVENT_LOG.name)
    # Each file then has a range of ids of its own, so that a merge of a few events reads few files.
    lake.overwrite(transform(log.repartitionByRange("id")), table.name, table.properties)
    lake.memory.keep(name, _SEEN, end - 1)
    return end


def entries_of(log: DataFrame, new: DataFrame, oldest: date | None) -> DataFrame:
    """Return all entries of the events in ``new``. ``oldest`` is the day on which the oldest of them was published."""
    touched = new.select("id").distinct()
    # A damaged entry may have no day.
    since = log if oldest is None else log.where((F.col("day") >= F.lit(oldest)) | F.col("day").isNull())
    return since.join(touched, "id", "left_semi")


FINGERPRINT = "durabus.fingerprint"
"""The property of a declared table with the fingerprint of what made it."""


class Declared(Protocol):
    """A table that the user has declared."""

    @property
    def table(self) -> str:
        """The name of the table."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash of what computes the rows."""
        ...


def is_made_by(lake: Lake, declared: Declared) -> bool:
    """Return whether the table exists and this declaration, not a changed one of the same name, made it."""
    if not lake.exists(declared.table):
        return False
    known = lake.memory.get(declared.table, FINGERPRINT)
    if known is None:
        known = lake.detail(declared.table)["properties"].get(FINGERPRINT)
        lake.memory.keep(declared.table, FINGERPRINT, known)
    return bool(known == declared.fingerprint)


def keep_maker(lake: Lake, declared: Declared) -> None:
    """Keep in memory that this declaration has made the newest commit of its table."""
    lake.memory.keep(declared.table, FINGERPRINT, declared.fingerprint)


Watermarks = dict[tuple[str, int | None], int]
WATERMARKS = "watermarks"


def watermarks(lake: Lake) -> Watermarks:
    """Return the ``seq`` up to which each step and version has seen all entries, without steps that never completed.

    The newest line counts: after a rollback, a table has seen less than before.
    """
    if not lake.exists(RUNS.name):
        return {}
    known: Watermarks | None = lake.memory.get(RUNS.name, WATERMARKS)
    if known is not None:
        return known
    done = lake.read(RUNS.name).where(F.col("error").isNull() & F.col("watermark").isNotNull())
    rows = done.groupBy("step", "version").agg(F.max_by("watermark", "finished_at").alias("watermark")).collect()
    found = {(row["step"], row["version"]): row["watermark"] for row in rows}
    lake.memory.keep(RUNS.name, WATERMARKS, found)
    return found


SHORTEST = 7.0
"""Minimum number of days to keep. Delta refuses less, because another job may still read or commit younger files."""


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """The number of files of a table before and after its compaction."""

    name: str
    before: int
    after: int


def compact(
    lake: Lake, *, keep_days: float, now: datetime, session: StoreSession | None = None, wait: float = 0.0
) -> list[Compacted]:
    """Compact every table of the lake. Versions of the last ``keep_days`` stay readable.

    Raises ``PipelineError`` if a run uses the lake for longer than ``wait`` seconds.
    """
    if keep_days < SHORTEST:
        raise ConfigurationError(f"keep_days={keep_days:g}: must be {SHORTEST:g} or more")
    with alone(lake.path, session, wait=wait):
        return [_compact(lake, name, keep_days, now) for name in lake.tables()]


def _compact(lake: Lake, name: str, keep_days: float, now: datetime) -> Compacted:
    detail = lake.detail(name)
    before = after = int(detail["numFiles"])
    if before > 1:
        lake.compact(name)
        after = int(lake.detail(name)["numFiles"])
    if detail["createdAt"].astimezone(UTC) < now - timedelta(days=keep_days):  # a younger table has no files that old
        lake.vacuum(name, hours=24 * keep_days)
    return Compacted(name=name, before=before, after=after)

"""Typed tables: ``silver.<type>`` has one row per event of a type, with the fields of its payload as columns."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from threading import Lock
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from durabus.errors import ConfigurationError
from durabus.model.pattern import ANY, check_pattern
from durabus.pipeline.declared import declared_columns
from durabus.pipeline.decoding import REASON, decode_batches, with_nulls
from durabus.pipeline.derive import FINGERPRINT, is_made_by, keep_maker
from durabus.pipeline.expectations import Expectation, OnBreak
from durabus.pipeline.inference import (
    FOUND,
    ODD,
    RESERVED,
    extends,
    find_kinds,
    inferred_columns,
    merged_kinds,
)
from durabus.pipeline.lake import Lake
from durabus.pipeline.news import News
from durabus.pipeline.projections import Projection, of_types, upcasting_source
from durabus.pipeline.schema import CORE_TABLES, EVENTS, MERGED, REFUSED, Table
from durabus.pipeline.slos import Slo
from durabus.pipeline.upcasts import UPCAST_ERROR, upcasted

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_SEPARATORS = re.compile(r"[.:/-]+")
_ID, _PAYLOAD = "durabus_id", "durabus_payload"
_ABOUT = {
    _ID: "id",
    "durabus_event_id": "event_id",
    "durabus_bus": "bus",
    "durabus_status": "status",
    "durabus_published_at": "published_at",
    "durabus_ended_at": "ended_at",
    "durabus_seq": "last_seq",
}
"""The columns of the event itself, each with its column in ``silver.events``. They come before those of the payload."""
FEW_BYTES = 8_000_000
"""Maximum size of the payloads that the driver decodes itself."""

_SETTING_ASIDE = Lock()
"""Tables are filled side by side, and Delta refuses one of two commits to ``silver.quarantine`` at the same time."""

MapBatches = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class EventTable(msgspec.Struct, frozen=True):
    """A table of the events of one type, from their publishing on.

    - ``type``: the event type. Without a schema it may be a pattern: each matching type has a table of its own.
    - ``schema``: a pydantic model, dataclass, msgspec Struct, TypedDict or JSON Schema. Without one, the columns are
      inferred, and grow with new fields. See ``durabus.pipeline.declared`` and ``durabus.pipeline.inference``.
    - ``name``: the name of the table in ``silver``. By default that of the type, with ``_`` for each dot.

    An event whose payload does not fit is in ``silver.quarantine``, with the reason, and not in the table.
    """

    type: str
    schema: Any = None
    name: str = ""
    expectations: tuple[Expectation, ...] = ()
    """The expectations that put rows into the quarantine. The run adds them here: declare them beside the tables."""

    def __post_init__(self) -> None:
        check_pattern(self.type)
        if self.is_pattern:
            if self.schema is not None or self.name:
                raise ConfigurationError(f"table of {self.type!r}: a pattern has several tables: no schema= or name=")
            return
        short = self.table.removeprefix("silver.")
        if not _NAME.fullmatch(short):
            raise ConfigurationError(
                f"table of {self.type!r}: {short!r} cannot be the name of a table: give one with name=, of small "
                "letters, digits and _"
            )
        taken = {table.name for table in CORE_TABLES}
        if self.table in taken:
            raise ConfigurationError(f"table of {self.type!r}: {self.table} is a table of durabus: choose a name=")
        _check_names(self.columns, self.type)

    @property
    def is_pattern(self) -> bool:
        """Whether it stands for the tables of several types."""
        return ANY in self.type

    @property
    def table(self) -> str:
        """The name of its table."""
        return f"silver.{self.name or _SEPARATORS.sub('_', self.type.lower())}"

    @property
    def columns(self) -> pa.Schema | None:
        """The declared columns; None if they are inferred."""
        return None if self.schema is None else declared_columns(self.schema)

    @property
    def fingerprint(self) -> str:
        """A hash of what computes the rows: the type, its upcasters, the declared columns, the expectations."""
        columns = self.columns
        shown = None if columns is None else columns.to_string(show_field_metadata=True)
        rules = [(one.name, one.source) for one in self.expectations]
        parts = (self.type, upcasting_source([self.type]), shown, rules)
        return hashlib.sha256(repr(parts).encode()).hexdigest()


Declaration = Projection | EventTable | Expectation | Slo
"""What a user may declare for a run."""


def _check_names(columns: pa.Schema | None, event_type: str) -> None:
    """Raise ``ConfigurationError`` for a declared field that cannot be a column."""
    seen: set[str] = set()
    for name in () if columns is None else columns.names:
        if ODD.search(name) or name.lower().startswith(RESERVED) or name.lower() in seen:
            raise ConfigurationError(
                f"table of {event_type!r}: the field {name!r} cannot be a column: a name has no space and none of "
                f",;{{}}()=.` in it, does not begin with {RESERVED}, and differs from others not only in case"
            )
        seen.add(name.lower())


def tables_of_types(lake: Lake, declared: Sequence[Declaration]) -> list[EventTable]:
    """Return the tables of single types: those declared, and one for each type in the lake that a pattern matches.

    They have the expectations that put rows into the quarantine. Raises ``ConfigurationError`` if two types would have
    the same table, or if such an expectation has no typed table.
    """
    typed = [one for one in declared if isinstance(one, EventTable)]
    tables = [one for one in typed if not one.is_pattern]
    patterns = tuple(one.type for one in typed if one.is_pattern)
    if patterns:
        found = lake.read(EVENTS.name).where(of_types(patterns)).select("type").distinct().collect()
        known = {one.type for one in tables}
        tables += [EventTable(one) for one in sorted(row["type"] for row in found) if one not in known]
    names: dict[str, str] = {}
    for one in tables:
        other = names.setdefault(one.table, one.type)
        if other != one.type:
            raise ConfigurationError(f"{other!r} and {one.type!r} would both be {one.table}: give one of them a name=")
    strict: dict[str, tuple[Expectation, ...]] = {}
    for rule in declared:
        if isinstance(rule, Expectation) and rule.action == OnBreak.QUARANTINE:
            if rule.table not in names:
                raise ConfigurationError(
                    f"expectation {rule.name!r}: {rule.table} is no typed table, and only these have a quarantine: "
                    "choose warn or fail"
                )
            strict[rule.table] = (*strict.get(rule.table, ()), rule)
    return [msgspec.structs.replace(one, expectations=strict.get(one.table, ())) for one in tables]


def update_table(lake: Lake, table: EventTable, *, seen: int | None, news: News | None = None) -> int:
    """Write the rows of events that changed after the entry ``seen``; None: all. Returns the number of events.

    A repeated call writes the same rows. ``news`` are the entries that this run has added to bronze; a table that has
    not seen all entries before them does without.
    """
    if seen is None or not is_made_by(lake, table):
        return rebuild_table(lake, table)
    if news is not None and news.first_seq <= seen + 1:
        return write_events(lake, table, news.events)
    return write_events(lake, table, lake.read(EVENTS.name).where(F.col("last_seq") > seen))


def write_events(lake: Lake, table: EventTable, changed: DataFrame) -> int:
    """Write the rows of those among these events that belong to the table. Returns their number.

    If an inferred column must widen, the whole table is computed anew and replaced in one commit.
    """
    new = _of_table(changed, table)
    count, few = _amount(new)
    if not count:
        return 0
    existing = _payload_columns(lake, table)
    columns = table.columns
    if columns is None:
        columns = _inferred(new, existing, few=few)
        if not extends(pa.struct(list(columns)), pa.struct(list(existing))):
            return rebuild_table(lake, table)
    rows = _checked(_decoded(new, columns, few=few), table).persist()  # it is used several times
    try:
        _set_aside(lake, rows, table, all_events=False)
        fitting = _fitting(rows)
        if table.columns is None and not with_nulls(columns).equals(with_nulls(existing)):
            lake.append(fitting.limit(0), Table(name=table.table, ddl=""))  # adds the columns that the table lacks
        lake.merge(fitting, table.table, (_ID,), of=rows.select(_ID))
        keep_maker(lake, table)
        return count
    finally:
        rows.unpersist()


def rebuild_table(lake: Lake, table: EventTable) -> int:
    """Compute the whole table and replace it in one commit. Returns the number of events."""
    events = _of_table(lake.read(EVENTS.name), table)
    count, few = _amount(events)
    columns = _inferred(events, None, few=few) if table.columns is None else table.columns
    rows = _checked(_decoded(events, columns, few=few), table).persist()
    try:
        _set_aside(lake, rows, table, all_events=True)
        lake.overwrite(_fitting(rows), table.table, MERGED | {FINGERPRINT: table.fingerprint})
        keep_maker(lake, table)
        return count
    finally:
        rows.unpersist()


def _of_table(events: DataFrame, table: EventTable) -> DataFrame:
    """Return those of these events that belong to the table, with payloads of the newest version."""
    return upcasted(events.where((F.col("type") == table.type) & F.col("payload").isNotNull()))


def _amount(events: DataFrame) -> tuple[int, bool]:
    """Return the number of events, and whether they are few enough for the driver."""
    row = events.agg(F.count("*"), F.sum(F.octet_length("payload"))).first()
    return (0, True) if row is None else (int(row[0]), (row[1] or 0) <= FEW_BYTES)


def _mapped(rows: DataFrame, function: MapBatches, schema: pa.Schema, *, few: bool) -> DataFrame:
    """Return what the function makes of the rows. The driver maps few rows itself: Spark would start Python workers."""
    if not few:
        return rows.mapInArrow(function, from_arrow_schema(schema))
    batches = list(function(rows.toArrow().to_batches()))
    # Instants may come in the time zone of the session.
    made = pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()
    return rows.sparkSession.createDataFrame(made, from_arrow_schema(schema)).coalesce(1)


def _inferred(events: DataFrame, existing: pa.Schema | None, *, few: bool) -> pa.Schema:
    payloads = events.where(F.col(UPCAST_ERROR).isNull()).select(F.col("first_seq").alias("seq"), "payload")
    kinds = _mapped(payloads, find_kinds, FOUND, few=few).groupBy("path", "kind").agg(F.min("seq").alias("seq"))
    return inferred_columns(merged_kinds((row.asDict() for row in kinds.collect()), existing))


def _payload_columns(lake: Lake, table: EventTable) -> pa.Schema:
    fields = [one for one in lake.read(table.table).schema if one.name not in _ABOUT]
    return to_arrow_schema(StructType(fields), timezone="UTC")


def _decoded(events: DataFrame, columns: pa.Schema, *, few: bool) -> DataFrame:
    """Return the events with their payload, its columns, and the reason why it does not fit."""
    names = _ABOUT | {_PAYLOAD: "payload", UPCAST_ERROR: UPCAST_ERROR}
    about = events.select(*(F.col(of).alias(name) for name, of in names.items()))
    schema = pa.schema([*to_arrow_schema(about.schema, timezone="UTC"), *with_nulls(columns), (REASON, pa.string())])
    decoded = _mapped(about, partial(decode_batches, columns=columns, payload=_PAYLOAD), schema, few=few)
    return decoded.withColumn(REASON, F.coalesce(UPCAST_ERROR, REASON)).drop(UPCAST_ERROR)


def _checked(rows: DataFrame, table: EventTable) -> DataFrame:
    """Return the rows, with a reason for each that breaks an expectation of the table."""
    for one in table.expectations:
        told = F.when(one.broken(rows), F.lit(f"breaks the expectation {one.name!r}"))
        rows = rows.withColumn(REASON, F.coalesce(REASON, told))
    return rows


def _fitting(rows: DataFrame) -> DataFrame:
    return rows.where(F.col(REASON).isNull()).drop(REASON, _PAYLOAD)


def _set_aside(lake: Lake, rows: DataFrame, table: EventTable, *, all_events: bool) -> None:
    """Write the rows that do not fit to ``silver.quarantine``, and delete those of earlier that fit now."""
    refused = rows.where(F.col(REASON).isNotNull()).select(
        F.lit(table.table).alias("table_name"),
        F.col(_ID).alias("id"),
        F.col("durabus_event_id").alias("event_id"),
        F.lit(table.type).alias("type"),
        F.col("durabus_published_at").alias("published_at"),
        F.col(REASON).alias("reason"),
        F.col(_PAYLOAD).alias("payload"),
    )
    with _SETTING_ASIDE:
        lake.create(REFUSED)
        if all_events:
            lake.replace_where(refused, REFUSED.name, f"table_name = '{table.table}'")
        elif not refused.isEmpty():
            lake.merge(refused, REFUSED.name, REFUSED.key)

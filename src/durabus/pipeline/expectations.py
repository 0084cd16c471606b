"""Expectations: rules that the rows of a table meet. Every run checks them and notes the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.errors import ConfigurationError
from durabus.pipeline.lake import Lake
from durabus.pipeline.projections import source_of
from durabus.pipeline.schema import EXPECTATIONS

SAMPLES = 5
"""Maximum number of rows that break an expectation in its result."""


class OnBreak(StrEnum):
    """What happens to rows that break an expectation."""

    WARN = "warn"
    """They stay in the table; the result counts them."""
    QUARANTINE = "quarantine"
    """They are in ``silver.quarantine`` instead of their typed table."""
    FAIL = "fail"
    """They stay in the table, and the run ends with an error after it has updated all tables."""


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """A rule for every row of a table.

    - ``table``: its name, such as ``silver.order_placed`` or ``gold.spent_v1``.
    - ``rule``: a condition in SQL over the columns, or a function from DataFrame to Column. A row for which it is not
      true, or NULL, breaks the expectation.
    """

    name: str
    table: str
    rule: str | Callable[[DataFrame], Column]
    action: OnBreak = OnBreak.WARN

    def __post_init__(self) -> None:
        try:
            OnBreak(self.action)
        except ValueError:
            raise ConfigurationError(
                f"expectation {self.name!r}: action={self.action!r}: choose {', '.join(OnBreak)}"
            ) from None

    def broken(self, rows: DataFrame) -> Column:
        """Return the condition that a row breaks it."""
        met = F.expr(self.rule) if isinstance(self.rule, str) else self.rule(rows)
        return ~F.coalesce(met, F.lit(False))

    @property
    def source(self) -> str:
        """The text of the rule, which changes when the rule changes."""
        return self.rule if isinstance(self.rule, str) else source_of(self.rule)


class ExpectationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The number of rows of the table, and how many of them break the expectation, with the first of them as JSON."""

    name: str
    table_name: str
    action: str
    rows: int
    broken: int
    samples: list[str]


def check_table(lake: Lake, table: str, expectations: Sequence[Expectation]) -> list[ExpectationResult]:
    """Check the expectations of one table, in one pass over its rows."""
    rows = lake.read(table)
    counts = [F.count_if(one.broken(rows)) for one in expectations]
    found = rows.agg(F.count("*"), *counts).first()
    total, *broken = (0,) * (1 + len(counts)) if found is None else tuple(found)
    return [
        ExpectationResult(
            name=one.name,
            table_name=table,
            action=str(one.action),
            rows=total,
            broken=number,
            samples=_samples(rows.where(one.broken(rows))) if number else [],
        )
        for one, number in zip(expectations, broken, strict=True)
    ]


def _samples(broken: DataFrame) -> list[str]:
    rows = broken.select(F.to_json(F.struct("*")).alias("row")).limit(SAMPLES).collect()
    return [row["row"] for row in rows]


def note_results(lake: Lake, results: Sequence[ExpectationResult], *, run_id: str, checked_at: datetime) -> None:
    """Add the results of a run to ``ops.expectations``."""
    if results:
        rows = [
            (run_id, one.name, one.table_name, one.action, one.rows, one.broken, one.samples, checked_at)
            for one in results
        ]
        lake.append(lake.spark.createDataFrame(rows, EXPECTATIONS.ddl), EXPECTATIONS)


def newest_results(lake: Lake) -> list[ExpectationResult]:
    """Return the newest result of each expectation, the broken ones first."""
    if not lake.exists(EXPECTATIONS.name):
        return []
    newest = (
        lake.read(EXPECTATIONS.name)
        .groupBy("name", "table_name")
        .agg(F.max_by(F.struct("action", "rows", "broken", "samples"), "checked_at").alias("last"))
        .select("name", "table_name", "last.*")
        .orderBy(F.desc("broken"), "table_name", "name")
    )
    return [ExpectationResult(**row.asDict()) for row in newest.collect()]


def failures(results: Sequence[ExpectationResult]) -> list[str]:
    """Return a line for each broken expectation that fails the run."""
    return [
        f"expectation {one.name!r}: {one.broken:,} of {one.rows:,} rows of {one.table_name} break it"
        for one in results
        if one.broken and one.action == OnBreak.FAIL
    ]

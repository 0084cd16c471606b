"""Writes few rows of a table: it replaces them, or adds new rows of an input to them.

A merge is made for many rows: for few, it costs twice as much as to replace them.

The count of a customer's events is the count so far plus the number of new ones. Spark's optimizer shows whether a
projection is of this kind: its plan has one GROUP BY over single rows of the input, each aggregate can be merged from
two parts, and the columns of the table show the value that each aggregate has so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]  # it ships no types
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.pipeline.lake import Lake

MOST_KEYS = 2_000
"""Maximum number of keys that a condition names."""
MOST_TERMS = 200
"""Maximum number of terms of a condition. Each names the keys that differ only in their last column."""
_MICROSECOND = timedelta(microseconds=1)
_LIST = "CollectList"
_MERGES: Mapping[str, Callable[[str], Column]] = {
    "Count": F.sum,
    "Sum": F.sum,
    "Min": F.min,
    "Max": F.max,
    _LIST: lambda name: F.flatten(F.collect_list(name)),
}
"""How parts of an aggregate are merged, by the name of Spark's class."""
_EXACT_SUM = "bigint"
"""The type of sums that do not depend on the order of the rows."""
_ROW_BY_ROW = {"Project", "Filter", "Generate"}
_Shown = dict[tuple[int, int | None], str]
"""The column of the table that shows a part, or a field of it, by their numbers."""
_Known = dict[int, tuple[int, int | None]]
"""The number of the part that a column of a plan shows, and of the field of it, by the id of the column."""


def upsert(lake: Lake, rows: DataFrame, name: str, key: Sequence[str], of: pa.Table) -> None:
    """Replace the rows of a table that have the keys of ``of`` by these rows, in one commit.

    ``of`` has the columns of the key, and at least the keys of ``rows``.
    """
    condition = of_keys(of)
    if condition is None:
        lake.merge(rows, name, key, of=lake.spark.createDataFrame(of))
    else:
        lake.replace_where(rows.coalesce(1), name, condition)


def of_keys(keys: pa.Table) -> str | None:
    """Return a condition that exactly the rows with these keys meet; None if there are too many for one condition.

    The columns of ``keys`` are those of the key. None also if a value has no literal that SQL reads as the same value.
    """
    if len(keys) > MOST_KEYS:
        return None
    terms: dict[tuple[str | None, ...], list[str | None]] = {}
    for row in keys.to_pylist():
        try:
            *first, last = [literal(value) for value in row.values()]
        except TypeError:
            return None
        terms.setdefault(tuple(first), []).append(last)
    if len(terms) > MOST_TERMS:
        return None
    *names, varied = [f"`{name}`" for name in keys.column_names]
    found = []
    for values, varying in terms.items():
        same = [f"{name} <=> {value or 'NULL'}" for name, value in zip(names, values, strict=True)]
        found.append(" AND ".join([*same, _is_one_of(varied, varying)]))
    return " OR ".join(f"({one})" for one in found) or "false"


def _is_one_of(name: str, values: Sequence[str | None]) -> str:
    given = sorted({value for value in values if value is not None})
    condition = f"{name} IN ({', '.join(given)})" if given else "false"
    return f"({condition} OR {name} IS NULL)" if None in values else condition


def literal(value: Any) -> str | None:
    """Return SQL for a value; None for NULL. Raises ``TypeError`` for other types than text, numbers and instants."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case int():
            return f"{value}L"
        case str():
            escaped = value.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'"
        case datetime():
            micros = (value.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // _MICROSECOND
            return f"timestamp_micros({micros})"
        case date():
            return f"DATE'{value.isoformat()}'"
        case _:
            raise TypeError(f"{type(value).__name__} has no exact literal in SQL")


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a GROUP BY: one of the key, or an aggregate. ``function`` is Spark's class of the aggregate.

    ``shown`` is the column of the table that shows it. If there is none, ``fields`` has the column for each field.
    """

    column: Any
    function: str = ""
    filled: bool = False
    """Whether it is never NULL."""
    shown: str = ""
    fields: Mapping[str, str] = {}


class Addition(msgspec.Struct, frozen=True, kw_only=True):
    """How new rows of the input are added to a projection: its GROUP BY, and the operators above and below."""

    parts: tuple[Part, ...]
    group_by: tuple[Any, ...]
    aggregates: tuple[Any, ...]
    results: tuple[Any, ...]
    above: tuple[Any, ...]
    below: Any
    leaf: Any

    @property
    def key(self) -> list[str]:
        """The columns of the table that show the columns of the GROUP BY."""
        return [part.shown for part in self.parts if not part.function]

    def parts_of_new(self, new: DataFrame) -> DataFrame:
        """Return the parts that new rows of the input make. The columns of the key have their names in the table."""
        spark = new.sparkSession
        plan = _on_leaf(self.below, with_columns_of(new, list(each(self.leaf.output()))), spark)
        named = [*self.group_by, *(alias(spark, one, one.resultAttribute()) for one in self.aggregates)]
        plain = [one.child() if kind(one) == "Alias" else one for one in self.group_by]
        return query_of(spark, aggregate(spark, plain, named, plan)).toDF(*self._names)

    def parts_of_rows(self, rows: DataFrame) -> DataFrame:
        """Return the parts that rows of the table show."""
        columns = [
            F.col(part.shown)
            if part.shown
            else F.struct(*(F.col(column).alias(field) for field, column in part.fields.items()))
            for part in self.parts
        ]
        return rows.select(*(one.alias(name) for one, name in zip(columns, self._names, strict=True)))

    def rows(self, parts: DataFrame) -> DataFrame:
        """Return the rows of the projection. Each may have several parts."""
        spark = parts.sparkSession
        merged = [
            _MERGES[part.function](name).alias(name)
            for part, name in zip(self.parts, self._names, strict=True)
            if part.function
        ]
        plan = with_columns_of(parts.groupBy(*self.key).agg(*merged), [part.column for part in self.parts])
        plan = project(spark, self.results, plan)
        for node in self.above:
            plan = on_top_of(node, plan, spark)
        return query_of(spark, plan)

    @property
    def _names(self) -> list[str]:
        return [part.shown if not part.function else f"durabus_part_{n}" for n, part in enumerate(self.parts)]


def find_addition(spark: SparkSession, plan: JavaObject, key: Sequence[str]) -> Addition | None:
    """Return how new rows are added to the projection with this optimized plan; None if this cannot be proven."""
    above: list[JavaObject] = []
    node = plan
    while kind(node) == "Project":
        above.insert(0, node)
        node = node.child()
    if kind(node) != "Aggregate":
        return None
    group_by, aggregates, results, below = parts_of_aggregate(spark, node)
    leaf = below
    while kind(leaf) in _ROW_BY_ROW:
        leaf = leaf.child()
    if kind(leaf) != "LogicalRDD" or not all(_can_merge(one) for one in aggregates):
        return None
    parts = [Part(column=one.toAttribute()) for one in group_by]
    parts += [
        Part(column=one.resultAttribute(), function=kind(one.aggregateFunction()), filled=_is_filled(one))
        for one in aggregates
    ]
    lists = {id_of(part.column) for part in parts if part.function == _LIST}
    if any(_depends_on_order(one, lists) for one in results):
        return None
    known: _Known = {id_of(part.column): (n, None) for n, part in enumerate(parts)}
    for columns in (results, *(list(each(one.projectList())) for one in above)):
        known = _passed_on(columns, known, lists)
    shown: _Shown = {known[id_of(one)]: str(one.name()) for one in each(plan.output()) if id_of(one) in known}
    kept = [_kept(n, part, shown) for n, part in enumerate(parts)]
    found = tuple(one for one in kept if one is not None)
    made = Addition(
        parts=found,
        group_by=group_by,
        aggregates=aggregates,
        results=results,
        above=tuple(above),
        below=below,
        leaf=leaf,
    )
    return made if len(found) == len(parts) and sorted(made.key) == sorted(key) else None


def _can_merge(one: JavaObject) -> bool:
    function = kind(one.aggregateFunction())
    if one.isDistinct() or function not in _MERGES:
        return False
    return function != "Sum" or str(one.dataType().simpleString()) == _EXACT_SUM


def _is_filled(one: JavaObject) -> bool:
    """Return whether an aggregate has a value of every row, and this is never NULL."""
    return bool(one.filter().isEmpty()) and not any(
        child.nullable() for child in each(one.aggregateFunction().children())
    )


def _depends_on_order(expression: JavaObject, lists: set[int]) -> bool:
    """Return whether an expression depends on the order in which a list was collected."""
    if kind(expression) == "SortArray" and _is_column_of(expression.base(), lists):
        return False
    return _is_column_of(expression, lists) or any(_depends_on_order(one, lists) for one in each(expression.children()))


def _is_column_of(expression: JavaObject, columns: set[int]) -> bool:
    return kind(expression) == "AttributeReference" and id_of(expression) in columns


def _passed_on(columns: Sequence[JavaObject], known: _Known, lists: set[int]) -> _Known:
    """Return what is known of these columns, which are made of known ones."""
    found = {id_of(one): _meaning(one, known, lists) for one in columns}
    return {column: meaning for column, meaning in found.items() if meaning is not None}


def _meaning(expression: JavaObject, known: _Known, lists: set[int]) -> tuple[int, int | None] | None:
    match kind(expression):
        case "AttributeReference":
            return known.get(id_of(expression))
        case "Alias":
            return _meaning(expression.child(), known, lists)
        case "SortArray" if _is_column_of(expression.base(), lists):
            return known.get(id_of(expression.base()))
        case "GetStructField":
            number, field = _meaning(expression.child(), known, lists) or (None, None)
            return None if number is None or field is not None else (number, int(expression.ordinal()))
    return None


def _kept(number: int, part: Part, shown: _Shown) -> Part | None:
    """Return a part with the columns of the table that show it; None if they do not."""
    if (number, None) in shown:
        return msgspec.structs.replace(part, shown=shown[number, None])
    # Fields do not show whether the struct itself is NULL.
    if not part.filled or part.column.dataType().typeName() != "struct":
        return None
    names = list(part.column.dataType().fieldNames())
    if any((number, n) not in shown for n in range(len(names))):
        return None
    return msgspec.structs.replace(part, fields={name: shown[number, n] for n, name in enumerate(names)})


def _on_leaf(node: JavaObject, plan: JavaObject, spark: SparkSession) -> JavaObject:
    """Return row-by-row operators with another plan in the place of the input."""
    if kind(node) not in _ROW_BY_ROW:
        return plan
    return on_top_of(node, _on_leaf(node.child(), plan, spark), spark)


def optimized(rows: DataFrame) -> JavaObject:
    """Return the plan of a query after Spark's optimizer."""
    return rows._jdf.queryExecution().optimizedPlan()  # noqa: SLF001


def analyzed(rows: DataFrame) -> JavaObject:
    """Return the plan of a query before Spark's optimizer."""
    return rows._jdf.queryExecution().analyzed()  # noqa: SLF001


def query_of(spark: SparkSession, plan: JavaObject) -> DataFrame:
    """Return the query with this plan."""
    datasets = spark.sparkContext._jvm.org.apache.spark.sql.classic.Dataset  # type: ignore[union-attr]  # noqa: SLF001
    return DataFrame(datasets.ofRows(spark._jsparkSession, plan), spark)  # noqa: SLF001


def kind(node: JavaObject) -> str:
    """Return the name of Spark's class of an operator or expression."""
    return str(node.getClass().getSimpleName()).rstrip("$")


def each(sequence: JavaObject) -> Iterator[JavaObject]:
    """Yield the elements of a Scala sequence."""
    return (sequence.apply(n) for n in range(sequence.size()))


def nodes(plan: JavaObject) -> Iterator[JavaObject]:
    """Yield an operator or expression and all below it."""
    yield plan
    for child in each(plan.children()):
        yield from nodes(child)


def id_of(named: JavaObject) -> int:
    """Return the id that Spark gave a column of a plan."""
    return int(named.exprId().id())


def in_scala(spark: SparkSession, elements: Sequence[JavaObject]) -> JavaObject:
    """Return a Scala sequence."""
    return spark.sparkContext._jvm.PythonUtils.toSeq(list(elements))  # type: ignore[union-attr]  # noqa: SLF001


def alias(spark: SparkSession, expression: JavaObject, of: JavaObject) -> JavaObject:
    """Return an expression as the column ``of`` of another plan, with its name and its id."""
    jvm = spark.sparkContext._jvm  # noqa: SLF001
    none = in_scala(spark, [])
    made = jvm.org.apache.spark.sql.catalyst.expressions.Alias  # type: ignore[union-attr]
    return made(expression, of.name(), of.exprId(), none, jvm.scala.Option.empty(), none)  # type: ignore[union-attr]


def project(spark: SparkSession, columns: Sequence[JavaObject], plan: JavaObject) -> JavaObject:
    """Return a plan with these columns of another plan."""
    logical = spark.sparkContext._jvm.org.apache.spark.sql.catalyst.plans.logical  # type: ignore[union-attr]  # noqa: SLF001
    return logical.Project(in_scala(spark, columns), plan)


def parts_of_aggregate(spark: SparkSession, node: JavaObject) -> tuple[Any, ...]:
    """Return the columns of a GROUP BY, its aggregates, the columns that are made of both, and the plan below it.

    The first three are tuples. Equal aggregates are one, and its ``resultAttribute`` stands for it in the third.
    """
    planning = spark.sparkContext._jvm.org.apache.spark.sql.catalyst.planning  # type: ignore[union-attr]  # noqa: SLF001
    found = planning.PhysicalAggregation.unapply(node).get()
    *lists, below = (found.productElement(n) for n in range(4))
    return *(tuple(each(one)) for one in lists), below


def aggregate(
    spark: SparkSession, group_by: Sequence[JavaObject], columns: Sequence[JavaObject], plan: JavaObject
) -> JavaObject:
    """Return a GROUP BY over another plan."""
    jvm = spark.sparkContext._jvm  # noqa: SLF001
    logical = jvm.org.apache.spark.sql.catalyst.plans.logical  # type: ignore[union-attr]
    return logical.Aggregate(in_scala(spark, group_by), in_scala(spark, columns), plan, jvm.scala.Option.empty())  # type: ignore[union-attr]


def with_columns_of(rows: DataFrame, columns: Sequence[JavaObject]) -> JavaObject:
    """Return the plan of a query whose columns are known as these columns of another plan, in the same order."""
    plan, spark = analyzed(rows), rows.sparkSession
    made = [alias(spark, one, of) for one, of in zip(each(plan.output()), columns, strict=True)]
    return project(spark, made, plan)


def on_top_of(node: JavaObject, plan: JavaObject, spark: SparkSession) -> JavaObject:
    """Return an operator with another plan below it."""
    return node.withNewChildren(in_scala(spark, [plan]))

"""Traces the key of a projection's rows back to its inputs, to find out which rows a change of the inputs can change.

Spark itself gives the proof. The rows get a filter on a column of the key, and Spark's optimizer moves that filter as
near to the inputs as it can without changing the result. If it arrives at an input, rows with a key depend only on
those rows of the input that pass the filter. So a changed row of the input changes only rows with the key that the
filter computes from it. LIMIT, a GROUP BY without the key, or a window function over several keys stop the filter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]  # it ships no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)
from pyspark.sql.types import StructType

from durabus.errors import ConfigurationError
from durabus.pipeline.projections import Projection
from durabus.pipeline.schema import EVENTS
from durabus.pipeline.upserting import Addition, analyzed, each, find_addition, kind, nodes, optimized, query_of

_SEED = 42
"""The result of ``xxhash64(NULL)``. A filter for it accepts NULL, so Spark does not turn an outer join into another."""
_RAN = "a query runs while the projection is built"
_ROW_BY_ROW = {"Project", "Filter", "Generate", "SubqueryAlias", "View", "LogicalRDD"}
_CONSTANT = {"LocalRelation", "OneRowRelation", "Range"}
_BY_PARTITION = {"Window", "WindowGroupLimit", "Sort"}
"""Operators on the partitions of a window function. A filter on PARTITION BY may come before or after them."""
_IN_WORDS = {
    "Aggregate": "a GROUP BY or DISTINCT without it",
    "Window": "a window function that is not partitioned by it",
    "GlobalLimit": "LIMIT",
    "LocalLimit": "LIMIT",
    "Join": "a join on something else, an outer join or an anti join",
    "Project": "a function with random results",
    "Expand": "ROLLUP, CUBE or GROUPING SETS",
    "Generate": "explode, which makes it",
    "FlatMapGroupsInPandas": "applyInPandas",
    "FlatMapGroupsInArrow": "applyInArrow",
    "MapInPandas": "mapInPandas",
    "MapInArrow": "mapInArrow",
}
"""What stops a filter on a column of the key, by the name of Spark's operator."""


class UpdateMode(StrEnum):
    """How a run updates a projection."""

    APPEND = "append"
    ADD = "add"
    UPSERT = "upsert"
    WINDOW = "window"
    SCD2 = "scd2"
    FULL = "full"


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """How changed rows of an input are found: ``seq`` is the column with the newest log entry that a row includes.

    Columns in ``fixed`` keep their value in a row. An input that is ``appended`` keeps its rows as they are.
    ``since`` is a SQL expression for the instant of that entry, if the input has one. ``tells_new`` is set if a run
    knows which changed rows the input did not have before.
    """

    seq: str
    fixed: frozenset[str]
    since: str | None = None
    appended: bool = False
    tells_new: bool = False


class KeyTrace(msgspec.Struct, frozen=True, kw_only=True):
    """How a projection is updated, and why so.

    ``by`` are those columns of the key that could be traced: an update computes all rows with a changed value of them.
    ``sources`` has, for each input with a feed, a SQL expression for each column of ``by``. ``addition`` says how new
    rows of the input are added, if the mode is ``ADD``.
    """

    mode: UpdateMode
    why: str
    by: tuple[str, ...] = ()
    sources: Mapping[str, tuple[str, ...]] = {}
    schema: StructType
    addition: Addition | None = None


class _Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """A place where a plan reads something, with the expression in the filter that has arrived there."""

    node: Any
    expression: Any = None
    stopped_by: str = ""


class _Stopped(Exception):  # noqa: N818  (an answer, not an error)
    """The key cannot be traced, and this text says why."""


def trace_key(
    spark: SparkSession, projection: Projection, schemas: Mapping[str, StructType], feeds: Mapping[str, Feed]
) -> KeyTrace:
    """Return how a projection can be updated. ``schemas`` has the columns of each input.

    Nothing is read: the function or SQL of the projection gets DataFrames that have these columns and no rows.
    """
    if not hasattr(spark, "_jsparkSession"):
        return KeyTrace(mode=UpdateMode.FULL, why="Spark Connect does not show the plan", schema=StructType([]))
    raw = {name: _unreadable(spark, schemas[name]) for name in projection.inputs}
    try:
        rows = projection.rows(
            *(with_expressions(one, projection) if name == EVENTS.name else one for name, one in raw.items())
        )
    except Exception as error:
        if _RAN not in str(error):
            raise
        return KeyTrace(
            mode=UpdateMode.FULL, why=f"{_RAN}, so its rows may depend on all others", schema=StructType([])
        )
    try:
        return _traced(projection, rows, raw, feeds)
    except _Stopped as stopped:
        return KeyTrace(mode=UpdateMode.FULL, why=str(stopped), schema=rows.schema)


def with_expressions(events: DataFrame, projection: Projection) -> DataFrame:
    """Return the events that have a key, with the columns of it that the projection declares as expressions."""
    if not projection.expressions:
        return events
    made = events.withColumns({column: F.expr(text) for column, text in projection.expressions.items()})
    return made.dropna(subset=list(projection.expressions))


def _traced(
    projection: Projection, rows: DataFrame, raw: Mapping[str, DataFrame], feeds: Mapping[str, Feed]
) -> KeyTrace:
    fed = [name for name in projection.inputs if name in feeds]
    if not fed:
        raise _Stopped(f"only the version of {_listed(projection.inputs)} says that something has changed")
    plan = analyzed(rows)
    _refuse_time(rows.sparkSession, plan)
    inputs = {_rdd_of(optimized(frame)): name for name, frame in raw.items()}
    before = _read(optimized(rows), inputs, feeds)
    found: dict[str, dict[str, str]] = {}
    reasons: list[str] = []
    for column in projection.key:
        try:
            found[column] = _sources(rows, column, raw, inputs, feeds, before)
        except _Stopped as stopped:
            reasons.append(str(stopped))
    if not found:
        raise _Stopped(reasons[0])
    by = tuple(found)
    sources = {name: tuple(found[column][name] for column in by) for name in fed}
    whole = [name for name in projection.inputs if name not in feeds]
    mode, why = _mode(projection, by, sources, feeds, {kind(node) for node in nodes(plan)})
    addition = None
    if mode is UpdateMode.UPSERT and len(projection.inputs) == 1 and feeds[fed[0]].tells_new:
        addition = find_addition(rows.sparkSession, optimized(rows), tuple(projection.key))
    if addition is not None:
        mode, why = UpdateMode.ADD, f"new input is added to the row of its {_listed(by)}"
    if whole:
        why += f"; all rows if {_listed(whole)} has changed"
    return KeyTrace(mode=mode, why=why, by=by, sources=sources, schema=rows.schema, addition=addition)


def _mode(
    projection: Projection,
    by: tuple[str, ...],
    sources: Mapping[str, tuple[str, ...]],
    feeds: Mapping[str, Feed],
    operators: set[str],
) -> tuple[UpdateMode, str]:
    (first, *others) = projection.inputs
    if not others and feeds[first].appended and operators <= _ROW_BY_ROW and f"`{feeds[first].seq}`" in sources[first]:
        return UpdateMode.APPEND, f"{first} only grows, and each of its rows makes rows of its own"
    if set(by) != set(projection.key):
        return UpdateMode.SCD2, f"all rows of a changed {_listed(by)} are replaced"
    if "Window" in operators:
        return UpdateMode.WINDOW, f"window functions over {_listed(by)}: the rows of changed keys are computed again"
    return UpdateMode.UPSERT, f"the rows of a changed {_listed(by)} are computed again"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def _unreadable(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return a DataFrame that fails when it is read. An empty one would be simplified away from a plan."""

    def fail(_: int) -> tuple[Any, ...]:
        raise ConfigurationError(_RAN)

    return spark.createDataFrame(spark.sparkContext.parallelize([0], 1).map(fail), schema)


def _refuse_time(spark: SparkSession, plan: JavaObject) -> None:
    patterns = spark.sparkContext._jvm.org.apache.spark.sql.catalyst.trees.TreePattern  # type: ignore[union-attr]  # noqa: SLF001
    if plan.containsPattern(patterns.CURRENT_LIKE()):
        raise _Stopped("it uses the current time, date, user or catalog, which change while its inputs stay")


def _sources(  # noqa: PLR0917  (a step of one function)
    rows: DataFrame,
    column: str,
    raw: Mapping[str, DataFrame],
    inputs: Mapping[int, str],
    feeds: Mapping[str, Feed],
    before: Sequence[str],
) -> dict[str, str]:
    """Return a SQL expression over each input with a feed for a column of the key."""
    plan = optimized(_marked(rows, rows.columns.index(column)))
    if sorted(_read(plan, inputs, feeds)) != sorted(before):
        raise _Stopped(f"its key {column} is the same value for many rows")
    texts: dict[str, str] = {}
    compared: set[str] = set()
    for leaf in _leaves(plan, rows.sparkSession):
        name = inputs.get(_rdd_of(leaf.node), "")
        if name not in feeds:
            continue
        if leaf.expression is None:
            stop = _IN_WORDS.get(leaf.stopped_by, leaf.stopped_by) or _IN_WORDS["Join"]
            raise _Stopped(f"a filter on {column} cannot reach {name}: {stop} stops it")
        text = _sql_of(leaf.expression)
        if texts.setdefault(name, text) != text:
            raise _Stopped(f"{name} is used with two different keys: {text} and {texts[name]}")
        changing = sorted({one.name() for one in _references(leaf.expression)} - feeds[name].fixed)
        if changing:
            raise _Stopped(f"its key {column} uses {changing[0]} of {name}, which changes")
        if _means_the_same(raw[name], leaf.expression, text):
            compared.add(name)
    for name, text in texts.items():
        if name not in compared:
            raise _Stopped(f"its key {column} cannot be written as SQL over {name}: {text}")
    return texts


def _marked(rows: DataFrame, index: int) -> DataFrame:
    """Return the rows with a filter on one column. The others have plain names, because names may occur twice."""
    named = rows.toDF(*(f"c{n}" for n in range(len(rows.columns))))
    return named.where(F.xxhash64(f"c{index}") == F.lit(_SEED))


def _references(expression: JavaObject) -> list[JavaObject]:
    return list(each(expression.references().toSeq()))


def _rdd_of(leaf: JavaObject) -> int:
    return int(leaf.rdd().id()) if kind(leaf) == "LogicalRDD" else -1


def _read(plan: JavaObject, inputs: Mapping[int, str], feeds: Mapping[str, Feed]) -> list[str]:
    """Return the inputs that a plan reads, each as often as it does. Raises ``_Stopped`` for what cannot be traced."""
    for subquery in each(plan.subqueriesAll()):
        for leaf in each(subquery.collectLeaves()):
            if inputs.get(_rdd_of(leaf)) in feeds:
                raise _Stopped(f"a subquery reads all of {inputs[_rdd_of(leaf)]}")
    names = []
    for leaf in each(plan.collectLeaves()):
        name = inputs.get(_rdd_of(leaf))
        if name is not None:
            names.append(name)
        elif kind(leaf) not in _CONSTANT:
            raise _Stopped(f"it reads something that inputs= does not name, or keeps rows in a cache ({kind(leaf)})")
    return names


def _leaves(node: JavaObject, spark: SparkSession, stopped_by: str = "") -> Iterator[_Leaf]:
    if kind(node) == "Filter" and (marker := _marker(node.condition())) is not None:
        child = node.child()
        if not child.children().size():
            yield _Leaf(node=child, expression=marker)
            return
        below = _below_window(child, marker, spark) if kind(child) == "Window" else None
        if below is not None:
            yield from _leaves(below, spark)
            return
        stopped_by = kind(child)
    if not node.children().size():
        yield _Leaf(node=node, stopped_by=stopped_by)
    for child in each(node.children()):
        yield from _leaves(child, spark, stopped_by)


def _marker(condition: JavaObject) -> JavaObject | None:
    """Return what the filter of ``_marked`` hashes, if the condition includes this filter."""
    if kind(condition) == "And":
        return _marker(condition.left()) or _marker(condition.right())
    is_marker = kind(condition) == "EqualTo" and condition.right().sql() == f"{_SEED}L"
    if not is_marker or kind(condition.left()) != "XxHash64":
        return None
    return condition.left().children().apply(0)


def _below_window(window: JavaObject, marker: JavaObject, spark: SparkSession) -> JavaObject | None:
    """Return a plan with the filter on that column of PARTITION BY that has the value of the marked column.

    In ``SELECT a AS b, lead(c) OVER (PARTITION BY a …)`` Spark does not see that a and b are equal.
    """
    below = window
    while kind(below) in _BY_PARTITION:
        below = below.child()
    if kind(below) != "Project" or kind(marker) != "AttributeReference":
        return None
    made = {one.exprId().id(): one.child() if kind(one) == "Alias" else one for one in each(below.projectList())}
    wanted = made.get(marker.exprId().id())
    columns = [one.exprId().id() for one in each(below.output())]
    for part in each(window.partitionSpec()):
        known = made.get(part.exprId().id()) if kind(part) == "AttributeReference" else None
        if wanted is not None and known is not None and wanted.semanticEquals(known):
            return optimized(_marked(query_of(spark, below), columns.index(part.exprId().id())))
    return None


def _sql_of(expression: JavaObject) -> str:
    """Return an expression over an input as SQL, without the names that the columns' table has in the query."""
    text = str(expression.sql())
    for one in _references(expression):
        text = re.sub(rf"(?<![\w.`]){re.escape(one.sql())}(?![\w`])", f"`{one.name()}`", text)
    return text


def _means_the_same(frame: DataFrame, expression: JavaObject, text: str) -> bool:
    """Return whether SQL means the same expression over an input.

    This is false for a second occurrence of an input, whose columns have other ids than the first one.
    """
    try:
        made = optimized(frame.select(F.expr(text).alias("k"))).projectList().apply(0)
    except PySparkException:
        return False  # such as a function that Spark uses inside only
    return bool(expression.semanticEquals(made.child() if kind(made) == "Alias" else made))

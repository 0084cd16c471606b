"""What each log entry adds to ``gold.activity``: pure transforms of ``bronze.event_log``."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.model.statuses import DEAD_LETTER, STEPS, TERMINAL, Action, EventStatus, ResultStatus
from durabus.pipeline.histograms import class_of
from durabus.pipeline.schema import COUNTERS
from durabus.pipeline.silver import ENDS_ATTEMPT, SETTLES

_READ = (
    *("id", "seq", "event_id", "parent_id", "bus", "type", "action", "status", "at", "created_at", "attempt", "fence"),
    *("worker_id", "error", "errors", "results", "execution_time_ms"),
)
"""The columns of ``bronze.event_log`` that count."""
_DEAD = sorted(status.value for status in DEAD_LETTER)
_TERMINAL = sorted(status.value for status in TERMINAL)
_RESULTS = "ARRAY<STRUCT<handler_id: STRING, status: STRING, execution_time_ms: DOUBLE>>"
_FINGERPRINT = (
    (r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}", "<uuid>"),
    (r"0x[0-9a-fA-F]+", "<hex>"),
    (r"'[^']*'|\"[^\"]*\"", "<text>"),
    (r"\d+([.:,]\d+)*", "<n>"),
)


def facts(log: DataFrame, parents: DataFrame | None, *, after: int, seconds: int = 60) -> DataFrame:
    """Return what the entries after ``after`` add to the rows of ``gold.activity``, in periods of ``seconds``.

    ``log`` has all entries of an event or none. ``parents`` has a row for each event that a ``parent_id`` names;
    None if there is no such event.
    """
    counted = _with_counters(_with_parents(_with_past(log).where(F.col("seq") > after), parents), seconds)
    sample = "CASE WHEN facet = 'error' THEN named_struct('seq', seq, 'text', trouble, 'id', event_id) END"
    return counted.select(F.expr(f"inline(concat({', '.join(_contributions(seconds))}))"), *counted.columns).select(
        *("since", "facet", "bus", F.col("of_type").alias("type"), "name", "metric"),
        F.expr(f"CASE WHEN metric IS NOT NULL THEN {class_of('us')} END").alias("class"),
        F.col("metric").isNotNull().cast("bigint").alias("durations"),
        *(F.expr(_added_to(name)).alias(name) for name in COUNTERS),
        *(F.expr("CASE WHEN kind = 'entry' THEN at END").alias(name) for name in ("first_at", "last_at")),
        F.expr(sample).alias("sample"),
        F.col("seq").alias("last_seq"),
    )


def fingerprint(error: Column) -> Column:
    """Return an error text with placeholders for its numbers, ids and quoted texts."""
    for pattern, name in _FINGERPRINT:
        error = F.regexp_replace(error, pattern, name)
    return F.substring(error, 1, 200)


def _with_past(log: DataFrame) -> DataFrame:
    """Return the entries, each with what earlier entries of its event say about it."""
    until_now = Window.partitionBy("id").orderBy("seq").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = Window.partitionBy("id").orderBy("seq").rowsBetween(Window.unboundedPreceding, -1)
    action, ended = F.col("action"), F.col("status").isin(_TERMINAL)
    picked = action == Action.PICKED.value
    claim = F.struct("fence", "at", "worker_id")
    return log.select(
        *_READ,
        F.last(F.when(picked, claim), ignorenulls=True).over(until_now).alias("claim"),
        F.count_if(picked).over(until_now).alias("claims"),
        F.last(F.when(action == Action.ABANDONED.value, F.col("fence")), ignorenulls=True)
        .over(before)
        .alias("lost_fence"),
        F.last(F.when(ended, F.col("results")), ignorenulls=True).over(before).alias("earlier_results"),
    )


def _with_parents(entries: DataFrame, parents: DataFrame | None) -> DataFrame:
    if parents is None:
        nothing = {"parent": F.lit(None).cast("string"), "parent_at": F.lit(None).cast("timestamp")}
        return entries.withColumns(nothing)
    known = {"event_id": "parent_id", "type": "parent", "published_at": "parent_at"}
    return entries.join(parents.select(*(F.col(name).alias(new) for name, new in known.items())), "parent_id", "left")


def _with_counters(entries: DataFrame, seconds: int) -> DataFrame:
    """Return the entries with the columns of ``COUNTERS`` and the durations that each entry adds."""
    action, status = F.col("action"), F.col("status")
    # A worker may settle an event after its lease expired. The event was back in the queue at that moment.
    late = _is(action.isin(SETTLES) & (F.col("lost_fence") == F.col("fence")))
    cancelled, completed = action == Action.CANCELLED.value, status == EventStatus.COMPLETED.value
    # A cancelled event without a worker was waiting.
    idle = cancelled & F.col("worker_id").isNull()
    # A cancellation that revokes a claim has the next fence.
    before = F.when(cancelled, F.col("fence") - 1)
    own = (F.col("claim.fence") == F.col("fence")) | _is(F.col("claim.fence") == before)
    held = _is(action.isin(ENDS_ATTEMPT) & ~late & ~idle & own & (F.col("claim.at") <= F.col("at")))
    error = F.expr("coalesce(error, try_element_at(from_json(errors, 'ARRAY<STRING>'), -1), 'no error was given')")
    trouble = F.when(action.isin(Action.FAILED.value, Action.ABANDONED.value) | status.isin(_DEAD), error)
    instant = "coalesce(at, created_at, timestamp_seconds(0))"
    return entries.select(
        *("seq", "event_id", "bus", "type", "at", "parent_id", "parent", "parent_at", "claim"),
        F.expr(_begin_of_period(instant, seconds)).alias("own_period"),
        *(_is(flag).cast("bigint").alias(name) for name, flag in _flags().items()),
        late.cast("bigint").alias("late"),
        *_changes_of_depth(late, idle),
        F.coalesce(F.round(F.col("execution_time_ms") * 1000).cast("bigint"), F.lit(0)).alias("handler_us"),
        F.lit(0).cast("bigint").alias("busy_us"),
        status.isin(_TERMINAL).alias("ends"),
        held.alias("held"),
        F.coalesce("worker_id", F.when(held, F.col("claim.worker_id"))).alias("worker_id"),
        F.when((action == Action.PICKED.value) & (F.col("claims") == 1), _us("created_at", "at")).alias("waiting_us"),
        F.when(completed, _us("claim.at", "at")).alias("running_us"),
        F.when(completed, _us("created_at", "at")).alias("end_to_end_us"),
        trouble.alias("trouble"),
        fingerprint(trouble).alias("fingerprint"),
        F.from_json(F.when(status.isin(_TERMINAL), F.col("results")), _RESULTS).alias("results"),
        F.from_json("earlier_results", _RESULTS).alias("earlier_results"),
    )


def _flags() -> dict[str, Column]:
    """Return the condition that an entry counts, for each counter of entries but ``late``."""
    action, status = F.col("action"), F.col("status")
    picked = action == Action.PICKED.value
    return {
        "entries": F.lit(True),
        "published": action == Action.PUBLISHED.value,
        "claimed": picked,
        "retried": picked & (F.col("attempt") > 1),
        "completed": status == EventStatus.COMPLETED.value,
        "dead": status.isin(_DEAD),
        "cancelled": status == EventStatus.CANCELLED.value,
        "failed": action == Action.FAILED.value,
        "abandoned": action == Action.ABANDONED.value,
        "released": action == Action.RELEASED.value,
        "requeued": action == Action.REQUEUED.value,
    }


def _changes_of_depth(late: Column, idle: Column) -> tuple[Column, Column]:
    """Return by how many an entry changes the number of events that wait, and of events in progress."""
    action, status = F.col("action"), F.col("status")
    entered = action.isin(Action.PUBLISHED.value, Action.REQUEUED.value)
    given_back = (status == EventStatus.PENDING.value) & ~entered & ~late
    over = status.isin(_TERMINAL)
    waited = over & (late | idle)
    comes, picked, back, left, done = (
        _is(one).cast("bigint") for one in (entered, action == Action.PICKED.value, given_back, waited, over & ~waited)
    )
    return (comes + back - picked - left).alias("waiting_change"), (picked - back - done).alias("working_change")


def _is(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))


def _us(begin: str, end: str) -> Column:
    return F.unix_micros(end) - F.unix_micros(begin)


def _fact(facet: str, kind: str, **fields: str) -> str:
    """Return SQL for one contribution of an entry: the row of ``gold.activity`` that it adds to, and what it adds.

    - ``entry`` adds the counters of its entry, and its duration if ``metric`` names a histogram.
    - ``duration`` adds only the duration ``us`` to the histogram ``metric``.
    - ``result`` counts the result of a handler, which took ``us``.
    - ``held`` adds the time ``us`` that a claim was held.
    """
    nothing = {"since": "own_period", "of_type": "type", "name": "STRING(NULL)", "metric": "STRING(NULL)"}
    values = nothing | {"us": "0L", "ok": "true"} | fields | {"facet": f"'{facet}'", "kind": f"'{kind}'"}
    named = ", ".join(f"'{name}', {value}" for name, value in sorted(values.items()))
    return f"named_struct({named})"


def _when(condition: str, *contributions: str) -> str:
    return f"CASE WHEN {condition} THEN array({', '.join(contributions)}) ELSE array() END"


def _added_to(counter: str) -> str:
    """Return SQL for what a fact adds to a counter."""
    of_result = {"entries": "1L", "completed": "BIGINT(ok)", "failed": "BIGINT(NOT ok)", "handler_us": "us"}
    of_entry = f"IF(facet = 'type', {counter}, 0L)" if counter.endswith("_change") else counter
    of_held = "us" if counter == "busy_us" else "0L"
    return (
        f"CASE kind WHEN 'entry' THEN {of_entry} WHEN 'result' THEN {of_result.get(counter, '0L')} "
        f"WHEN 'held' THEN {of_held} ELSE 0L END"
    )


_STEPS = ", ".join(f"'{status.value}'" for status in sorted(STEPS))
_OK = f"'{ResultStatus.SUCCEEDED.value}'"
_NEW_RESULTS = (
    f"filter(results, one -> one.status NOT IN ({_STEPS}) AND NOT (one.status = {_OK} AND coalesce(exists("
    f"earlier_results, old -> old.handler_id = one.handler_id AND old.status = {_OK}), false)))"
)
"""The results of an end. After a requeue, an end names the earlier successes once more."""
_TIME_OF_RESULT = "BIGINT(round(one.execution_time_ms * 1000))"
_IS_DURATION = "CASE WHEN waiting_us IS NOT NULL THEN 'waiting' WHEN running_us IS NOT NULL THEN 'running' END"
_SINCE_PARENT = "unix_micros(at) - unix_micros(parent_at)"


def _begin_of_period(instant: str, seconds: int) -> str:
    """Return SQL for the begin of the period of an instant."""
    return f"timestamp_seconds(unix_seconds({instant}) - pmod(unix_seconds({instant}), {seconds}))"


def _contributions(seconds: int) -> tuple[str, ...]:
    """Return SQL for the facts of an entry: an array for each facet, empty where the entry says nothing about it."""
    length = f"INTERVAL {seconds} SECOND"
    periods = f"sequence({_begin_of_period('claim.at', seconds)}, {_begin_of_period('at', seconds)}, {length})"
    in_period = f"unix_micros(least(at, one + {length})) - unix_micros(greatest(claim.at, one))"
    held = _fact("worker", "held", of_type="STRING(NULL)", name="worker_id", since="one", us=in_period)
    return (*_FACTS, f"CASE WHEN held THEN transform({periods}, one -> {held}) ELSE array() END")


_FACTS = (
    f"array({_fact('type', 'entry', metric=_IS_DURATION, us='coalesce(waiting_us, running_us)')})",
    _when("end_to_end_us IS NOT NULL", _fact("type", "duration", metric="'end_to_end'", us="end_to_end_us")),
    _when("worker_id IS NOT NULL", _fact("worker", "entry", of_type="STRING(NULL)", name="worker_id")),
    _when("trouble IS NOT NULL", _fact("error", "entry", name="fingerprint")),
    "coalesce(transform({results}, one -> {result}), array())".format(
        results=_NEW_RESULTS,
        result=_fact(
            "handler",
            "result",
            name="one.handler_id",
            metric=f"IF({_TIME_OF_RESULT} IS NULL, STRING(NULL), 'running')",
            us=f"coalesce({_TIME_OF_RESULT}, 0L)",
            ok=f"one.status = {_OK}",
        ),
    ),
    _when(
        "parent_id IS NOT NULL AND (published = 1 OR ends)",
        _fact(
            "parent",
            "entry",
            name="parent",
            metric="CASE WHEN parent_at IS NULL THEN NULL WHEN published = 1 THEN 'waiting' ELSE 'end_to_end' END",
            us=_SINCE_PARENT,
        ),
    ),
)
"""SQL for the facts that do not depend on the length of a period."""

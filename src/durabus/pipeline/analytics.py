"""The tables for operators: pure transforms of bronze and silver, each named after the table it makes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.model.statuses import DEAD_LETTER, TERMINAL, Action
from durabus.pipeline.lake import Lake
from durabus.pipeline.schema import ATTEMPTS, EVENT_LOG, EVENTS
from durabus.pipeline.silver import SETTLES

STALE_AFTER = 300.0
"""Seconds after which a claim that has not ended counts as stale."""

STEPS = (1, 5, 15, 60)
"""Seconds that one row of a table over time may cover."""
FINE = 600
"""Maximum number of rows for a step below a minute. A longer history takes the next longer step."""

AT_ONCE = 4
"""Maximum number of tables that are written at the same time."""

OF_THE_PAST = (
    "gold.queue_depth",
    "gold.throughput",
    "gold.latency",
    "gold.failure_rate",
    "gold.handler_failures",
    "gold.dead_letters",
    "gold.abandoned_attempts",
)
"""The tables that change only if the log has new entries."""

_DEAD = sorted(status.value for status in DEAD_LETTER)
_TERMINAL = sorted(status.value for status in TERMINAL)
_RESULTS = (
    "ARRAY<STRUCT<handler_id: STRING, status: STRING, attempts: BIGINT, error: STRING, execution_time_ms: DOUBLE>>"
)
_FINGERPRINT = (
    (r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}", "<uuid>"),
    (r"0x[0-9a-fA-F]+", "<hex>"),
    (r"'[^']*'|\"[^\"]*\"", "<text>"),
    (r"\d+([.:,]\d+)*", "<n>"),
)


def queue_depth(log: DataFrame, seconds: int = 60) -> DataFrame:
    """Return how many events wait and how many are in progress, per bus and step of ``seconds`` with log entries."""
    action, status = F.col("action"), F.col("status")
    entered = action.isin(Action.PUBLISHED.value, Action.REQUEUED.value)
    picked = action == Action.PICKED.value
    abandoned = log.where(action == Action.ABANDONED.value).select("id", "fence", F.lit(True).alias("abandoned"))
    # A worker may settle an event after its lease expired. The event was back in the queue at that moment.
    late = F.coalesce("abandoned", F.lit(False)) & action.isin(SETTLES)
    given_back = (status == "PENDING") & ~entered & ~late
    over = status.isin(_TERMINAL)
    changes = (
        log.join(abandoned, ["id", "fence"], "left")
        .groupBy("bus", _step(seconds))
        .agg(
            (F.count_if(entered) + F.count_if(given_back) - F.count_if(picked) - F.count_if(over & late)).alias(
                "waiting"
            ),
            (F.count_if(picked) - F.count_if(given_back) - F.count_if(over & ~late)).alias("working"),
        )
    )
    so_far = Window.partitionBy("bus").orderBy("since").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return changes.select(
        "bus",
        "since",
        F.lit(seconds).alias("seconds"),
        F.sum("waiting").over(so_far).alias("waiting"),
        F.sum("working").over(so_far).alias("working"),
    )


def throughput(log: DataFrame, seconds: int = 60) -> DataFrame:
    """Return published, completed and dead events, and failed attempts, per bus and step of ``seconds``."""
    status = F.col("status")
    return log.groupBy("bus", _step(seconds), F.lit(seconds).alias("seconds")).agg(
        F.count_if(F.col("action") == Action.PUBLISHED.value).alias("published"),
        F.count_if(status == "COMPLETED").alias("completed"),
        F.count_if(status.isin(_DEAD)).alias("dead"),
        F.count_if(F.col("action").isin(Action.FAILED.value, Action.ABANDONED.value)).alias("failed_attempts"),
    )


def _step(seconds: int) -> Column:
    return F.timestamp_seconds(F.floor(F.unix_seconds("at") / seconds) * seconds).alias("since")


def step_of(log: DataFrame) -> int:
    """Return the step in seconds: a minute, or a shorter one for a short history."""
    found = log.agg(F.unix_seconds(F.max("at")) - F.unix_seconds(F.min("at"))).first()
    span = 0 if found is None or found[0] is None else found[0]
    return next((seconds for seconds in STEPS if span / seconds <= FINE), STEPS[-1])


def latency(events: DataFrame) -> DataFrame:
    """Return percentiles per bus and type: waiting (to the first claim), running (from the last claim), end to end."""
    spans, parts = ("waiting", "running", "end_to_end"), (50, 95, 99)
    found = events.groupBy("bus", "type").agg(
        F.count("*").alias("events"),
        *(F.percentile(three_digits(f"{span}_ms"), [p / 100 for p in parts]).alias(span) for span in spans),
    )
    measured = [F.col(span)[n].alias(f"{span}_p{p}_ms") for span in spans for n, p in enumerate(parts)]
    return found.select("bus", "type", "events", *measured)


def three_digits(span: str) -> Column:
    """Return a column of milliseconds, rounded to three digits.

    A percentile keeps each distinct value in memory. Rounded, there are a few thousand values for any number of events.
    """
    value = F.col(span)
    unit = F.pow(F.lit(10.0), F.floor(F.log10(F.abs(value))) - 2)
    return F.when(value != 0, F.floor(value / unit + 0.5) * unit).otherwise(value)


def failure_rate(events: DataFrame) -> DataFrame:
    """Return how many events were tried again, and how many ended as dead letters, per bus and type."""
    ended = F.col("ended_at").isNotNull()
    return events.groupBy("bus", "type").agg(
        F.count("*").alias("events"),
        F.count_if(ended).alias("ended"),
        F.count_if(F.col("failures") > 0).alias("with_failures"),
        F.sum("failures").alias("failed_attempts"),
        F.sum("claims").alias("attempts"),
        F.count_if(F.col("status").isin(_DEAD)).alias("dead"),
        _share(F.count_if(F.col("status").isin(_DEAD)), F.count_if(ended)).alias("dead_share"),
        _share(F.count_if(F.col("failures") > 0), F.count("*")).alias("retry_share"),
    )


def handler_failures(events: DataFrame) -> DataFrame:
    """Return the stored results per handler. A store keeps them for several handlers, for a failure, or for a value."""
    results = events.select("bus", F.explode(F.from_json("results", _RESULTS)).alias("result")).select(
        "bus", "result.*"
    )
    return (
        results.where("status <> 'KEPT'")
        .groupBy("bus", "handler_id")
        .agg(
            F.count("*").alias("results"),
            F.count_if(F.col("status") == "SUCCEEDED").alias("succeeded"),
            F.count_if(F.col("status") != "SUCCEEDED").alias("failed"),
            F.sum("attempts").alias("attempts"),
            F.percentile(three_digits("execution_time_ms"), 0.5).alias("p50_ms"),
            F.percentile(three_digits("execution_time_ms"), 0.99).alias("p99_ms"),
        )
    )


def dead_letters(events: DataFrame) -> DataFrame:
    """Return the dead letters, grouped by their last error without its numbers, ids and quoted texts."""
    dead = events.where(F.col("status").isin(_DEAD))
    return dead.groupBy("bus", "type", fingerprint(F.col("last_error")).alias("fingerprint")).agg(
        F.count("*").alias("events"),
        F.min("ended_at").alias("first_at"),
        F.max("ended_at").alias("last_at"),
        F.max_by("last_error", "last_seq").alias("example"),
        F.max_by("event_id", "last_seq").alias("example_event_id"),
    )


def stale_workers(attempts: DataFrame, as_of: Column, after: float = STALE_AFTER) -> DataFrame:
    """Return the workers that hold a claim for at least ``after`` seconds at the time ``as_of``."""
    held = (F.unix_micros(as_of) - F.unix_micros("picked_at")) / 1e6
    silent = attempts.where(F.col("outcome").isNull() & (held >= after))
    return silent.groupBy("worker_id", "bus").agg(
        F.count("*").alias("claims"),
        F.count_if(F.col("started_at").isNull()).alias("never_started"),
        F.min("picked_at").alias("oldest_picked_at"),
        F.max(held).alias("oldest_seconds"),
        F.min("event_id").alias("example_event_id"),
    )


def abandoned_attempts(attempts: DataFrame) -> DataFrame:
    """Return the number of claims whose lease ran out, per worker and type."""
    lost = attempts.where((F.col("outcome") == Action.ABANDONED.value) | F.col("error").startswith("lease expired"))
    return lost.groupBy("worker_id", "bus", "type").agg(
        F.count("*").alias("attempts"),
        F.min("picked_at").alias("first_picked_at"),
        F.max("ended_at").alias("last_noticed_at"),
        F.max("held_ms").alias("longest_held_ms"),
    )


def fingerprint(error: Column) -> Column:
    """Return an error text with placeholders for its numbers, ids and quoted texts."""
    for pattern, name in _FINGERPRINT:
        error = F.regexp_replace(error, pattern, name)
    return F.substring(error, 1, 200)


def _share(part: Column, whole: Column) -> Column:
    return F.when(whole > 0, part / whole)


def analyze(lake: Lake, as_of: float, stale_after: float = STALE_AFTER, *, news: bool = True) -> list[str]:
    """Write the tables of analytics. ``as_of`` is the current time of the store, in seconds. Returns their names.

    Without ``news``, the log has no new entries: only the table that depends on ``as_of`` is written, unless another
    one is missing.
    """
    log, events, attempts = (lake.read(table.name) for table in (EVENT_LOG, EVENTS, ATTEMPTS))
    now = F.timestamp_micros(F.lit(int(as_of * 1e6)))
    made = {"gold.stale_workers": stale_workers(attempts, now, stale_after)}
    if news or not all(lake.exists(name) for name in OF_THE_PAST):
        seconds = step_of(log)
        past = (
            queue_depth(log, seconds),
            throughput(log, seconds),
            latency(events),
            failure_rate(events),
            handler_failures(events),
            dead_letters(events),
            abandoned_attempts(attempts),
        )
        made |= dict(zip(OF_THE_PAST, past, strict=True))
    # Spark and Delta spend most of a small table's time on planning and committing, so writing in parallel is faster.
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(lambda name: lake.overwrite(made[name].coalesce(1), name), made))
    return list(made)

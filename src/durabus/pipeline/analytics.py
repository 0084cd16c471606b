"""The tables for operators: pure transforms of bronze and silver, each named after the table it makes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.model.claim import LEASE_EXPIRED, PROCESS_ENDED
from durabus.model.statuses import DEAD_LETTER, TERMINAL, Action, EventStatus
from durabus.pipeline.lake import Lake
from durabus.pipeline.news import News
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

STALE = "gold.stale_workers"
_DEPTHS = ("waiting", "working")
_SPAN, _STALE_ROWS = "span", "rows"
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


def queue_depth(
    log: DataFrame, seconds: int = 60, *, since: Column | None = None, before: DataFrame | None = None
) -> DataFrame:
    """Return how many events wait and how many are in progress, per bus and step of ``seconds`` with log entries.

    With ``since``, the rows begin with the step of this instant; ``before`` are the rows of the steps before it.
    """
    action, status = F.col("action"), F.col("status")
    entered = action.isin(Action.PUBLISHED.value, Action.REQUEUED.value)
    picked = action == Action.PICKED.value
    abandoned = log.where(action == Action.ABANDONED.value).select("id", "fence", F.lit(True).alias("abandoned"))
    # A worker may settle an event after its lease expired. The event was back in the queue at that moment.
    late = F.coalesce("abandoned", F.lit(False)) & action.isin(SETTLES)
    given_back = (status == "PENDING") & ~entered & ~late
    over = status.isin(_TERMINAL)
    # A cancelled event without a worker was waiting.
    waited = over & (late | ((action == Action.CANCELLED.value) & F.col("worker_id").isNull()))
    part = log if since is None else log.where(F.col("at") >= since)
    changes = (
        part.join(abandoned, ["id", "fence"], "left")
        .groupBy("bus", _step(seconds))
        .agg(
            (F.count_if(entered) + F.count_if(given_back) - F.count_if(picked) - F.count_if(waited)).alias("waiting"),
            (F.count_if(picked) - F.count_if(given_back) - F.count_if(over & ~waited)).alias("working"),
        )
    )
    so_far = Window.partitionBy("bus").orderBy("since").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    depth = changes.select("bus", "since", *(F.sum(name).over(so_far).alias(name) for name in _DEPTHS))
    if before is not None:
        last = before.groupBy("bus").agg(*(F.max_by(name, "since").alias(f"last_{name}") for name in _DEPTHS))
        depth = depth.join(last, "bus", "left").select(
            "bus",
            "since",
            *((F.col(name) + F.coalesce(f"last_{name}", F.lit(0))).alias(name) for name in _DEPTHS),
        )
    return depth.select("bus", "since", F.lit(seconds).alias("seconds"), *_DEPTHS)


def throughput(log: DataFrame, seconds: int = 60) -> DataFrame:
    """Return published, completed, dead and cancelled events, and failed attempts, per bus and step of ``seconds``."""
    status = F.col("status")
    return log.groupBy("bus", _step(seconds), F.lit(seconds).alias("seconds")).agg(
        F.count_if(F.col("action") == Action.PUBLISHED.value).alias("published"),
        F.count_if(status == "COMPLETED").alias("completed"),
        F.count_if(status.isin(_DEAD)).alias("dead"),
        F.count_if(status == EventStatus.CANCELLED.value).alias("cancelled"),
        F.count_if(F.col("action").isin(Action.FAILED.value, Action.ABANDONED.value)).alias("failed_attempts"),
    )


def _step(seconds: int) -> Column:
    return F.timestamp_seconds(F.floor(F.unix_seconds("at") / seconds) * seconds).alias("since")


def step_of(log: DataFrame) -> int:
    """Return the step in seconds: a minute, or a shorter one for a short history."""
    return _step_for(*span_of(log))


def span_of(log: DataFrame) -> tuple[int, int]:
    """Return the instants of the oldest and the newest entry, in seconds."""
    found = log.agg(F.unix_seconds(F.min("at")), F.unix_seconds(F.max("at"))).first()
    return (0, 0) if found is None or found[0] is None else (int(found[0]), int(found[1]))


def _step_for(oldest: int, newest: int) -> int:
    return next((seconds for seconds in STEPS if (newest - oldest) / seconds <= FINE), STEPS[-1])


def latency(events: DataFrame) -> DataFrame:
    """Return percentiles per bus and type: waiting (to the first claim), running (from the last claim), end to end."""
    spans, parts = ("waiting", "running", "end_to_end"), (50, 95, 99)
    # How long a cancelled event lived says nothing about the speed of the workers.
    found = (
        events.where(F.col("status") != EventStatus.CANCELLED.value)
        .groupBy("bus", "type")
        .agg(
            F.count("*").alias("events"),
            *(F.percentile(three_digits(f"{span}_ms"), [p / 100 for p in parts]).alias(span) for span in spans),
        )
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
    judged = ended & (F.col("status") != EventStatus.CANCELLED.value)
    return events.groupBy("bus", "type").agg(
        F.count("*").alias("events"),
        F.count_if(ended).alias("ended"),
        F.count_if(F.col("failures") > 0).alias("with_failures"),
        F.sum("failures").alias("failed_attempts"),
        F.sum("claims").alias("attempts"),
        F.count_if(F.col("status").isin(_DEAD)).alias("dead"),
        _share(F.count_if(F.col("status").isin(_DEAD)), F.count_if(judged)).alias("dead_share"),
        _share(F.count_if(F.col("failures") > 0), F.count("*")).alias("retry_share"),
    )


def handler_failures(events: DataFrame) -> DataFrame:
    """Return how often each handler succeeded or failed with the events that have ended, and how long it took."""
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
    """Return the number of claims that were lost with their lease or their process, per worker and type."""
    by_itself = F.col("error").startswith(LEASE_EXPIRED) | F.col("error").startswith(PROCESS_ENDED)
    lost = attempts.where((F.col("outcome") == Action.ABANDONED.value) | by_itself)
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


def analyze(
    lake: Lake, as_of: float, stale_after: float = STALE_AFTER, *, changed: bool = True, news: News | None = None
) -> list[str]:
    """Write the tables of analytics. ``as_of`` is the current time of the store, in seconds. Returns their names.

    If nothing has ``changed``, the log has no new entries: only the table that depends on ``as_of`` is written, unless
    another one is missing. ``news`` are the entries that the tables lack, if they are few.
    """
    log, events, attempts = (lake.read(table.name) for table in (EVENT_LOG, EVENTS, ATTEMPTS))
    writes: dict[str, Callable[[], None]] = {}

    def write(name: str, rows: DataFrame) -> None:
        writes[name] = lambda: lake.overwrite(rows.coalesce(1), name)

    complete = all(lake.exists(name) for name in OF_THE_PAST)
    if changed or not complete:
        news = news if complete else None
        write("gold.latency", latency(events))
        write("gold.failure_rate", failure_rate(events))
        if news is None or news.has("results"):
            write("gold.handler_failures", handler_failures(events))
        if news is None or news.has("status", _DEAD):
            write("gold.dead_letters", dead_letters(events))
        if news is None or news.has("action", [Action.ABANDONED.value]) or news.has_error(LEASE_EXPIRED, PROCESS_ENDED):
            write("gold.abandoned_attempts", abandoned_attempts(attempts))
        writes |= _over_time(lake, log, news)
    now = F.timestamp_micros(F.lit(int(as_of * 1e6)))
    writes[STALE] = lambda: _write_stale(lake, stale_workers(attempts, now, stale_after))
    # Spark and Delta spend most of a small table's time on planning and committing, so writing in parallel is faster.
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(lambda name: writes[name](), writes))
    return list(writes)


def _over_time(lake: Lake, log: DataFrame, news: News | None) -> dict[str, Callable[[], None]]:
    """Return the writes of the tables over time. Few new entries change only the newest steps."""
    depth, flow = "gold.queue_depth", "gold.throughput"
    known = lake.memory.get(flow, _SPAN)
    if news is None or known is None or lake.memory.get(depth, _SPAN) != known:
        span = span_of(log)
        seconds = _step_for(*span)
        rows = {depth: queue_depth(log, seconds), flow: throughput(log, seconds)}
        return {name: _spanned(lake, name, rows[name], span, None) for name in rows}
    oldest, newest = span_of(news.rows)
    span = min(oldest, known[0]), max(newest, known[1])
    seconds = _step_for(*span)
    if seconds != _step_for(*known):
        return _over_time(lake, log, None)
    begin = F.timestamp_seconds(F.lit(oldest // seconds * seconds))
    before = lake.read(depth).where(F.col("since") < begin)
    rows = {
        depth: queue_depth(log, seconds, since=begin, before=before),
        flow: throughput(log.where(F.col("at") >= begin), seconds),
    }
    condition = f"since >= timestamp_seconds({oldest // seconds * seconds})"
    return {name: _spanned(lake, name, rows[name], span, condition) for name in rows}


def _spanned(
    lake: Lake, name: str, rows: DataFrame, span: tuple[int, int], condition: str | None
) -> Callable[[], None]:
    def write() -> None:
        if condition is None:
            lake.overwrite(rows.coalesce(1), name)
        else:
            lake.replace_where(rows.coalesce(1), name, condition)
        lake.memory.keep(name, _SPAN, span)

    return write


def _write_stale(lake: Lake, found: DataFrame) -> None:
    """Write the stale workers, unless the table is known to have these rows. Mostly there are none."""
    rows = found.toArrow()
    known = lake.memory.get(STALE, _STALE_ROWS)
    if known is None or not rows.equals(known):
        lake.overwrite(lake.spark.createDataFrame(rows).coalesce(1), STALE)
        lake.memory.keep(STALE, _STALE_ROWS, rows)

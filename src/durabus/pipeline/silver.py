"""``silver.events`` and ``silver.attempts``: pure transforms of ``bronze.event_log``."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.model.statuses import TERMINAL, Action
from durabus.pipeline.schema import ATTEMPTS, EVENTS

_TERMINAL = sorted(status.value for status in TERMINAL)
ENDS_ATTEMPT = sorted(
    action.value
    for action in (
        Action.COMPLETED,
        Action.COMPLETED_WITH_ERRORS,
        Action.FAILED,
        Action.RELEASED,
        Action.ABANDONED,
        Action.RESET,
        Action.CANCELLED,
    )
)
"""The actions that end a claim."""
_FAILS = [Action.FAILED.value, Action.ABANDONED.value]
SETTLES = [
    action.value
    for action in (
        Action.COMPLETED,
        Action.COMPLETED_WITH_ERRORS,
        Action.FAILED,
        Action.RELEASED,
        Action.CANCELLED,
    )
]
_SUCCEEDS = [action.value for action in (Action.COMPLETED, Action.COMPLETED_WITH_ERRORS, Action.RELEASED)]
OF_ATTEMPTS = [Action.PICKED.value, Action.STARTED.value, *ENDS_ATTEMPT]
"""The actions of the entries that ``silver.attempts`` uses."""
REPLAY_OF = "durabus_replay_of"
"""The metadata key with the id of the event that a replay has published again."""


def events(log: DataFrame) -> DataFrame:
    """Return ``silver.events``: one row from all entries of each event. ``log`` has all entries of an event or none."""
    action, ended = F.col("action"), F.col("status").isin(_TERMINAL)
    described = (action == Action.PUBLISHED.value) | ended
    grouped = log.groupBy("id").agg(
        F.max("event_id").alias("event_id"),
        F.max("bus").alias("bus"),
        F.max("type").alias("type"),
        F.max(F.struct("seq", "status", "generation", "attempt", "at")).alias("last"),
        F.max(F.when(ended, F.struct("seq", "at", "payload", "errors", "results"))).alias("end"),
        F.max(F.when(action == Action.PUBLISHED.value, F.col("payload"))).alias("published"),
        F.max(F.when(described, F.struct("seq", "tags", "metadata", "parent_id"))).alias("about"),
        F.collect_list(F.when(F.col("error").isNotNull(), F.struct("seq", "error", "fence", "action"))).alias(
            "troubles"
        ),
        F.collect_set(F.when(action.isin(_FAILS), F.col("fence"))).alias("failed"),
        F.collect_set(F.when(action.isin(SETTLES), F.col("fence"))).alias("settled"),
        F.collect_set(F.when(action.isin(_SUCCEEDS), F.col("fence"))).alias("not_failed"),
        F.max(F.when(action == Action.PICKED.value, F.struct("seq", "at", "worker_id"))).alias("picked"),
        F.min(F.when(action == Action.PICKED.value, F.col("at"))).alias("picked_at"),
        F.min("created_at").alias("published_at"),
        F.count_if(action == Action.PICKED.value).alias("claims"),
        F.min("seq").alias("first_seq"),
    )
    is_over = F.col("last.status").isin(_TERMINAL)
    ended_at = F.when(is_over, F.col("end.at"))
    metadata = F.col("about.metadata")
    return grouped.select(
        "id",
        "event_id",
        "bus",
        "type",
        F.col("last.status").alias("status"),
        F.col("last.generation").alias("generation"),
        F.col("last.attempt").alias("attempts"),
        "claims",
        F.size(F.array_except("failed", "not_failed")).cast("bigint").alias("failures"),
        "published_at",
        "picked_at",
        ended_at.alias("ended_at"),
        F.col("last.at").alias("last_at"),
        milliseconds(F.col("published_at"), F.col("picked_at")).alias("waiting_ms"),
        milliseconds(F.col("picked.at"), ended_at).alias("running_ms"),
        milliseconds(F.col("published_at"), ended_at).alias("end_to_end_ms"),
        F.col("picked.worker_id").alias("worker_id"),
        F.array_max(F.filter("troubles", _is_not_taken_back))["error"].alias("last_error"),
        F.from_json("end.errors", "ARRAY<STRING>").alias("errors"),
        F.from_json("about.tags", "ARRAY<STRING>").alias("tags"),
        F.col("about.parent_id").alias("parent_id"),
        _json_or_null(metadata).alias("metadata"),
        _json_or_null(F.coalesce("end.payload", "published")).alias("payload"),
        _json_or_null(F.col("end.results")).alias("results"),
        F.get_json_object(metadata, f"$.{REPLAY_OF}").alias("replay_of"),
        "first_seq",
        F.col("last.seq").alias("last_seq"),
    ).select(*EVENTS.columns)


def _is_not_taken_back(trouble: Column) -> Column:
    """Return whether an error is valid. That of an expired lease is not, if its worker settled the event after all."""
    late = F.array_contains(F.col("settled"), trouble["fence"])
    return (trouble["action"] != Action.ABANDONED.value) | ~late


def attempts(log: DataFrame) -> DataFrame:
    """Return ``silver.attempts``: one row for each claim. ``log`` has all entries of a claim or none."""
    action = F.col("action")
    cancelled = action == Action.CANCELLED.value
    over = action.isin(ENDS_ATTEMPT) & ~cancelled
    ended = F.struct("seq", "action", "at", "error", "reason", "execution_time_ms")
    # A cancellation that revokes a claim has the next fence. So it counts for both fences, and ends a claim that has no
    # other end.
    fences = F.when(cancelled, F.array("fence", F.col("fence") - 1)).otherwise(F.array("fence"))
    grouped = (
        log.where(action.isin(OF_ATTEMPTS))
        .withColumn("fence", F.explode(fences))
        .groupBy("id", "fence")
        .agg(
            F.max("event_id").alias("event_id"),
            F.max("bus").alias("bus"),
            F.max("type").alias("type"),
            F.max("generation").alias("generation"),
            F.max(F.when(action == Action.PICKED.value, F.struct("seq", "attempt", "worker_id", "at"))).alias("picked"),
            F.min(F.when(action == Action.STARTED.value, F.col("at"))).alias("started_at"),
            F.coalesce(F.max(F.when(over, ended)), F.max(F.when(cancelled, ended))).alias("end"),
            F.max("seq").alias("last_seq"),
            F.count_if(~cancelled).alias("own"),
        )
        .where("own > 0")
    )
    return grouped.select(
        "id",
        "fence",
        "event_id",
        "bus",
        "type",
        "generation",
        F.col("picked.attempt").alias("attempt"),
        F.col("picked.worker_id").alias("worker_id"),
        F.col("picked.at").alias("picked_at"),
        "started_at",
        F.col("end.at").alias("ended_at"),
        F.col("end.action").alias("outcome"),
        F.col("end.error").alias("error"),
        F.col("end.reason").alias("reason"),
        F.col("end.execution_time_ms").alias("execution_time_ms"),
        milliseconds(F.col("picked.at"), F.col("end.at")).alias("held_ms"),
        "last_seq",
    ).select(*ATTEMPTS.columns)


def milliseconds(start: Column, end: Column) -> Column:
    """Return the milliseconds from one instant to another."""
    return (F.unix_micros(end) - F.unix_micros(start)) / 1000.0


def _json_or_null(text: Column) -> Column:
    """Return the text if it is JSON, else NULL. Other texts are in the quarantine."""
    return F.when(F.try_parse_json(text).isNotNull(), text)

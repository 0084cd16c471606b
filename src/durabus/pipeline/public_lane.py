"""Reads Kafka's public topic of published events with Spark's own connector, without a durabus node.

::

    spark = spark_session(kafka=True)
    records = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", "host:9092")
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", "events")  # events.PREFIX for a store with a prefix
        .option("includeHeaders", True)
        .load()
    )
    published(records)

``spark.readStream`` works too. The rows are those of ``format("durabus")`` with the action PUBLISHED, and also have the
payload. Records of foreign producers are left out, because only the replicated log knows which of them became events.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

_REST = (
    "event_id STRING, bus STRING, type STRING, metadata_json STRING, metadata_apart BOOLEAN, tags ARRAY<STRING>, "
    "parent_id STRING"
)


def published(records: DataFrame) -> DataFrame:
    """Return rows of Spark's Kafka source, with headers, as events: one row per ``event_id``, even after a repeat.

    ``metadata`` of more than 8,000 characters is not in the public topic: it is NULL here.
    """
    rest = F.from_json(_header("durabus"), _REST)
    events = records.select(
        rest.alias("rest"), "offset", "timestamp", F.col("value").cast("string").alias("payload")
    ).where(F.col("rest").isNotNull())
    return (
        events.groupBy("rest.event_id")
        .agg(F.min(F.struct("offset", "timestamp", "payload", "rest")).alias("first"))
        .select(
            "event_id",
            F.col("first.rest.bus").alias("bus"),
            F.col("first.rest.type").alias("type"),
            F.col("first.timestamp").alias("at"),
            F.when(F.size("first.rest.tags") > 0, F.to_json("first.rest.tags")).alias("tags"),
            F.col("first.rest.metadata_json").alias("metadata"),
            F.col("first.rest.parent_id").alias("parent_id"),
            F.col("first.payload").alias("payload"),
        )
    )


def _header(name: str) -> Column:
    """Return the text of a header; NULL if a record has none of this name."""
    named = F.filter("headers", lambda header: header["key"] == name)
    return F.get(named, F.lit(0))["value"].cast("string")

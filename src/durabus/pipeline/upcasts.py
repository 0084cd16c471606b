"""Runs upcasters on Spark: only rows of older schema versions pass through Python."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.errors import DurabusError
from durabus.model.payload import decode_payload, encode_payload
from durabus.model.upcasting import SCHEMA_VERSION, Upcaster, newest_payload, upcasted_types, upcasters_of

UPCAST_ERROR = "upcast_error"
"""The column that says why an upcaster failed; NULL if none did."""

UpcastersByType = dict[str, dict[int, Upcaster]]


def upcasted(events: DataFrame) -> DataFrame:
    """Return rows of ``silver.events`` with payloads of the newest version, and ``UPCAST_ERROR``."""
    steps = {event_type: upcasters_of(event_type) for event_type in upcasted_types()}
    whole = events.withColumn(UPCAST_ERROR, F.lit(None).cast("string"))
    if not steps:
        return whole
    _send_by_value(steps)
    version = F.coalesce(F.get_json_object("metadata", f"$.{SCHEMA_VERSION}").try_cast("bigint"), F.lit(1))
    old = F.lit(False)
    for event_type, by_version in steps.items():
        old = old | ((F.col("type") == event_type) & version.isin(list(by_version)))
    old = F.coalesce(old & F.col("payload").isNotNull(), F.lit(False))
    made = whole.where(old).mapInArrow(partial(_upcast_batches, steps=steps), whole.schema)
    return whole.where(~old).unionByName(made)


def upcasted_or_failed(events: DataFrame) -> DataFrame:
    """Return rows of ``silver.events`` with payloads of the newest version. The query fails if an upcaster fails."""
    if not upcasted_types():
        return events
    made, error = upcasted(events), F.col(UPCAST_ERROR)
    told = F.concat(F.lit("event "), "event_id", F.lit(" of type "), "type", F.lit(": "), error)
    payload = F.when(error.isNull(), F.col("payload")).otherwise(F.raise_error(told))
    return made.withColumn("payload", payload).drop(UPCAST_ERROR)


def _send_by_value(steps: UpcastersByType) -> None:
    """Let Spark send the functions themselves: its workers may not be able to import the user's module."""
    for by_version in steps.values():
        for step in by_version.values():
            module = sys.modules.get(step.function.__module__)
            if module is not None and module.__name__ != "__main__":  # this one is always sent by value
                cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # it has no types


def _upcast_batches(batches: Iterable[pa.RecordBatch], steps: UpcastersByType) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        payloads: list[str] = []
        errors: list[str | None] = []
        columns = (batch.column(name).to_pylist() for name in ("type", "metadata", "payload"))
        for event_type, metadata, payload in zip(*columns, strict=True):
            try:
                payloads.append(encode_payload(newest_payload(steps[event_type], metadata, decode_payload(payload))))
                errors.append(None)
            except DurabusError as error:
                payloads.append(payload)
                errors.append(str(error))
        made = dict(zip(batch.schema.names, batch.columns, strict=True))
        made |= {"payload": pa.array(payloads, pa.string()), UPCAST_ERROR: pa.array(errors, pa.string())}
        yield pa.RecordBatch.from_arrays(list(made.values()), list(made))

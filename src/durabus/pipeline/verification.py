"""Compares the lake with the log of the store. The log is trimmed only up to the position where both are equal."""

from __future__ import annotations

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.errors import LockHeld, PipelineError
from durabus.pipeline.archive import Reached, bronze_end
from durabus.pipeline.lake import Lake
from durabus.pipeline.schema import EVENT_LOG, EVENT_LOG_COLUMNS
from durabus.pipeline.source import ROWS_PER_PAGE, read_log_part
from durabus.pipeline.store_session import StoreSession
from durabus.queue.locks import LockManager
from durabus.store.contract import EventStore
from durabus.store.log import START

READER = "pipeline.archive"
"""The name under which the store keeps the verified position."""


class Fingerprint(msgspec.Struct, frozen=True):
    """The number of entries and the sum of their hashes over all columns. The order of entries does not matter."""

    rows: int
    hashes: int


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The position up to which the lake is equal to the log, and the number of entries that were compared."""

    position: str
    rows: int


def fingerprint(log: DataFrame) -> Fingerprint:
    """Return the fingerprint of rows with the columns of the log."""
    found = (
        log.select(F.xxhash64(*EVENT_LOG_COLUMNS).cast("decimal(38,0)").alias("hash"))
        .agg(F.count("*"), F.sum("hash"))
        .first()
    )
    return Fingerprint(0, 0) if found is None else Fingerprint(int(found[0]), int(found[1] or 0))


def verify(lake: Lake, session: StoreSession, *, end: Reached | None = None) -> Verified:
    """Compare the entries that were archived since the last verification with the log, and save the new position.

    ``end`` is the end of bronze, if the caller knows it.

    Raises ``PipelineError`` and saves nothing if they differ.
    """
    since = session.ask(lambda store: store.read_position(READER))
    bronze = lake.read(EVENT_LOG.name)
    end = bronze_end(lake) if end is None else end
    until = end.position
    if until == since:
        return Verified(position=since, rows=0)
    seen = None if since == START else bronze.where(F.col("position") == since).agg(F.max("seq")).first()
    if seen is not None and seen[0] is None:
        raise PipelineError(
            f"the lake {lake.path} lacks position {since}, which was verified before: it is another lake"
        )
    since_seq = -1 if seen is None else seen[0]
    archived = fingerprint(bronze.where((F.col("seq") > since_seq) & (F.col("seq") < end.rows)))
    kept = fingerprint(_log_between(lake, session, since, until, rows=archived.rows))
    if archived != kept:
        raise PipelineError(
            f"the lake differs from the log between positions {since or 'START'} and {until}: {archived.rows} entries "
            f"with hash {archived.hashes} against {kept.rows} with {kept.hashes}: nothing is trimmed; "
            "if the log was trimmed by other means since, this part cannot be verified any more"
        )
    session.ask(lambda store: _remember(store, until))
    return Verified(position=until, rows=archived.rows)


async def _remember(store: EventStore, until: str) -> None:
    try:
        async with LockManager(store).hold(READER, wait=0) as lock:
            await store.save_position(READER, until, lock=lock)
    except LockHeld as error:
        raise PipelineError(f"another run verifies this store just now: {error}") from error


def _log_between(lake: Lake, session: StoreSession, after: str, until: str, *, rows: int) -> DataFrame:
    """Return the log of the store between two positions. ``rows`` is the number of entries in the copy."""
    if rows <= ROWS_PER_PAGE:
        return read_log_part(lake.spark, session, after, [until], ROWS_PER_PAGE)
    log = lake.spark.read.format("durabus").option("url", session.url)
    return log.option("after", after).option("until", until).load()


async def trim(store: EventStore, *, older_than: float = 0.0, batch: int = 10_000) -> int:
    """Trim the log up to the verified position. Returns the number of deleted entries."""
    until = await store.read_position(READER)
    if until == START:
        raise PipelineError(
            "nothing of this store's log was verified yet: `durabus pipeline run archive` does that first"
        )
    gone = 0
    while part := await store.trim_log(until=until, older_than=older_than, limit=batch):
        gone += part
    return gone

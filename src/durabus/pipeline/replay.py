"""Publishes events of the lake again: each event once, with metadata that names the replay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import islice

import msgspec
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.errors import ConfigurationError, PipelineError
from durabus.model.event import NewEvent, new_event
from durabus.model.limits import check_name
from durabus.model.payload import decode_payload
from durabus.model.statuses import TERMINAL, EventStatus
from durabus.pipeline.lake import QueryResult, first_rows
from durabus.pipeline.projections import of_types
from durabus.pipeline.session import SPARK_ERRORS, first_line
from durabus.pipeline.silver import REPLAY_OF
from durabus.store.contract import EventStore

REPLAY = "durabus_replay"
"""The metadata key with the id of the replay that published the event."""
AT_ONCE = 500
FETCHED = 10_000
"""Approximate number of events that the driver keeps in memory."""
MAX_GROUPS = 1_000


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions for events to replay. An event must meet every condition that is set.

    Without ``statuses``, only ended events are chosen: the store still handles the others.
    """

    since: datetime | None = None
    until: datetime | None = None
    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    statuses: tuple[EventStatus, ...] = ()
    bus: str | None = None
    where: str | None = None
    """SQL over the columns of ``silver.events``."""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The number of events that this run published, and of those that an earlier run of the replay had published."""

    published: int = 0
    known: int = 0


Told = Callable[[Replayed], None]


def chosen(events: DataFrame, choice: Choice) -> DataFrame:
    """Return the events of ``silver.events`` that meet the conditions and whose payload is in the lake."""
    found = events.where(F.col("payload").isNotNull())
    if choice.since is not None:
        found = found.where(F.col("published_at") >= F.lit(choice.since))
    if choice.until is not None:
        found = found.where(F.col("published_at") < F.lit(choice.until))
    if choice.types:
        found = found.where(of_types(choice.types))
    if choice.tags:
        found = found.where(F.arrays_overlap("tags", F.array(*map(F.lit, choice.tags))))
    found = found.where(F.col("status").isin([status.value for status in choice.statuses or TERMINAL]))
    if choice.bus is not None:
        found = found.where(F.col("bus") == choice.bus)
    if choice.where is not None:
        try:
            found = found.where(choice.where)
        except SPARK_ERRORS as error:
            raise PipelineError(f"where {choice.where!r}: {first_line(error)}") from error
    return found


def counted(found: DataFrame) -> QueryResult:
    """Return the number of events that a replay would publish, by bus, type and status."""
    first, last = (F.date_trunc("second", one("published_at")) for one in (F.min, F.max))
    groups = found.groupBy("bus", "type", "status").agg(
        F.count("*").alias("events"), first.alias("first"), last.alias("last")
    )
    return first_rows(groups.orderBy("bus", "type", "status"), MAX_GROUPS)


async def replay(
    events: DataFrame,
    store: EventStore,
    *,
    replay_id: str,
    bus: str | None = None,
    rate: float | None = None,
    told: Told = lambda _: None,
) -> Replayed:
    """Publish each of these events again, oldest first, on its own bus or on ``bus``, at most ``rate`` per second.

    The idempotency key consists of the replay's id and the event's id. After a kill, the same call continues without
    duplicates, as long as the store still has the events that the killed run published.
    """
    check_name(replay_id, "replay id")
    if rate is not None and not rate > 0:
        raise ConfigurationError(f"rate={rate:g}: must be more than 0 events a second")
    size = AT_ONCE if rate is None else max(1, min(AT_ONCE, int(rate)))
    published = known = 0
    started = time.monotonic()  # clock: the pace of this process
    for rows in _parts(_in_order(events).toLocalIterator(), size):
        new = [_again(row, replay_id, bus) for row in rows]
        stored = await store.add_events(new)
        fresh = sum(event.event_id == one.event_id for event, one in zip(stored, new, strict=True))
        published, known = published + fresh, known + len(new) - fresh
        told(Replayed(published=published, known=known))
        if rate is not None:
            ahead = published / rate - (time.monotonic() - started)  # clock: the pace of this process
            if ahead > 0:
                await asyncio.sleep(ahead)
    return Replayed(published=published, known=known)


def _again(row: Row, replay_id: str, bus: str | None) -> NewEvent:
    metadata = {} if row["metadata"] is None else decode_payload(row["metadata"])
    return new_event(
        row["type"],
        decode_payload(row["payload"]),
        bus=row["bus"] if bus is None else bus,
        metadata={**metadata, REPLAY: replay_id, REPLAY_OF: row["event_id"]},
        tags=row["tags"] or (),
        idempotency_key=f"replay {replay_id} {row['event_id']}",
    )


def _in_order(events: DataFrame) -> DataFrame:
    """Sort the events in partitions that are small enough for the driver, which fetches one after the other."""
    partitions = -(-events.count() // FETCHED) or 1
    return events.repartitionByRange(partitions, "first_seq").sortWithinPartitions("first_seq")


def _parts(rows: Iterator[Row], size: int) -> Iterator[list[Row]]:
    while part := list(islice(rows, size)):
        yield part

"""One event as the lake remembers it, for those who ask after the store forgot it."""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.pipeline.lake import Lake
from durabus.pipeline.query import Answer, answer
from durabus.pipeline.tables import EVENT_LOG, LOG_COLUMNS
from durabus.store.events import EventRef

LONGEST = 10_000


def archived_trail(lake: Lake, ref: EventRef) -> Answer:
    """Every archived entry of an event, oldest first; no rows if the lake does not know it."""
    key = "id" if isinstance(ref, int) else "event_id"
    return answer(lake.read(EVENT_LOG.name).where(F.col(key) == ref).orderBy("seq").select(*LOG_COLUMNS), LONGEST)

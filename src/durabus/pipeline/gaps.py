"""The lake as an archive of a store's log: it holds the log, and a ledger lists what was trimmed unread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from uuid import uuid4

import msgspec
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.errors import LockHeld, PipelineError
from durabus.model.lake_summary import LAKE
from durabus.pipeline.lake import ID, Lake
from durabus.pipeline.lake_lock import KILLED_WITHIN
from durabus.pipeline.schema import EVENT_LOG, GAPS
from durabus.pipeline.store_session import StoreSession
from durabus.queue.locks import LockManager
from durabus.store.contract import EventStore
from durabus.store.log import ARCHIVE, START

FORCED, UNKNOWN, TRIMMED = "forced trim", "the store had forgotten this lake", "trimmed before this lake began"
"""The reasons of gaps."""


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the ledger: entries after one position and up to another were trimmed before they were archived."""

    gap_id: str
    reason: str
    after: str
    until: str
    entries: int | None
    """The number of entries in this part of the log when the gap arose; None if it is unknown."""
    missing: int | None
    """The number of them that the lake lacks; None if it is unknown: then at most ``entries``."""
    noted_at: datetime


def lake_id(lake: Lake) -> str:
    """Return the id of a lake: the id that Delta gave ``bronze.event_log`` when it was created. It never changes.

    It is empty before the first run.
    """
    if not lake.exists(EVENT_LOG.name):
        return ""
    known = lake.memory.get(EVENT_LOG.name, ID)
    if known is None:
        known = str(lake.detail(EVENT_LOG.name)["id"])
        lake.memory.keep(EVENT_LOG.name, ID, known)
    return str(known)


def archive_name(lake: Lake) -> str:
    """Return the name under which a store keeps the verified position of this lake."""
    return f"{ARCHIVE}{lake_id(lake)}"


async def save_verified(store: EventStore, name: str, position: str | None) -> None:
    """Save the verified position of a lake; None forgets the lake and its summary."""
    await save_text(store, name, position)
    if position is None:
        await save_text(store, f"{LAKE}{name.removeprefix(ARCHIVE)}", None)


async def save_text(store: EventStore, name: str, text: str | None) -> None:
    """Save a position or another text of a lake in the store; None forgets it."""
    try:
        async with LockManager(store).hold(name, wait=KILLED_WITHIN) as lock:
            await store.save_position(name, text, lock=lock)
    except LockHeld as error:
        raise PipelineError(f"another run saves the state of this lake just now: {error}") from error


def follow(lake: Lake, session: StoreSession, end: str, *, accept_gap: bool) -> None:
    """Make the lake an archive of the store's log, unless it is one. ``end`` is the last position in bronze.

    Raises ``PipelineError`` if the log was trimmed where this lake would begin, unless ``accept_gap`` is set. Then the
    ledger gets a line.
    """
    name = archive_name(lake)
    archives = session.ask(lambda store: store.read_archives())
    if name in archives.positions:
        return
    if end != START and not accept_gap:
        raise PipelineError(
            f"the store does not know the lake {lake.path}: it was forgotten there, or the store was restored from an "
            "older copy, so entries may have been trimmed unread; --accept-gap goes on and notes it in ops.gaps"
        )
    # From now on no trim passes this lake. So whether the log was trimmed is read after this, not before.
    session.ask(lambda store: save_verified(store, name, end))
    trimmed = end != START or session.ask(lambda store: store.read_archives()).trimmed
    if trimmed and not accept_gap:
        session.ask(lambda store: save_verified(store, name, None))
        raise PipelineError(_trimmed_before(lake, archives.positions))
    if trimmed:
        reason = TRIMMED if end == START else UNKNOWN
        note_gap(lake, reason, after=end, until=session.ask(lambda store: store.log_head()))


def _trimmed_before(lake: Lake, archives: Mapping[str, str]) -> str:
    known = ", ".join(sorted(name.removeprefix(ARCHIVE) for name in archives)) or "none"
    return (
        f"the store's log was trimmed before the lake {lake.path} began, so this lake cannot have all events (lakes "
        f"that follow the store: {known}); --rebuild-from LAKE copies the log of another lake, --accept-gap goes on "
        "without what was trimmed and notes it in ops.gaps"
    )


def rebuild_from(lake: Lake, session: StoreSession, other: Lake) -> None:
    """Copy the log in another lake of the same store, and its verified position, into this empty lake."""
    if lake.value(EVENT_LOG.name, "count(*)"):
        raise PipelineError(
            f"the lake {lake.path} has entries: --rebuild-from needs an empty one; choose another --lake"
        )
    verified = session.ask(lambda store: store.read_archives()).positions.get(archive_name(other))
    if verified is None:
        raise PipelineError(
            f"the store does not know the lake {other.path}, so its log is not proven; name a lake that follows this "
            "store, or use --accept-gap"
        )
    lake.append(other.read(EVENT_LOG.name), EVENT_LOG, app="durabus.rebuild", version=0)
    session.ask(lambda store: save_verified(store, archive_name(lake), verified))


def note_gap(
    lake: Lake,
    reason: str,
    *,
    after: str,
    until: str,
    entries: int | None = None,
    missing: int | None = None,
    gap_id: str | None = None,
) -> str:
    """Add a line to the ledger and return its id. A second line with the same id replaces the first."""
    noted = datetime.now(UTC)  # clock: for people who read the ledger
    gap = Gap(
        gap_id=gap_id or str(uuid4()),
        reason=reason,
        after=after,
        until=until,
        entries=entries,
        missing=missing,
        noted_at=noted,
    )
    lake.append(lake.spark.createDataFrame([msgspec.structs.astuple(gap)], GAPS.ddl), GAPS)
    return gap.gap_id


def read_gaps(lake: Lake) -> list[Gap]:
    """Return the ledger, oldest line first."""
    if not lake.exists(GAPS.name):
        return []
    newest = F.max_by(F.struct(*GAPS.columns), F.col("noted_at")).alias("gap")
    rows = lake.read(GAPS.name).groupBy("gap_id").agg(newest).select("gap.*").orderBy("noted_at").collect()
    return [Gap(**{**row.asDict(), "noted_at": row["noted_at"].astimezone(UTC)}) for row in rows]


def trimmed_unread(gaps: Sequence[Gap]) -> str:
    """Return the sum of the ledger in words."""
    known = sum(gap.missing for gap in gaps if gap.missing is not None)
    at_most = sum(gap.entries or 0 for gap in gaps if gap.missing is None)
    unknown = sum(gap.entries is None and gap.missing is None for gap in gaps)
    words = [f"{known:,} log entries"] if known or not (at_most or unknown) else []
    words += [f"at most {at_most:,} more"] if at_most else []
    words += [f"{unknown} gap{'s' if unknown > 1 else ''} of unknown size"] if unknown else []
    return ", ".join(words)


def trim_unread(lake: Lake, session: StoreSession, *, older_than: float, batch: int = 10_000) -> int:
    """Trim the log to its end, also what this lake lacks, and note it in the ledger. Other lakes still hold the log.

    Returns the number of deleted entries. The ledger has the line before anything is deleted. If this is killed, the
    line says how many entries are missing at most.
    """
    name = archive_name(lake)
    end = session.ask(lambda store: store.read_position(name))
    archived = lake.read(EVENT_LOG.name).orderBy(F.desc("seq")).select("position").first()
    if end != (START if archived is None else archived["position"]):
        raise PipelineError(
            "the lake has entries that were not verified: `durabus pipeline run archive` first, then trim with --force"
        )
    head = session.ask(lambda store: store.log_head())
    entries = session.ask(lambda store: _between(store, end, head))
    gap_id = note_gap(lake, FORCED, after=end, until=head, entries=entries)
    gone = session.ask(lambda store: trim_until(store, head, older_than=older_than, batch=batch, ignoring=name))
    missing = entries - session.ask(lambda store: _between(store, end, head))
    note_gap(lake, FORCED, after=end, until=head, entries=entries, missing=missing, gap_id=gap_id)
    return gone


async def trim_until(
    store: EventStore, until: str, *, older_than: float, batch: int = 10_000, ignoring: str = ""
) -> int:
    """Trim the log up to a position, batch by batch. Returns the number of deleted entries."""
    gone = 0
    while part := await store.trim_log(until=until, older_than=older_than, limit=batch, ignoring=ignoring):
        gone += part
    return gone


async def _between(store: EventStore, after: str, until: str) -> int:
    return await store.log_lag(after) - await store.log_lag(until)

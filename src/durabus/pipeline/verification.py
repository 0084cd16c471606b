"""Compares the lake with the log of the store: ``verify`` what is new, ``prove`` everything.

The log is trimmed only up to the position where both are equal. Each proof is a line of ``ops.proofs``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import reduce

import msgspec
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.errors import PipelineError
from durabus.model.lake_summary import ProofSummary
from durabus.pipeline.archive import Reached, bronze_end
from durabus.pipeline.gaps import archive_name, lake_id, read_gaps, save_verified, trim_until
from durabus.pipeline.lake import Lake
from durabus.pipeline.lake_lock import alone
from durabus.pipeline.news import News
from durabus.pipeline.proof_chain import (
    PROOFS,
    Proof,
    Proven,
    Segment,
    SegmentState,
    chained,
    check_key,
    read_chain,
    refuse_cut_chain,
    signed,
    unsigned_proofs,
)
from durabus.pipeline.schema import EVENT_LOG, IN_THE_LOG
from durabus.pipeline.source import ROWS_PER_PAGE, read_log_part
from durabus.pipeline.store_session import StoreSession
from durabus.pipeline.summary import read_summary, save_proof
from durabus.store.contract import EventStore
from durabus.store.log import ARCHIVE, START


class Fingerprint(msgspec.Struct, frozen=True):
    """The number of entries and the sum of their hashes over all columns of the log. Their order does not matter."""

    rows: int
    hashes: int


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The position up to which the lake is equal to the log, and the number of entries that were compared."""

    position: str
    rows: int


def entry_hash() -> Column:
    """Return the hash of an entry over all columns of the log, as the store has them."""
    return F.xxhash64(*map(F.expr, IN_THE_LOG)).cast("decimal(38,0)")


def fingerprints(*logs: DataFrame) -> list[Fingerprint]:
    """Return the fingerprint of each DataFrame with the columns of the log, all by one query."""
    hashed = [log.select(F.lit(side).alias("side"), entry_hash().alias("hash")) for side, log in enumerate(logs)]
    rows = reduce(DataFrame.union, hashed).groupBy("side").agg(F.count("*"), F.sum("hash")).collect()
    found = {side: Fingerprint(int(count), int(hashes)) for side, count, hashes in rows}
    return [found.get(side, Fingerprint(0, 0)) for side in range(len(logs))]


def verify(
    lake: Lake,
    session: StoreSession,
    *,
    begin: Reached | None = None,
    end: Reached | None = None,
    news: News | None = None,
) -> Verified:
    """Compare the entries that were archived since the last verification with the log, and save the new position.

    A caller that has just archived knows more: ``begin`` and ``end`` are the ends of bronze before and after, ``news``
    are the entries between them.

    Raises ``PipelineError`` and saves nothing if they differ.
    """
    name = archive_name(lake)
    since = session.ask(lambda store: store.read_position(name))
    end = bronze_end(lake) if end is None else end
    until = end.position
    if until == since:
        return Verified(position=since, rows=0)
    first = begin.rows if begin is not None and begin.position == since else first_after(lake, since, name)
    if news is not None and (news.first_seq, news.end) == (first, end.rows):
        copy = news.rows
    else:
        copy = lake.read(EVENT_LOG.name).where((F.col("seq") >= first) & (F.col("seq") < end.rows))
    archived, kept = fingerprints(copy, log_between(lake, session, since, until, rows=end.rows - first))
    if archived != kept:
        raise PipelineError(
            f"the lake differs from the log between positions {since or 'START'} and {until}: {archived.rows} entries "
            f"with hash {archived.hashes} against {kept.rows} with {kept.hashes}: nothing is trimmed; "
            "if the log was changed by hand since, this part cannot be verified any more"
        )
    session.ask(lambda store: save_verified(store, name, until))
    return Verified(position=until, rows=archived.rows)


def first_after(lake: Lake, position: str, name: str) -> int:
    """Return the ``seq`` after the entry at a verified position. ``name`` is that of the lake in the store."""
    if position == START:
        return 0
    seen = lake.read(EVENT_LOG.name).where(F.col("position") == position).agg(F.max("seq")).first()
    if seen is None or seen[0] is None:
        raise PipelineError(
            f"the lake {lake.path} lacks position {position}, which was verified before: its table was set back; "
            f"`durabus pipeline forget {name.removeprefix(ARCHIVE)}`, then archive into a new lake"
        )
    return int(seen[0]) + 1


def log_between(lake: Lake, session: StoreSession, after: str, until: str, *, rows: int) -> DataFrame:
    """Return the log of the store between two positions. ``rows`` is the number of entries in the copy."""
    if rows <= ROWS_PER_PAGE:
        return read_log_part(lake.spark, session, after, [until], ROWS_PER_PAGE, payloads=False)
    log = lake.spark.read.format("durabus").option("url", session.url).option("payloads", False)
    return log.option("after", after).option("until", until).load()


async def trim(store: EventStore, *, older_than: float = 0.0, batch: int = 10_000) -> int:
    """Trim the log up to the smallest verified position of the lakes that follow it. Returns the number of entries."""
    positions = (await store.read_archives()).positions
    if not positions or START in positions.values():
        raise PipelineError(
            "nothing of this store's log was verified yet: `durabus pipeline run archive` does that first"
        )
    return await trim_until(store, await store.log_head(), older_than=older_than, batch=batch)


async def forget(store: EventStore, lake: str) -> None:
    """Forget the lake with this id: it no longer keeps the store from trimming its log."""
    known = [name.removeprefix(ARCHIVE) for name in (await store.read_archives()).positions]
    if lake not in known:
        raise PipelineError(f"no lake {lake!r} follows this store; these do: {', '.join(sorted(known)) or 'none'}")
    await save_verified(store, f"{ARCHIVE}{lake}", None)


ROWS_PER_SEGMENT = 250_000


def prove(lake: Lake, session: StoreSession, *, wait: float = 0.0, key: bytes | None = None) -> Proven:
    """Compare the lake with the store's log and append the result to ``ops.proofs``, signed if there is a ``key``.

    Raises ``PipelineError`` if the chain of proofs is broken, or has a signature that the key does not make.
    """
    check_key(key)
    with alone(lake.path, session, wait=wait):
        lake.read(EVENT_LOG.name)  # refuses a lake before its first run
        chain = read_chain(lake)
        known = read_summary(session, lake_id(lake))
        refuse_cut_chain(chain, None if known is None else known.proof)
        unsigned = () if key is None else unsigned_proofs(chain, key)
        last = chain[-1] if chain else None
        end = bronze_end(lake)
        found = _compared(lake, session, end)
        before = {} if last is None else {one.first_seq: one for one in last.proof.segments}
        segments = [_judged(row, end.rows, before) for row in found if row["segment"] is not None]
        proof = Proof(
            lake_id=lake_id(lake),
            until=end.position,
            entries=end.rows,
            behind=session.ask(lambda store: store.log_lag(end.position)),
            missing=sum(row["only_store"] for row in found),
            segments=sorted([*segments, *_absent(segments, end.rows)], key=lambda one: one.first_seq),
            gaps=read_gaps(lake),
        )
        text, previous = msgspec.json.encode(proof).decode(), "" if last is None else last.hash
        own = chained(previous, text)
        made = Proven(
            number=len(chain),
            made_at=datetime.now(UTC),  # clock: for people who read the table
            proof=proof,
            previous=previous,
            hash=own,
            signature=None if key is None else signed(own, key),
            unsigned=unsigned,
        )
        line = (made.number, made.made_at, text, made.previous, made.hash, made.signature)
        lake.append(lake.spark.createDataFrame([line], PROOFS.ddl), PROOFS, app=PROOFS.name, version=made.number)
        save_proof(lake, session, _summary(made))
        return made


def _summary(made: Proven) -> ProofSummary:
    return ProofSummary(
        number=made.number,
        made_at=made.made_at,
        holds=made.proof.holds,
        entries=made.proof.entries,
        differing=made.proof.count(SegmentState.DIFFERS),
        missing=made.proof.missing,
        trimmed=made.proof.trimmed,
        hash=made.hash,
    )


def _compared(lake: Lake, session: StoreSession, end: Reached) -> list[Row]:
    """Return counts and hashes per segment. Entries that only the store has are of no segment."""
    if not end.rows:
        return []
    copy = lake.read(EVENT_LOG.name).where(F.col("seq") < end.rows)
    archived = copy.select("position", "seq", entry_hash().alias("copied"))
    kept = log_between(lake, session, START, end.position, rows=end.rows).select("position", entry_hash().alias("kept"))
    both = archived.join(kept, "position", "full_outer")
    name = archive_name(lake)
    verified = first_after(lake, session.ask(lambda store: store.read_position(name)), name)
    return both.groupBy(F.floor(F.col("seq") / ROWS_PER_SEGMENT).alias("segment")).agg(*_sums(verified)).collect()


def _sums(verified: int) -> list[Column]:
    """Return what is counted in each segment. Entries from the ``seq`` ``verified`` on cannot have been trimmed."""
    copied, kept = F.col("copied"), F.col("kept")
    return [
        F.count("copied").alias("rows"),
        F.count_distinct("seq").alias("numbers"),
        F.count("kept").alias("in_store"),
        F.sum("copied").alias("hash"),
        F.sum("kept").alias("store_hash"),
        F.count_if(copied.isNotNull() & kept.isNotNull() & (copied != kept)).alias("other"),
        F.count_if(kept.isNull() & (F.col("seq") >= verified)).alias("unverified"),
        F.count_if(copied.isNull()).alias("only_store"),
    ]


def _judged(row: Row, entries: int, before: dict[int, Segment]) -> Segment:
    first = int(row["segment"]) * ROWS_PER_SEGMENT
    rows = min(ROWS_PER_SEGMENT, entries - first)
    found, known = str(row["hash"]), before.get(first)
    reason = ""
    if not row["rows"] == row["numbers"] == rows:
        reason = f"the lake has {row['numbers']} different entries in {row['rows']} rows instead of {rows}"
    elif row["other"]:
        reason = f"{row['other']} entries differ from those of the store"
    elif row["unverified"]:
        reason = f"the store lacks {row['unverified']} entries that were never verified"
    elif known is not None and known.rows == rows and known.hash != found:
        reason = "the lake has changed since the last proof"
    whole = SegmentState.EQUAL if row["in_store"] == rows else SegmentState.TRIMMED
    return Segment(
        first_seq=first,
        rows=rows,
        hash=found,
        in_store=row["in_store"],
        store_hash=str(row["store_hash"] or 0),
        state=SegmentState.DIFFERS if reason else whole,
        reason=reason,
    )


def _absent(found: Sequence[Segment], entries: int) -> list[Segment]:
    """Return the segments of which the lake has no entry at all."""
    present = {segment.first_seq for segment in found}
    return [
        Segment(
            first_seq=first,
            rows=min(ROWS_PER_SEGMENT, entries - first),
            hash="0",
            in_store=0,
            store_hash="0",
            state=SegmentState.DIFFERS,
            reason="the lake has none of these entries",
        )
        for first in range(0, entries, ROWS_PER_SEGMENT)
        if first not in present
    ]

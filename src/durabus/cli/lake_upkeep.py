"""Commands of ``durabus pipeline`` that look after a lake: rebuild, rollback, prove, trim, forget, compact."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from msgspec import to_builtins

from durabus.cli.declared import Entity, Projections, declared_tables
from durabus.cli.failures import CommandFailed, Exit
from durabus.cli.lake import LAKE_DEFAULTS, LakeOptions, opened_lake, refuse_without_spark
from durabus.cli.options import DEFAULTS, Common, opened_store, refuse_absent_file, store_url
from durabus.cli.output import console, pairs, print_json, table

if TYPE_CHECKING:
    from durabus.pipeline.proof_chain import Proven
    from durabus.pipeline.store_session import StoreSession

UPKEEP_WAITS = 600.0
"""Seconds to wait for the lake if another process uses it. ``run --follow`` frees it between its runs."""


def rebuild(
    name: Annotated[str, Parameter(name="NAME", help="A projection, or a table of silver.")],
    /,
    *,
    entity: Entity = None,
    projections: Projections = None,
    since: Annotated[
        datetime | None, Parameter(help="Only rows of events with log entries at or after this instant (UTC).")
    ] = None,
    options: LakeOptions = LAKE_DEFAULTS,
    common: Common = DEFAULTS,
) -> None:
    """Compute a table of the lake anew from the log. Readers see the old rows until it is complete.

    Example: durabus pipeline rebuild hourly_counters --lake lake
    """
    with opened_lake(options) as lake, _session(common) as session:
        from durabus.pipeline.rebuilding import rebuild as rebuild_table

        declared = declared_tables(entity, projections)
        rows = rebuild_table(lake, name, declared, since=utc(since), session=session, wait=UPKEEP_WAITS)
    if common.json:
        print_json({"rebuilt": name, "rows": rows})
    else:
        print(f"{name} rebuilt from {rows:,} rows")


def rollback(
    name: Annotated[str, Parameter(name="NAME", help="A projection, or silver.events or silver.attempts.")],
    /,
    *,
    options: LakeOptions = LAKE_DEFAULTS,
    common: Common = DEFAULTS,
) -> None:
    """Set a table of the lake back to its state before its last rebuild. The next run goes on from there.

    Example: durabus pipeline rollback hourly_counters --lake lake
    """
    with opened_lake(options) as lake, _session(common) as session:
        from durabus.pipeline.rebuilding import rollback as roll_back

        version = roll_back(lake, name, session=session, wait=UPKEEP_WAITS)
    if common.json:
        print_json({"rolled_back": name, "version": version})
    else:
        print(f"{name} is as it was at version {version} of its table")


def prove(
    *,
    key: Annotated[
        Path | None, Parameter(help="File with a secret of 32 bytes or more: signs the proof, checks earlier ones.")
    ] = None,
    options: LakeOptions = LAKE_DEFAULTS,
    common: Common = DEFAULTS,
) -> None:
    """Prove that the lake has every entry of the log: counts and hashes on both sides, and the gap ledger.

    Exit code 1: an entry is missing or differs, or with --key an earlier proof lacks a signature. The result is kept
    in ops.proofs.

    Example: durabus pipeline prove --store sqlite:///bus.db --lake lake
    """
    refuse_absent_file(store_url(common))
    secret = None if key is None else _secret(key)
    with opened_lake(options) as lake, _session(common) as session:
        from durabus.pipeline.verification import prove as prove_lake

        found = prove_lake(lake, session, wait=UPKEEP_WAITS, key=secret)
    if common.json:
        print_json({"holds": found.proof.holds, **to_builtins(found)})
    else:
        _print_proof(found)
    if not found.proof.holds:
        raise CommandFailed("the lake is not proven complete", "see above which part differs", code=Exit.FAILED)
    if found.unsigned:
        raise CommandFailed(
            "earlier proofs have no signature",
            f"{_numbers(found.unsigned)}: made without --key, or by a program that does not have the key",
            "if you know them, nothing is to be done: the signature of this proof covers them from now on",
        )


def _secret(file: Path) -> bytes:
    """Return all bytes of a file with a key."""
    refuse_without_spark()
    from durabus.pipeline.proof_chain import check_key

    try:
        secret = file.read_bytes()
    except OSError as error:
        raise CommandFailed(
            f"cannot read the key in {file}",
            error.strerror or str(error),
            f"`openssl rand -hex 32 > {file}` makes one",
            code=Exit.USAGE,
        ) from error
    check_key(secret)
    return secret


def _numbers(proofs: Sequence[int]) -> str:
    """Return a range of proofs in words."""
    return f"proof {proofs[0]}" if len(proofs) == 1 else f"proofs {proofs[0]} to {proofs[-1]}"


def _print_proof(found: Proven) -> None:
    from durabus.pipeline.gaps import trimmed_unread
    from durabus.pipeline.proof_chain import SegmentState

    proof = found.proof
    facts = {
        "lake": proof.lake_id,
        "proven complete": f"{proof.entries - proof.count(SegmentState.DIFFERS):,} of {proof.entries:,} log entries",
        "trimmed after that": f"{proof.trimmed:,}: the store has trimmed them since they were verified",
        "trimmed unread": f"{trimmed_unread(proof.gaps)}, in the gap ledger",
        "not archived yet": f"{proof.behind:,}",
        "missing": f"{proof.missing:,} entries of the store are not in the lake",
        "proof": f"{found.number}, sha256 {found.hash}",
    }
    if found.signature is not None:
        facts["signature"] = f"hmac-sha256 {found.signature}"
    out = console()
    out.print(pairs(facts.items()))
    made = table("segment", ("entries", {"justify": "right"}), ("in store", {"justify": "right"}), "result", "hash")
    for one in proof.segments:
        last = one.first_seq + one.rows - 1
        result = f"{one.state}: {one.reason}" if one.reason else str(one.state)
        made.add_row(f"{one.first_seq:,} to {last:,}", f"{one.rows:,}", f"{one.in_store:,}", result, one.hash)
    out.print()
    out.print(made)


def _session(common: Common) -> StoreSession:
    """Return the store, which is not opened before it is needed."""
    from durabus.pipeline.store_session import StoreSession

    return StoreSession(store_url(common))


def utc(given: datetime | None) -> datetime | None:
    """Return the time as UTC, unless it has an offset."""
    return given if given is None or given.tzinfo is not None else given.replace(tzinfo=UTC)


def trim(
    *,
    older_than: Annotated[
        float, Parameter(help="Keep entries of events that ended within this many seconds.")
    ] = 86_400.0,
    force: Annotated[
        bool, Parameter(help="Also trim what --lake has not archived; its ops.gaps notes it.", negative="")
    ] = False,
    options: LakeOptions = LAKE_DEFAULTS,
    common: Common = DEFAULTS,
) -> None:
    """Trim the store's log, but only entries whose copy in every lake was verified.

    Example: durabus pipeline trim --store sqlite:///bus.db --older-than 604800
    """
    refuse_without_spark()
    gone = _forced_trim(options, common, older_than) if force else _verified_trim(common, older_than)
    if common.json:
        print_json({"trimmed_entries": gone})
    else:
        print(f"{gone:,} log entries trimmed")


def _verified_trim(common: Common, older_than: float) -> int:
    from durabus.pipeline.verification import trim as trim_verified

    async def go() -> int:
        async with opened_store(common) as store:
            return await trim_verified(store, older_than=older_than)

    return asyncio.run(go())


def _forced_trim(options: LakeOptions, common: Common, older_than: float) -> int:
    with opened_lake(options) as lake:
        from durabus.pipeline.gaps import trim_unread
        from durabus.pipeline.store_session import StoreSession

        with StoreSession(store_url(common)) as session:
            return trim_unread(lake, session, older_than=older_than)


def forget(
    lake_id: Annotated[str, Parameter(name="LAKE_ID", help="The id of the lake; `pipeline status` shows it.")],
    /,
    *,
    common: Common = DEFAULTS,
) -> None:
    """Forget a lake that is given up, so that the store may trim what this lake has not archived.

    Example: durabus pipeline forget 0d9b7c3e-6a2f-4c1b-9a55-3f5a1f2c7e10 --store sqlite:///bus.db
    """
    refuse_without_spark()
    from durabus.pipeline.verification import forget as forget_lake

    async def go() -> None:
        async with opened_store(common) as store:
            await forget_lake(store, lake_id)

    asyncio.run(go())
    if common.json:
        print_json({"forgotten": lake_id})
    else:
        print(f"lake {lake_id} forgotten")


def compact(
    *,
    keep_days: Annotated[float, Parameter(help="Days for which older versions of the tables stay readable.")] = 7.0,
    options: LakeOptions = LAKE_DEFAULTS,
    common: Common = DEFAULTS,
) -> None:
    """Merge small files into large ones, and delete files that only older versions need.

    Example: durabus pipeline compact --lake lake --keep-days 30
    """
    with opened_lake(options) as lake, _session(common) as session:
        from durabus.pipeline.derive import compact as compact_all

        now = datetime.now(UTC)  # clock: which files are old
        done = compact_all(lake, keep_days=keep_days, now=now, session=session, wait=UPKEEP_WAITS)
    if common.json:
        print_json({"tables": done})
        return
    number = {"justify": "right"}
    made = table("table", ("files before", number), ("files after", number))
    for one in done:
        made.add_row(one.name, f"{one.before:,}", f"{one.after:,}")
    console().print(made)

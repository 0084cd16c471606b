"""``pipeline prove``: what is complete, what is accounted for, what is missing, and a chain that shows every change."""

import asyncio
import hmac
import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.pipeline.history import History
from tests.pipeline.recomputed.files import Files, copy_of
from tests.pipeline.recomputed.lake import check_lake

from durabus import EventStore
from durabus.cli.main import main
from durabus.errors import ConfigurationError, PipelineError
from durabus.pipeline.gaps import trim_unread
from durabus.pipeline.lake import Lake
from durabus.pipeline.proof_chain import Proof, SegmentState, read_chain, unsigned_proofs
from durabus.pipeline.run import Pipeline, PipelinePart
from durabus.pipeline.store_session import StoreSession
from durabus.pipeline.verification import prove, trim

KEY = b"a secret that has 32 bytes as it"
OTHER_KEY = KEY.upper()


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durabus.pipeline.verification.ROWS_PER_SEGMENT", 4)


def states(proof: Proof) -> list[tuple[int, int, str]]:
    return [(one.rows, one.in_store, one.state) for one in proof.segments]


def proves(session: StoreSession, lake: Lake, *options: str) -> list[str]:
    return ["pipeline", "prove", "--store", session.url, "--lake", lake.path, *options]


async def test_the_proof_separates_equal_trimmed_unread_and_not_yet_archived_segments(  # noqa: PLR0917  (fixtures)
    lake: Lake,
    session: StoreSession,
    store: EventStore,
    history: History,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    database, key = tmp_path / "bus.db", tmp_path / "key"
    for _ in range(2):
        await history.completed()
    Pipeline(lake, session.url).run(PipelinePart.ARCHIVE)
    first = prove(lake, session)
    assert states(first.proof) == [(4, 4, "equal"), (2, 2, "equal")]
    assert all(one.hash == one.store_hash for one in first.proof.segments)

    before = copy_of(database, "before.db")
    await trim(store)
    await history.completed()
    unread = copy_of(database, "unread.db")
    # An older session may not know yet how far the clock of the test has moved.
    with StoreSession(session.url) as new_session:
        trim_unread(lake, new_session, older_than=0.0)
    await history.publish()
    Pipeline(lake, session.url).run(PipelinePart.ARCHIVE)
    await history.publish()
    with pytest.raises(ConfigurationError, match="the key has 31 bytes: it must have 32 or more"):
        prove(lake, session, key=KEY[1:])
    key.write_bytes(KEY)
    # The command ends with 1, because nobody can tell who made the first proof.
    assert await asyncio.to_thread(main, proves(session, lake, "--key", str(key))) == 1
    assert "proof 0: made without --key, or by a program that does not have the key" in capsys.readouterr().err
    second = read_chain(lake)[-1]
    assert second.proof.holds
    assert states(second.proof) == [(4, 0, "trimmed"), (3, 1, "trimmed")]
    assert (second.proof.trimmed, second.proof.missing, second.proof.behind) == (6, 0, 1)
    assert [gap.missing for gap in second.proof.gaps] == [3]
    assert (second.number, second.previous) == (1, first.hash)
    assert second.signature == hmac.digest(KEY, second.hash.encode(), "sha256").hex()
    assert read_chain(lake) == [first, second]
    assert unsigned_proofs([first, second, replace(first, number=2), replace(first, number=3)], KEY) == (2, 3)
    assert unsigned_proofs([first, second, replace(first, number=2), replace(second, number=3)], KEY) == ()
    with pytest.raises(PipelineError, match=r"the signature of proof 1 in ops\.proofs is not of this key"):
        prove(lake, session, key=OTHER_KEY)
    checked = check_lake(Files([before, unread, database], Path(lake.path)))
    assert {"bronze.event_log", "ops.gaps", "ops.proofs"} < set(checked)


async def test_an_entry_that_differs_or_is_missing_is_found(
    lake: Lake, session: StoreSession, history: History, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        await history.completed()
    Pipeline(lake, session.url).run(PipelinePart.ARCHIVE)
    prove(lake, session)
    bronze = lake.location("bronze.event_log")
    lake.spark.sql(f"ALTER TABLE delta.`{bronze}` UNSET TBLPROPERTIES ('delta.appendOnly')")
    lake.spark.sql(f"DELETE FROM delta.`{bronze}` WHERE seq = 1")
    database = sqlite3.connect(tmp_path / "bus.db")
    with database:
        database.execute("UPDATE event_log SET error = 'changed by hand' WHERE position = 6")
    database.close()
    assert await asyncio.to_thread(main, proves(session, lake, "--key", str(tmp_path / "absent"))) == 2
    assert "No such file or directory" in capsys.readouterr().err
    code = await asyncio.to_thread(main, proves(session, lake))
    shown = " ".join(capsys.readouterr().out.split())
    assert code == 1
    assert "proven complete 1 of 9 log entries" in shown
    assert "missing 1 entries of the store are not in the lake" in shown
    found = read_chain(lake)[-1].proof
    assert not found.holds
    assert found.missing == 1
    assert [one.state for one in found.segments] == [SegmentState.DIFFERS, SegmentState.DIFFERS, SegmentState.EQUAL]
    assert [one.reason for one in found.segments[:2]] == [
        "the lake has 3 different entries in 3 rows instead of 4",
        "1 entries differ from those of the store",
    ]
    proofs = lake.location("ops.proofs")
    lake.spark.sql(f"ALTER TABLE delta.`{proofs}` UNSET TBLPROPERTIES ('delta.appendOnly')")
    whole = lake.version("ops.proofs")
    lake.spark.sql(f"DELETE FROM delta.`{proofs}` WHERE number = 1")
    with pytest.raises(PipelineError, match=r"ops.proofs is broken at proof 1: the store knows a proof that is gone"):
        prove(lake, session)
    lake.restore("ops.proofs", whole)
    lake.spark.sql(f"DELETE FROM delta.`{proofs}` WHERE number = 0")
    with pytest.raises(PipelineError, match=r"ops.proofs is broken at proof 0: a proof was changed or removed by hand"):
        prove(lake, session)


def test_a_lake_before_its_first_run_has_nothing_to_prove(lake: Lake, session: StoreSession) -> None:
    with pytest.raises(PipelineError, match=r"has no table bronze.event_log"):
        prove(lake, session)

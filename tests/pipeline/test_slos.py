"""SLOs: what counts as good, how fast the budget is used up, and what is refused."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from tests.pipeline.history import History
from tests.pipeline.recomputed.files import Files
from tests.pipeline.recomputed.lake import check_lake

from durabus.errors import ConfigurationError
from durabus.pipeline.lake import Lake
from durabus.pipeline.run import Pipeline
from durabus.pipeline.schema import ACTIVITY
from durabus.pipeline.slos import Slo, burn_rates
from durabus.pipeline.store_session import StoreSession

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def rows(spark: SparkSession, *given: tuple[str, str, str, int, int, list[tuple[int, int]]]) -> list[Row]:
    """Rows of ``gold.activity``: step, since, type, completed, dead, and the histogram from end to end."""
    names = ("step", "since", "type", "completed", "dead", "end_to_end")
    made = [{"facet": "type", "bus": "default", **dict(zip(names, one, strict=True))} for one in given]
    ddl = "step STRING, since STRING, facet STRING, bus STRING, type STRING, completed BIGINT, dead BIGINT, "
    frame = spark.createDataFrame(made, ddl + "end_to_end ARRAY<STRUCT<from_us: BIGINT, count: BIGINT>>")
    slo = Slo(name="fast", objective=0.9, within=1.0, type="order.*")
    return burn_rates(frame.withColumn("since", F.to_timestamp("since")), slo, F.lit(NOW)).orderBy("seconds").collect()


def test_late_and_dead_events_are_bad_and_use_the_budget(spark: SparkSession) -> None:
    fast, slow = (500_000, 6), (2_000_000, 2)
    found = rows(
        spark,
        ("minute", "2026-01-31 11:59:00", "order.placed", 8, 2, [fast, slow]),
        ("minute", "2026-01-31 11:59:00", "mail.sent", 0, 50, []),
        ("minute", "2026-01-31 10:00:00", "order.placed", 6, 0, [fast]),
        ("hour", "2026-01-31 11:00:00", "order.placed", 8, 2, [fast, slow]),
        ("day", "2026-01-31 00:00:00", "order.placed", 100, 0, [(500_000, 100)]),
        ("day", "2025-12-01 00:00:00", "order.placed", 0, 100, []),
    )
    assert [(row["seconds"], row["good"], row["bad"]) for row in found] == [
        (300, 6, 4),
        (3_600, 6, 4),
        (21_600, 12, 4),
        (86_400, 6, 4),
        (259_200, 6, 4),
        (2_592_000, 100, 0),
    ]
    assert found[0]["burn_rate"] == pytest.approx(4.0), "40 % are bad, 10 % may be"
    assert [row["budget_left"] for row in found] == [None] * 5 + [1.0]


def test_without_events_nothing_burns(spark: SparkSession) -> None:
    found = rows(spark, ("day", "2025-01-01 00:00:00", "order.placed", 1, 1, []))
    assert {(row["good"], row["bad"], row["burn_rate"]) for row in found} == {(0, 0, None)}
    assert found[-1]["budget_left"] == 1.0


async def test_a_run_writes_how_declared_slos_stand(
    lake: Lake, session: StoreSession, history: History, tmp_path: Path
) -> None:
    """One of the seven events still waits, and two are dead. The clock of the store is far ahead of the host's."""
    await history.varied()
    Pipeline(
        lake, session.url, [Slo(name="well", objective=0.99), Slo(name="mail", objective=0.5, type="mail.*")]
    ).run()
    whole = {row["slo"]: row for row in lake.read("gold.slos").where("budget_left IS NOT NULL").collect()}
    counts = lake.read(ACTIVITY.name).where("facet = 'type' AND step = 'day'").agg(F.sum("completed")).first()
    assert counts is not None
    assert counts[0] == 4
    assert set(whole) == {"well", "mail"}
    assert all(row["within_ms"] is None for row in whole.values())
    assert "gold.slos" in check_lake(Files([tmp_path / "bus.db"], Path(lake.path)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": 99}, r"SLO 'x': objective=99: must be between 0 and 1, such as 0.99 for 99 %"),
        ({"objective": 0.9, "days": 0}, r"SLO 'x': days=0: must be 1 or more"),
        ({"objective": 0.9, "within": 0}, r"SLO 'x': within=0: must be more than 0 seconds"),
    ],
)
def test_an_impossible_objective_is_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Slo(name="x", **options)  # type: ignore[arg-type]

"""One Spark session for all tests of the pipeline, and a small history whose every instant is known."""

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from tests.pipeline.history import BEGIN, History
from tests.pipeline.notebook import Notebook, run_notebook

from durabus import EventStore, ManualClock, open_store
from durabus.pipeline.lake import Lake
from durabus.pipeline.session import QUICK, spark_session
from durabus.pipeline.store_session import StoreSession

SECONDS = 900
"""A test that Spark takes part in may wait for a JVM and for neighbours on two cores."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    warehouse = tmp_path_factory.mktemp("warehouse")
    session = spark_session(
        master="local[2]",
        memory="1g",
        kafka=shutil.which("mvn") is not None,
        conf={
            **QUICK,
            "spark.sql.warehouse.dir": str(warehouse),
            "spark.sql.streaming.pollingDelay": "10ms",
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def notebook(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Notebook:
    """The notebook, run once. Tests may change its store and its lake."""
    return run_notebook(tmp_path_factory.mktemp("notebook"))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/bus.db"


@pytest.fixture
def session(url: str) -> Iterator[StoreSession]:
    """The store as a run of the pipeline sees it."""
    with StoreSession(url) as opened:
        yield opened


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(BEGIN)


@pytest.fixture
async def store(url: str, clock: ManualClock) -> AsyncIterator[EventStore]:
    opened = await open_store(url, clock=clock)
    yield opened
    await opened.close()


@pytest.fixture
async def history(store: EventStore, clock: ManualClock) -> History:
    return History(store, clock)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path / "lake")


@pytest.fixture
def content() -> Callable[[DataFrame], tuple[int, int]]:
    """Return count and sum of row hashes. They are equal for equal tables, whatever the order of rows."""

    def measure(rows: DataFrame) -> tuple[int, int]:
        plain = [F.to_json(name) if "map" in kind else F.col(name) for name, kind in rows.dtypes]
        row = rows.select(F.xxhash64(*plain).cast("decimal(38,0)").alias("h")).agg(F.count("*"), F.sum("h")).first()
        assert row is not None
        return int(row[0]), int(row[1] or 0)

    return measure

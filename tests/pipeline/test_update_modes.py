"""Each way of updating a projection gives the table that a rebuild gives, however the work is split into runs."""

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from tests.pipeline.history import History

from durabus.errors import ConfigurationError, EventNotFound, NotADeadLetter, PipelineError
from durabus.pipeline.input_tables import InputTables
from durabus.pipeline.lake import Lake
from durabus.pipeline.planning import plan
from durabus.pipeline.projecting import all_rows
from durabus.pipeline.projections import Projection, projection
from durabus.pipeline.run import Pipeline, PipelinePart
from durabus.pipeline.sql_projections import read_sql_folder
from durabus.pipeline.store_session import StoreSession
from durabus.pipeline.tables import EventTable

Content = Callable[[DataFrame], tuple[int, int]]
ORDER = "get_json_object(payload, '$.order')"
TYPED = EventTable("order.placed")


@projection(key="order", inputs="silver.order_placed")
def order_totals(placed: DataFrame) -> DataFrame:
    """Read a typed table; keyed upsert."""
    return placed.groupBy("order").agg(F.sum("total").alias("total"), F.count("durabus_ended_at").alias("ended"))


@projection(key=("order", "valid_from"), live=True)
def order_states(events: DataFrame) -> DataFrame:
    """Keep the history of each order, as SCD2: each row is valid until the next one of its order."""
    return events.selectExpr(
        f"{ORDER} AS order",
        "first_seq AS valid_from",
        f"lead(first_seq) OVER (PARTITION BY {ORDER} ORDER BY first_seq) AS valid_to",
        "status",
    )


def projections_of(rates: Path) -> list[Projection]:
    log = ("bronze.event_log",)
    newest = (
        "SELECT kind, event_id, status FROM (SELECT type AS kind, event_id, status, row_number() OVER "
        "(PARTITION BY type ORDER BY first_seq DESC) AS n FROM {events}) WHERE n = 1"
    )
    minutes = "SELECT date_trunc('MINUTE', at) AS minute, count(*) AS n, max(seq) AS newest FROM {event_log} GROUP BY 1"
    charged = "SELECT t.order, total * rate AS charged FROM {order_totals} t JOIN {rates} r ON t.order % 2 = r.odd"
    failures = "SELECT seq, error FROM {event_log} WHERE error IS NOT NULL"
    workers = "SELECT worker_id AS worker, count(*) AS n, sum(held_ms) AS held FROM {attempts} GROUP BY 1"
    statuses = "SELECT status, count(*) AS n FROM {events} GROUP BY 1"
    top = "SELECT type, count(*) AS n FROM {events} GROUP BY 1 ORDER BY 2, 1 LIMIT 2"
    return [
        Projection(name="charged", key="order", sql=charged, inputs=("gold.order_totals", str(rates))),
        order_totals,
        order_states,
        Projection(name="failures", key="seq", sql=failures, inputs=log),
        Projection(name="minutes", key="minute", sql=minutes, inputs=log),
        Projection(name="newest", key="kind", sql=newest),
        Projection(name="per_worker", key="worker", sql=workers, inputs="silver.attempts"),
        Projection(name="statuses", key="status", sql=statuses, live=True),
        Projection(name="top", key="type", sql=top),
    ]


MODES = {
    "charged": "full",
    "order_totals": "upsert",
    "order_states": "scd2",
    "failures": "append",
    "minutes": "add",
    "newest": "window",
    "per_worker": "full",
    "statuses": "full",
    "top": "full",
}
ONLY_PLANNED = {"per_worker", "statuses", "top"}


async def act(history: History, chance: random.Random) -> None:
    """Do one thing that happens in the life of events."""
    order = {"order": chance.randrange(6), "total": chance.randrange(100)}
    match chance.randrange(6):
        case 0 | 1:
            await history.completed(chance.choice(["order.placed", "mail.sent"]), order)
        case 2:
            await history.publish("order.placed", order)
        case 3:
            for claim in await history.claim("host:2", limit=2):
                await history.fail(claim, "KeyError: 'x'", chance.choice([None, 0.0]))
        case 4:
            with suppress(NotADeadLetter, EventNotFound):
                await history.store.requeue_dead_letters([chance.randrange(1, 20)])
        case _:
            for claim in await history.claim("host:3", limit=3):
                await history.complete(claim)


async def kept_equals_rebuilt(  # noqa: PLR0917  (fixtures)
    lake: Lake, session: StoreSession, history: History, content: Content, rates: Path, seed: int
) -> None:
    chance = random.Random(seed)
    projections = projections_of(rates)
    # Three more have no mode but a rebuild. ``charged`` shows how that runs, so these are only planned.
    planned = projections
    projections = [one for one in planned if one.name not in ONLY_PLANNED]
    rated = lake.spark.createDataFrame([(0, 1.0), (1, 2.0)], "odd INT, rate DOUBLE")
    rated.write.format("delta").save(str(rates))
    await history.completed("order.placed", {"order": 1, "total": 3})
    await history.varied(2)
    pipeline = Pipeline(lake, session.url, [*projections, TYPED])
    pipeline.run()
    versions = {one.name: lake.version(one.table) for one in projections}
    for _ in range(2):
        for _ in range(chance.randrange(1, 9)):
            await act(history, chance)
        if chance.random() < 0.5:
            rated.withColumn("rate", F.lit(chance.random())).write.format("delta").mode("overwrite").save(str(rates))
        if chance.random() < 0.5:
            pipeline.run(PipelinePart.ARCHIVE)
        else:
            pipeline.run()
    pipeline.run()
    found = plan(lake, [*planned, TYPED])
    assert {one.projection: one.mode for one in found} == MODES, [(one.projection, one.why) for one in found]
    inputs = InputTables(lake, projections, [TYPED])
    for one in projections:
        assert content(lake.read(one.table)) == content(all_rows(lake, one, inputs)), f"{one.name}, seed {seed}"
        rebuilt = [line["operation"] for line in lake.history(one.table) if line["version"] > versions[one.name]]
        if MODES[one.name] != "full":
            assert not [line for line in rebuilt if "REPLACE" in line], f"{one.name} must be updated, not rebuilt"
    again = {one.name: lake.version(one.table) for one in projections}
    pipeline.run()
    assert {one.name: lake.version(one.table) for one in projections} == again, "nothing new, nothing written"


async def test_what_is_updated_equals_what_is_rebuilt(
    lake: Lake, session: StoreSession, history: History, content: Content, tmp_path: Path
) -> None:
    await kept_equals_rebuilt(lake, session, history, content, tmp_path / "rates", seed=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 6))
async def test_what_is_updated_equals_what_is_rebuilt_over_more_splits(  # noqa: PLR0917  (fixtures)
    lake: Lake, session: StoreSession, history: History, content: Content, tmp_path: Path, seed: int
) -> None:
    await kept_equals_rebuilt(lake, session, history, content, tmp_path / "rates", seed)


async def test_a_projection_that_fails_stops_those_that_read_it(
    lake: Lake, session: StoreSession, history: History
) -> None:
    """A projection whose second row with a new key comes in a later run is found too: its key is not unique."""
    await history.completed("order.placed", {"order": 1})
    key = "kind"
    single = Projection(name="single", key=key, sql="SELECT type AS kind, event_id FROM {events}")
    reader = Projection(name="reader", key=key, inputs="gold.single", sql="SELECT kind FROM {single}")
    pipeline = Pipeline(lake, session.url, [reader, single])
    pipeline.run()
    assert [row["kind"] for row in lake.read("gold.reader_v1").collect()] == ["order.placed"]
    await history.completed("mail.sent", {"order": 1})
    await history.completed("mail.sent", {"order": 2})
    with pytest.raises(PipelineError) as raised:
        pipeline.run()
    assert "single: its key is not unique: 2 rows have kind='mail.sent'" in str(raised.value)
    assert "reader: its input single has failed" in str(raised.value)
    assert [row["kind"] for row in lake.read("gold.reader_v1").collect()] == ["order.placed"]


def test_a_folder_of_sql_files_declares_projections(tmp_path: Path) -> None:
    (tmp_path / "spent.sql").write_text(
        "-- What each customer has spent.\n-- key: customer, day\n-- inputs: silver.events, /data/rates\n"
        "-- types: order.*\n-- live: true\n-- version: 3\n\nSELECT 1 -- key: no\n"
    )
    (spent,) = read_sql_folder(tmp_path)
    assert (spent.name, spent.key, spent.version) == ("spent", ("customer", "day"), 3)
    assert (spent.inputs, spent.types, spent.live) == (("silver.events", "/data/rates"), ("order.*",), True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT 1", r"spent\.sql does not declare its key: begin it with a line such as -- key: customer"),
        ("-- key: a\n-- key: b\nSELECT 1", r"spent\.sql, line 2: key is declared twice"),
        ("-- key: a\n-- live: yes\nSELECT 1", r"line 2: live='yes': must be true or false"),
        ("-- key: a\n-- inputs: nowhere\nSELECT 1", r"spent\.sql: projection spent: input 'nowhere': must be"),
    ],
)
def test_a_bad_sql_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "spent.sql").write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        read_sql_folder(tmp_path)
    (tmp_path / "spent.sql").unlink()
    with pytest.raises(ConfigurationError, match=r"has no \.sql file"):
        read_sql_folder(tmp_path)

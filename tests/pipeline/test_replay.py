"""Replay: chosen by many conditions, published once, marked as a replay, resumed without doubles."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.history import history_in

from durabus import EventQuery, EventStatus, EventStore, upcast
from durabus.errors import ConfigurationError, PipelineError
from durabus.pipeline.archive import event_log
from durabus.pipeline.replay import Choice, Replayed, chosen, replay
from durabus.pipeline.silver import events


@pytest.fixture(scope="module")
async def silver(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """The table of a store that is closed: the replay publishes to another one."""
    url = f"sqlite:///{tmp_path_factory.mktemp('replay')}/bus.db"
    async with history_in(url) as history:
        await history.varied()
    return events(event_log(spark.read.format("durabus").option("url", url).load(), 0)).cache()


CHOICES = [
    (Choice(), [1, 2, 3, 4, 5, 6]),
    (Choice(types=("order.*",)), [1, 2, 5]),
    (Choice(types=("order.placed", "mail.*")), [1, 2, 5, 6]),
    (Choice(tags=("b2b", "nowhere")), [3, 4]),
    (Choice(statuses=(EventStatus.FAILED,)), [3, 4]),
    (Choice(statuses=(EventStatus.PENDING, EventStatus.PROCESSING)), [7]),
    (Choice(where="failures > 0 AND status = 'COMPLETED'"), [2, 6]),
    (Choice(bus="other"), []),
    (Choice(since=datetime.fromtimestamp(1_990_000_003, UTC)), [2, 3, 4, 5, 6]),
    (Choice(until=datetime.fromtimestamp(1_990_000_003, UTC)), [1]),
]


async def test_events_are_chosen_by_every_condition(silver: DataFrame) -> None:
    """This is one test, because making the table takes longer than nine queries."""
    for choice, ids in CHOICES:
        assert sorted(row["id"] for row in chosen(silver, choice).collect()) == ids, choice
    with pytest.raises(PipelineError, match="where 'nonsense > 1'"):
        chosen(silver, Choice(where="nonsense > 1"))


async def test_a_replay_publishes_once_and_says_what_it_is(
    silver: DataFrame, store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second call stands for a run after a kill. It publishes nothing that the first one has published.

    The payload is published as it was, so its reader sees it through the upcasters, and each of them runs once.
    """
    monkeypatch.setattr("durabus.pipeline.replay.FETCHED", 1)
    monkeypatch.setattr("durabus.model.upcasting._UPCASTERS", {})

    @upcast("order.placed", 1, 2)
    def in_cents(payload: dict[str, float]) -> dict[str, float]:
        return {"order": payload["order"], "cents": payload["total"] * 100}

    found = chosen(silver, Choice(types=("order.*",)))
    some = await replay(found.where("id < 5"), store, replay_id="again")
    assert some == Replayed(published=2, known=0)
    told: list[Replayed] = []
    assert await replay(found, store, replay_id="again", told=told.append) == Replayed(published=1, known=2)
    assert told == [Replayed(published=1, known=2)]
    page = await store.find(EventQuery(type="order.placed", statuses=(EventStatus.PENDING,)))
    copies = {event.metadata["durabus_replay_of"]: event for event in page.events}
    originals = [row["event_id"] for row in found.orderBy("id").select("event_id").collect()]
    assert len(page.events) == 3
    assert sorted(copies, key=lambda original: copies[original].id) == originals
    copy = copies[originals[0]]
    assert (copy.payload, copy.tags, copy.type) == ({"order": 1, "cents": 950.0}, ("eu",), "order.placed")
    assert copy.payload_json == '{"order":1,"total":9.5}'
    assert copy.metadata == {"source": "web", "durabus_replay": "again", "durabus_replay_of": originals[0]}
    assert await replay(found, store, replay_id="another", bus="copies") == Replayed(published=3, known=0)
    assert (await store.counts("copies")).pending == 3


async def test_a_rate_is_kept(silver: DataFrame, store: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only sleeping moves the clock: two events a second, in parts of two."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    # Only what the module sees: other threads of this process go on by the real clock.
    monkeypatch.setattr("durabus.pipeline.replay.asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr("durabus.pipeline.replay.time", SimpleNamespace(monotonic=lambda: sum(slept)))
    await replay(chosen(silver, Choice()), store, replay_id="slow", rate=2.0)
    assert slept == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
async def test_a_rate_of_zero_or_less_is_refused(store: EventStore, rate: float) -> None:
    with pytest.raises(ConfigurationError, match=r"rate=\S+: must be more than 0 events a second"):
        await replay(None, store, replay_id="never", rate=rate)  # type: ignore[arg-type]  # it is not looked at

"""What a run saves in the store for the dashboard: the state of the lake, its tables, steps, runs and expectations."""

import pytest
from tests.pipeline.history import History

from durabus import EventStore
from durabus.errors import PipelineError
from durabus.model.lake_summary import LakeSummary
from durabus.pipeline import summary
from durabus.pipeline.expectations import Expectation, OnBreak
from durabus.pipeline.gaps import lake_id
from durabus.pipeline.lake import Lake
from durabus.pipeline.projections import Projection
from durabus.pipeline.run import Pipeline, PipelinePart
from durabus.pipeline.store_session import StoreSession
from durabus.pipeline.summary import read_summary
from durabus.pipeline.verification import forget, prove
from durabus.store.log import START
from durabus.views.lakes import lakes_of

LATE = Expectation(name="nothing failed", table="silver.events", rule="failures = 0", action=OnBreak.FAIL)


def saved(lake: Lake, session: StoreSession) -> LakeSummary:
    found = read_summary(session, lake_id(lake))
    assert found is not None
    return found


async def test_a_run_saves_what_the_dashboard_shows(
    lake: Lake, url: str, session: StoreSession, store: EventStore, history: History
) -> None:
    await history.varied()
    with pytest.raises(PipelineError, match="nothing failed"):
        Pipeline(lake, url, [LATE]).run()
    first = saved(lake, session)
    entries = lake.read("bronze.event_log").count()
    assert first.archived == entries
    assert {table.name: table.rows for table in first.tables} == {
        name: lake.read(name).count() for name in lake.tables()
    }
    assert {step.seen for step in first.steps} == {entries}
    failed = lake.read("silver.events").where("failures > 0").count()
    assert [(one.name, one.rows, one.broken) for one in first.expectations] == [("nothing failed", 7, failed)]
    assert [(run.part, run.rows, len(run.errors)) for run in first.runs] == [("all", entries, 1)]
    assert first.proof is None
    prove(lake, session)
    await history.completed()
    bad = Projection(name="bad", key={"id": "id"}, sql="SELECT id, nonsense FROM {events}")
    with pytest.raises(PipelineError, match="bad"):
        Pipeline(lake, url, [bad]).run()
    second = saved(lake, session)
    steps = {step.name: step for step in second.steps}
    assert steps["bad v1"].seen is None
    assert "nonsense" in (steps["bad v1"].error or "")
    total = await store.log_lag(START)
    assert total > entries
    assert steps["silver.events"].seen == second.archived == total
    assert [run.rows for run in second.runs] == [total - entries, entries]
    assert second.proof is not None
    assert (second.proof.holds, second.proof.entries) == (True, entries)
    (shown,) = await lakes_of(store)
    assert (shown.lake_id, shown.behind, shown.summary) == (lake_id(lake), 0, second)
    await forget(store, lake_id(lake))
    assert read_summary(session, lake_id(lake)) is None
    assert await lakes_of(store) == []


async def test_a_run_without_news_saves_nothing_for_a_minute(
    lake: Lake, url: str, session: StoreSession, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    await history.completed()
    Pipeline(lake, url).run(PipelinePart.ARCHIVE)
    first = saved(lake, session)
    Pipeline(lake, url).run(PipelinePart.ARCHIVE)
    assert saved(lake, session) == first
    monkeypatch.setattr(summary, "AT_LEAST_EVERY", 0.0)
    Pipeline(lake, url).run(PipelinePart.ARCHIVE)
    later = saved(lake, session)
    assert later.saved_at > first.saved_at
    assert len(later.runs) == 2

"""Counts, groups and steps: what the pages are made of."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from durabus import EventStore, ManualClock, new_event, open_store
from durabus.errors import StoreUnavailableError
from durabus.http.dashboard.charts import chart, round_up
from durabus.http.dashboard.overview_page import unhandled
from durabus.http.dashboard.words import UNKNOWN, ago, duration, percent, pretty, rate
from durabus.model.claim import Claim, ClaimRequest, new_token
from durabus.model.query import Counts, EventQuery
from durabus.model.settlement import NO_HANDLER, Complete, Fail, Release
from durabus.model.statuses import EventStatus
from durabus.views import activity as activity_module
from durabus.views.activity import MAX_TAG_SETS, ActivityByBus, BusActivity, SlotCounts, percentiles, step_of
from durabus.views.attempts import attempts_of
from durabus.views.dead_letters import Selection, count_selected, group_dead_letters, shape_of, take_step
from durabus.views.events import count_queue, oldest
from durabus.views.live import CachedValue

BUS = "default"
ALL: frozenset[str] = frozenset()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000.0)


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[EventStore]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/bus.db"
    opened = await open_store(url, clock=clock)
    yield opened
    await opened.close()


async def claim(store: EventStore, limit: int = 1, worker_id: str = "host:1") -> list[Claim]:
    return await store.claim_next_events(ClaimRequest(bus=BUS, worker_id=worker_id, token=new_token(), limit=limit))


async def make_dead_letters(store: EventStore, count: int, type_: str = "a.b", error: str = "boom 7") -> list[int]:
    await store.add_events([new_event(type_, {"n": n}) for n in range(count)])
    claims = await claim(store, count)
    await store.settle_events([Fail(one.ref, error, None) for one in claims])
    return [one.event.id for one in claims]


async def followed(store: EventStore) -> BusActivity:
    activity = BusActivity(store, BUS, asyncio.Event())
    await activity.watched(20)
    await activity.stop()
    return activity


async def test_the_activity_counts_what_the_log_says(store: EventStore, clock: ManualClock) -> None:
    await store.add_events([new_event("a.b", tags=["red"]), new_event("a.b", tags=["red", "blue"]), new_event("c.d")])
    clock.advance(2)
    first, second, third = await claim(store, 3)
    clock.advance(1)
    await store.settle_events([Complete(first.ref), Fail(second.ref, "boom", 60.0), Fail(third.ref, "boom", None)])
    activity = await followed(store)
    now = clock.now() + 10
    total = activity.slots.between(now - 60, now, ALL)
    assert (total.published, total.completed, total.failed_attempts, total.dead) == (3, 1, 2, 1)
    assert total.failure_share == pytest.approx(2 / 3)
    assert percentiles(total.waiting).p50 == pytest.approx(2.0, rel=0.05)
    assert percentiles(total.running).p99 == pytest.approx(1.0, rel=0.05)
    assert percentiles(total.whole).p50 == pytest.approx(3.0, rel=0.05)
    blue = activity.slots.between(now - 60, now, frozenset({"blue"}))
    assert (blue.published, blue.completed, blue.failed_attempts) == (1, 0, 1)
    assert activity.slots.between(now - 60, now, frozenset({"red"})).published == 2
    assert (activity.workers["host:1"].done, activity.workers["host:1"].failed) == (1, 2)


async def test_an_event_that_was_brought_back_says_nothing_about_latency(store: EventStore, clock: ManualClock) -> None:
    (id_,) = await make_dead_letters(store, 1)
    clock.advance(1000)
    await store.requeue_dead_letters([id_])
    (one,) = await claim(store)
    await store.settle_events([Complete(one.ref)])
    activity = await followed(store)
    total = activity.slots.between(clock.now() - 2000, clock.now() + 10, ALL)
    assert (total.completed, total.dead) == (1, 1)
    assert (total.whole.total(), total.waiting.total()) == (0, 1)


async def test_events_that_completed_without_a_handler_need_attention(store: EventStore, clock: ManualClock) -> None:
    await store.add_events([new_event(type_) for type_ in ("order.palced", "order.palced", "mail.sent")])
    first, second, handled = await claim(store, 3)
    for one in (first, second):
        await store.settle_events([Complete(one.ref, reason=NO_HANDLER)])
    await store.settle_events([Complete(handled.ref)])
    (notice,) = unhandled(await followed(store), clock.now())
    assert notice.text == "order.palced: 2 events completed without work in the last hour, as no process had a handler"
    assert (notice.path, notice.parameters) == ("/dashboard/events", {"type": "order.palced"})
    assert unhandled(await followed(store), clock.now() + 3601) == []


async def test_following_goes_back_a_limited_way(store: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity_module, "LOOK_BACK", 10)
    await store.add_events([new_event("a.b") for _ in range(50)])
    activity = await followed(store)
    now = await store.now() + 10
    assert activity.slots.between(now - 60, now, ALL).published == 10
    assert activity.since_ts == await store.now()


async def test_the_activity_of_a_bus_knows_nothing_of_others(store: EventStore) -> None:
    await store.add_events([new_event("a.b", bus="other"), new_event("a.b")])
    activity = await followed(store)
    now = await store.now() + 10
    assert activity.slots.between(now - 60, now, ALL).published == 1


async def test_a_log_that_was_read_from_its_begin_is_known_as_a_whole(store: EventStore) -> None:
    activity = BusActivity(store, BUS, asyncio.Event())
    await activity.watched(20)
    await store.add_events([new_event("a.b")])
    await activity.stop()
    await activity._read_on()
    assert activity.since_ts == 0.0


async def test_only_a_few_buses_are_followed(store: EventStore) -> None:
    by_bus = ActivityByBus(store, asyncio.Event())
    kept = [await by_bus.of(f"bus-{number}", 5) for number in range(10)]
    assert kept[0]._task is not None
    assert kept[0]._task.done()
    assert kept[9]._task is not None
    assert not kept[9]._task.done()
    assert await by_bus.of("bus-9", 5) is kept[9]
    await by_bus.stop()


def test_percentiles_are_right_within_five_percent() -> None:
    slots = SlotCounts()
    counts = slots.at(0.0, ())
    for milliseconds in range(1, 1001):
        counts.whole[step_of(milliseconds / 1000)] += 1
    found = percentiles(counts.whole)
    assert found.p50 == pytest.approx(0.500, rel=0.05)
    assert found.p95 == pytest.approx(0.950, rel=0.05)
    assert found.p99 == pytest.approx(0.990, rel=0.05)
    assert percentiles(counts.running).p50 is None


def test_slots_forget_and_bound_the_tags_they_keep_apart() -> None:
    slots = SlotCounts()
    for number in range(MAX_TAG_SETS + 5):
        slots.at(100.0, (f"tag-{number}",)).published += 1
    assert slots.between(100, 105, ALL).published == MAX_TAG_SETS + 5
    assert slots.between(100, 105, frozenset({"tag-1"})).published == 1
    assert slots.between(100, 105, frozenset({f"tag-{MAX_TAG_SETS + 1}"})).published == 0
    slots.forget(100.0 + 3600 + 5)
    assert slots.between(100, 105, ALL).published == 0


@pytest.mark.parametrize("claimed", [0, 1, 6, 7, 12])
async def test_the_oldest_is_found_by_halves(store: EventStore, claimed: int) -> None:
    events = await store.add_events([new_event("a.b") for _ in range(13)])
    if claimed:
        await claim(store, claimed)
    found = await oldest(store, EventQuery(bus=BUS, statuses=(EventStatus.PENDING,), limit=1))
    assert found is not None
    assert found.id == events[claimed].id
    await claim(store, 13)
    assert await oldest(store, EventQuery(bus=BUS, statuses=(EventStatus.PENDING,), limit=1)) is None


async def test_the_queue_is_shown_as_it_was_at_one_moment(store: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.add_events([new_event("a.b") for _ in range(3)])
    stale = await store.counts(BUS)
    await claim(store, 3)
    answers, real = [stale], store.counts

    async def counts(bus: str | None = None) -> Counts:
        return answers.pop() if answers else await real(bus)

    monkeypatch.setattr(store, "counts", counts)
    found = await count_queue(store, BUS)
    assert (found.counts.pending, found.counts.processing, found.oldest) == (0, 3, None)
    answers += [stale] * 10  # other workers empty the queue at every look
    found = await count_queue(store, BUS)
    assert (found.counts.pending, found.oldest) == (3, None)


async def test_the_oldest_comes_with_its_number(store: EventStore, clock: ManualClock) -> None:
    events = await store.add_events([new_event("a.b") for _ in range(3)])
    await claim(store, 1)
    clock.advance(5)
    found = await count_queue(store, BUS)
    assert found.oldest is not None
    assert (found.counts.pending, found.oldest.id, found.oldest.age) == (2, events[1].id, 5.0)


async def test_a_reading_is_shared_and_survives_a_store_that_fails() -> None:
    looked = 0

    async def look() -> int:
        nonlocal looked
        looked += 1
        if looked > 1:
            raise StoreUnavailableError("gone")
        return 7

    reading = CachedValue(look)
    assert [await reading.newest(), await reading.newest()] == [7, 7]
    assert looked == 1
    reading._again = 0.0
    assert await reading.newest() == 7
    assert looked == 2


def test_errors_of_one_kind_have_one_shape() -> None:
    assert shape_of("KeyError: 17 at 0x7f00 in 2.5 s") == shape_of("KeyError: 4 at 0x1234 in 11 s")
    one, other = "01a1e2e6-c235-761e-9065-6d59295de070", "01a1e2e6-c235-761e-9065-6d59295de071"
    assert shape_of(f"no {one}\nsecond line") == shape_of(f"no {other}") == "no …"
    assert shape_of("card declined") != shape_of("card expired")


async def test_dead_letters_are_grouped_by_type_and_error(store: EventStore, clock: ManualClock) -> None:
    await make_dead_letters(store, 3)
    clock.advance(10)
    ids = await make_dead_letters(store, 2, error="boom 8")
    await make_dead_letters(store, 1, "c.d")
    grouped = await group_dead_letters(store, Selection(bus=BUS))
    assert [(group.type, group.error, group.count) for group in grouped.groups] == [
        ("a.b", "boom …", 5),
        ("c.d", "boom …", 1),
    ]
    assert grouped.groups[0].sample == ids[-1]
    assert grouped.groups[0].last_ts - grouped.groups[0].first_ts == 10
    assert (grouped.looked_at, grouped.older) == (6, False)


async def test_steps_visit_every_selected_one_once_and_no_other(store: EventStore) -> None:
    await make_dead_letters(store, 700)
    others = await make_dead_letters(store, 2, "c.d")
    (group, _) = (await group_dead_letters(store, Selection(bus=BUS))).groups
    selection = Selection(bus=BUS, type="a.b", group=group.key)
    counted = await count_selected(store, selection)
    assert (counted.number, counted.capped) == (700, False)
    steps = [await take_step(store, selection, "retry", None)]
    while steps[-1].before is not None:
        # What comes back meanwhile with a larger id than the next one is not visited again.
        await make_dead_letters(store, 0)
        steps.append(await take_step(store, selection, "retry", steps[-1].before))
    assert len(steps) == 2
    assert sum(step.done for step in steps) == 700
    counts = await store.counts()
    assert (counts.pending, counts.failed) == (700, 2)
    assert (await take_step(store, Selection(bus=BUS), "purge", None)).done == 2
    assert [await store.has_event(id_) for id_ in others] == [False, False]
    assert (await store.counts()).pending == 700


async def test_a_step_leaves_alone_events_that_another_user_changed(
    store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    purged, requeued, third = await make_dead_letters(store, 3)
    found = store.find

    async def find_then_somebody_acts(query: EventQuery) -> object:
        page = await found(query)
        await store.remove_event(purged)
        await store.requeue_dead_letters([requeued])
        return page

    monkeypatch.setattr(store, "find", find_then_somebody_acts)
    step = await take_step(store, Selection(bus=BUS), "purge", None)
    assert step.done == 1
    assert [await store.has_event(id_) for id_ in (purged, requeued, third)] == [False, True, False]


async def test_a_retry_does_without_one_that_is_gone(store: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await make_dead_letters(store, 3)
    found = store.find

    async def find_then_somebody_purges(query: EventQuery) -> object:
        page = await found(query)
        await store.remove_event(ids[0])
        return page

    monkeypatch.setattr(store, "find", find_then_somebody_purges)
    assert (await take_step(store, Selection(bus=BUS), "retry", None)).done == 2
    assert (await store.counts()).pending == 2


async def test_a_step_on_one_event_touches_no_other(store: EventStore) -> None:
    ids = await make_dead_letters(store, 3)
    assert (await take_step(store, Selection(bus=BUS, id=ids[1]), "purge", None)).before is None
    assert [await store.has_event(id_) for id_ in ids] == [True, False, True]
    assert (await take_step(store, Selection(bus=BUS, id=ids[0], tags=("blue",)), "purge", None)).done == 0


async def test_the_timeline_shows_every_attempt(store: EventStore, clock: ManualClock) -> None:
    (event,) = await store.add_events([new_event("a.b")])
    for settle in (
        lambda ref: Release(ref, 0.0, reason="waits for stock"),
        lambda ref: Fail(ref, "boom", 0.0),
        lambda ref: Fail(ref, "bang", None),
    ):
        clock.advance(1)
        (one,) = await claim(store)
        clock.advance(1)
        await store.settle_events([settle(one.ref)])
    await store.requeue_dead_letters([event.id])
    clock.advance(1)
    await claim(store)
    found = await store.get_event(event.id)
    assert found is not None
    attempts = attempts_of(found, await store.read_event_log(event.id), clock.now())
    assert [(one.number, one.generation, one.outcome) for one in attempts] == [
        (1, 0, "given back"),
        (1, 0, "failed"),
        (2, 0, "failed"),
        (1, 1, "running"),
    ]
    assert [one.seconds for one in attempts] == [1.0, 1.0, 1.0, None]
    assert (attempts[0].reason, attempts[1].error, attempts[1].reason) == ("waits for stock", "boom", None)
    assert all(0 <= one.runs_x <= one.runs_x + one.runs_width <= 1000.1 for one in attempts[:3])


async def test_the_timeline_shows_a_late_success_as_one_attempt(store: EventStore, clock: ManualClock) -> None:
    (event,) = await store.add_events([new_event("a.b")])
    (one,) = await claim(store)
    clock.advance(45)
    assert await store.expire_events() == 1
    await store.settle_events([Complete(one.ref)])
    found = await store.get_event(event.id)
    assert found is not None
    (attempt,) = attempts_of(found, await store.read_event_log(event.id), clock.now())
    assert (attempt.outcome, attempt.error) == ("completed late, after its claim was lost", None)


def test_a_chart_has_a_gap_where_nothing_was_measured() -> None:
    made = chart("t", 0.0, 5.0, [("a", "p50", [1.0, None, 3.0, 4.0])], rate)
    assert made.lines[0].points == ("0.0,90.0 150.0,90.0", "375.0,30.0 525.0,0.0")  # a lone one is seen too
    assert (made.top, made.half, made.lines[0].newest) == ("4", "2", "4")
    assert len(made.hints) == 4
    assert chart("t", 0.0, 5.0, [("a", "p50", [None])], rate).empty


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (0.7, 0.8), (1, 1), (1.2, 1.5), (59, 60), (601, 800), (9_500, 10_000)]
)
def test_an_axis_ends_close_above_the_highest_point(value: float, top: float) -> None:
    assert round_up(value) == pytest.approx(top)


def test_numbers_are_shown_with_their_units() -> None:
    assert [duration(value) for value in (0.0041, 0.85, 12.34, 250, 7200, 300_000, None)] == [
        "4.1 ms",
        "850 ms",
        "12.3 s",
        "4 min",
        "2 h",
        "3 d",
        UNKNOWN,
    ]
    assert [ago(90, 100), ago(100, 90)] == ["10 s ago", "in 10 s"]
    assert [rate(value) for value in (0, 0.25, 3.14159, 250.4, None)] == ["0", "0.25", "3.1", "250", UNKNOWN]
    assert [percent(value) for value in (0, 0.034, 0.5, 1, None)] == ["0 %", "3.4 %", "50 %", "100 %", UNKNOWN]
    assert pretty('{"a":1}') == '{\n  "a": 1\n}'
    assert pretty("{damaged") == "{damaged"


async def test_a_viewer_that_comes_while_the_dashboard_closes_leaves_no_task(store: EventStore) -> None:
    by_bus = ActivityByBus(store, asyncio.Event())
    for bus in ("a", "b"):
        await by_bus.of(bus, 0)
    async with asyncio.TaskGroup() as group:
        group.create_task(by_bus.stop())
        late = group.create_task(by_bus.of("c", 0))
    following = late.result()._task
    assert following is not None
    assert following.done()

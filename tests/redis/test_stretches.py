"""What is done in stretches on the server is whole for the caller: many buses, many events, large payloads."""

import pytest

from durabus.clock import ManualClock
from durabus.errors import InvalidPayloadError
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import NewEvent, new_event, new_event_id
from durabus.model.query import EventQuery
from durabus.model.settlement import Complete, Fail
from durabus.stores.redis.store import RedisStore

MEGABYTE = '"' + "x" * (1_048_576 - 2) + '"'


def request(bus: str = "default", limit: int = 10_000, lease: float = 30.0) -> ClaimRequest:
    return ClaimRequest(bus=bus, worker_id="w:1", token=new_token(), limit=limit, lease=lease)


async def completed(store: RedisStore, count: int, bus: str = "default") -> None:
    await store.add_events([new_event("t", {"n": n}, bus=bus) for n in range(count)])
    claims = await store.claim_next_events(request(bus))
    await store.settle_events([Complete(claim.ref) for claim in claims])


async def test_a_claim_of_large_events_ends_early_and_loses_none(store: RedisStore) -> None:
    events = []
    for _ in range(4):
        events += await store.add_events(
            [NewEvent(event_id=new_event_id(), bus="default", type="t", payload_json=MEGABYTE) for _ in range(10)]
        )
    first = await store.claim_next_events(request())
    second = await store.claim_next_events(request())
    assert 30 <= len(first) < 40
    assert [claim.event.id for claim in first + second] == [event.id for event in events]
    page, pages = await store.find(EventQuery(limit=1000)), 1
    found = list(page.events)
    while page.next_before_id is not None:
        page, pages = await store.find(EventQuery(limit=1000, before_id=page.next_before_id)), pages + 1
        found += page.events
    assert [event.id for event in reversed(found)] == [event.id for event in events]
    await store.settle_events([Complete(claim.ref) for claim in first + second])
    positions, after = [], ""
    while entries := (await store.read_log(after=after)).entries:
        positions += [int(entry.position) for entry in entries]
        after = entries[-1].position
    assert positions == list(range(1, 121))


async def test_a_batch_too_large_for_the_server_is_refused_before_it_is_sent(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("durabus.stores.redis.events.MAX_BATCH_BYTES", 1000)
    with pytest.raises(InvalidPayloadError, match=r"2 events of \d+ bytes in one call: the limit is 1000"):
        await store.add_events([new_event("t", "x" * 500) for _ in range(2)])
    assert (await store.counts()).pending == 0


async def test_leases_of_more_buses_than_one_call_looks_at_all_end(url: str) -> None:
    clock = ManualClock()
    store = RedisStore.from_url(url, clock)
    await store.open()
    await store.add_events([new_event("t", bus=f"bus-{n:04}") for n in range(1200)])
    for number in range(1200):
        await store.claim_next_events(request(f"bus-{number:04}", lease=1.0 if number % 400 == 399 else 600.0))
    clock.advance(2.0)
    assert await store.expire_events(limit=2) == 2
    assert await store.expire_events() == 1
    assert await store.expire_events() == 0
    clock.advance(600.0)
    assert await store.expire_events(limit=5000) == 1197
    await store.close()


async def test_stopped_buses_behind_many_live_ones_are_archived(store: RedisStore) -> None:
    await store.add_events([new_event("t", bus=f"live-{n}") for n in range(1100)])
    for number in range(1100):
        await store.register_handlers(f"live-{number}", "n", [], kept_for=None)
        await store.stop_bus(f"live-{number}")
    for number in range(3):
        await store.register_handlers(f"cold-{number}", "n", [], kept_for=None)
        await store.stop_bus(f"cold-{number}")
    assert await store.archive_buses(stopped_for=0, limit=2) == 2
    assert await store.archive_buses(stopped_for=0) == 1
    assert len(await store.list_buses(limit=5000)) == 1100


async def test_history_behind_many_live_events_is_found_and_trimmed(store: RedisStore) -> None:
    await store.add_events([new_event("live", delay=600.0) for _ in range(2500)])
    await completed(store, 5)
    await completed(store, 3, bus="other")
    page = await store.find(EventQuery(bus="default", type="live", limit=3))
    assert len(page.events) == 3
    assert len((await store.find(EventQuery(type="t", limit=100))).events) == 8
    assert await store.cleanup_excess_events("default", keep=4) == 1
    assert await store.trim_event_history("default", older_than=0) == 4
    assert (await store.counts("other")).completed == 3
    assert await store.trim_log(until=await store.log_head()) == 9
    assert (await store.counts()).completed == 0


async def test_the_log_is_counted_and_cut_right_over_many_blocks(store: RedisStore) -> None:
    """The log has blocks of a thousand positions: full ones, thinned ones, and some that are gone."""
    for _ in range(3):
        await completed(store, 700)
        await store.add_events([new_event("live", delay=600.0) for _ in range(300)])
    claims = await store.claim_next_events(request())
    assert claims == []
    await store.trim_event_history("default", older_than=0, limit=900)
    whole: list[str] = []
    after = ""
    while entries := (await store.read_log(after=after)).entries:
        whole += [entry.position for entry in entries]
        after = entries[-1].position
    assert len(whole) == 3 * (3 * 700 + 300) - 3 * 900
    head = await store.log_head()
    assert head == whole[-1]
    for position in ["", *whole[::331], head, "1", "999", "1000", "2001"]:
        expected = [one for one in whole if int(one) > int(position or 0)]
        assert await store.log_lag(position) == len(expected), position
        for rows in (1, 7, 999, 1000, 1001, 2500, 100_000):
            ends = [expected[min(start + rows, len(expected)) - 1] for start in range(0, len(expected), rows)]
            if rows == 1:
                assert await store.cut_log(after=position, until=head, rows=1, limit=45) == ends[:45]
            else:
                assert await store.cut_log(after=position, until=head, rows=rows, limit=10_000) == ends, (
                    position,
                    rows,
                )


async def test_many_purged_events_leave_entries_that_are_trimmed_in_stretches(store: RedisStore) -> None:
    await store.add_events([new_event("t") for _ in range(1300)])
    claims = await store.claim_next_events(request())
    await store.settle_events([Fail(claim.ref, "no", None) for claim in claims])
    assert await store.purge_dead_letters(created_until_ts=await store.now()) == 1300
    assert await store.log_lag("") == 3 * 1300
    middle = str(1300 + 650)
    assert await store.trim_log(until=middle) == 1950
    assert await store.trim_log(until=await store.log_head()) == 1950
    assert await store.log_lag("") == 0

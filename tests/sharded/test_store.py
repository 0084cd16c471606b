"""What holds across shards, what is refused, and what becomes of a batch when a shard is down."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from durabus import Event, EventBus, EventStore, ManualClock, RetryPolicy, new_event, open_store
from durabus.errors import (
    ConfigurationError,
    InvalidEventError,
    SchemaError,
    StoreClosedError,
    StoreUnavailableError,
    UnsupportedByStore,
)
from durabus.model.claim import Claim, ClaimRequest, new_token
from durabus.model.query import EventQuery
from durabus.model.settlement import Cancel, Complete, Fail
from durabus.model.statuses import Action, EventMode
from durabus.store.events import EventRef
from durabus.store.log import START
from durabus.stores.sharded.store import ShardedStore

BUS = "default"
SHARDS = 3


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000.0)


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[ShardedStore]:
    opened = ShardedStore.from_url("sharded://" + "|".join(["memory://"] * SHARDS), clock)
    await opened.open()
    yield opened
    await opened.close()


def request(limit: int = 1, **options: object) -> ClaimRequest:
    wanted: dict[str, object] = {"bus": BUS, "worker_id": "host:1", "token": new_token(), "limit": limit, **options}
    return ClaimRequest(**wanted)  # type: ignore[arg-type]


async def test_an_event_is_on_the_shard_that_its_id_names(store: ShardedStore) -> None:
    events = await store.add_events([new_event("a.b", {"n": n}) for n in range(60)])
    for event in events:
        shard = UUID(event.event_id).int % SHARDS
        assert event.id % SHARDS == shard
        assert await store._shards[shard].has_event(event.event_id)
        assert await store.get_event(event.id) == await store.get_event(event.event_id) == event
    assert {event.id % SHARDS for event in events} == {0, 1, 2}
    assert len({event.id for event in events}) == 60


async def test_ids_claims_and_log_of_one_shard_have_one_order(store: ShardedStore, clock: ManualClock) -> None:
    published = []
    for n in range(40):
        clock.advance(1)
        published += await store.add_events([new_event("a.b", {"n": n}, priority=n % 2)])
    claims = await store.claim_next_events(request(40))
    log = (await store.read_log()).entries
    for shard in range(SHARDS):
        mine = [event for event in published if event.id % SHARDS == shard]
        assert [event.id for event in mine] == sorted(event.id for event in mine)
        claimed = [claim.event for claim in claims if claim.event.id % SHARDS == shard]
        assert [event.id for event in claimed] == [
            event.id for event in sorted(mine, key=lambda one: (-one.priority, one.id))
        ]
        logged = [entry.id for entry in log if entry.id % SHARDS == shard and entry.action is Action.PUBLISHED]
        assert logged == [event.id for event in mine]


async def test_the_log_is_in_order_of_time_while_no_writer_is_at_work(store: ShardedStore, clock: ManualClock) -> None:
    for _ in range(30):
        clock.advance(1)
        await store.add_events([new_event("a.b")])
    times = [entry.at_ts for entry in (await store.read_log()).entries]
    assert times == sorted(times)
    assert len(times) == 30


@pytest.mark.parametrize("limit", [1, 2, 7, 1000])
async def test_a_reader_gets_every_entry_once_while_others_write(store: ShardedStore, limit: int) -> None:
    seen, position = [], START
    for turn in range(12):
        await store.add_events([new_event("a.b") for _ in range(4)])
        claims = await store.claim_next_events(request(3))
        await store.settle_events([Complete(claim.ref) for claim in claims])
        for _ in range(turn % 3):
            page = await store.read_log(after=position, limit=limit)
            seen += page.entries
            position = page.next
    while page.entries:
        page = await store.read_log(after=position, limit=limit)
        seen += page.entries
        position = page.next
    assert position == await store.log_head()
    assert await store.log_lag(position) == 0
    whole = Counter((entry.id, entry.action) for entry in (await store.read_log()).entries)
    assert Counter((entry.id, entry.action) for entry in seen) == whole
    assert sum(whole.values()) == 12 * (4 + 3 + 3)
    for id_ in {entry.id for entry in seen}:
        trail = [entry.action for entry in seen if entry.id == id_]
        assert trail == [entry.action for entry in await store.read_event_log(id_)]


async def test_pieces_of_the_log_give_every_entry_once(store: ShardedStore) -> None:
    await store.add_events([new_event("a.b") for _ in range(50)])
    head = await store.log_head()
    ends = await store.cut_log(until=head, rows=7)
    found = []
    for after, until in zip([START, *ends], ends, strict=False):
        piece = (await store.read_log(after=after, until=until)).entries
        assert 0 < len(piece) <= 7
        found += [entry.id for entry in piece]
    assert sorted(found) == sorted(entry.id for entry in (await store.read_log()).entries)
    assert ends[-1] == head


async def test_pages_of_events_visit_each_once(store: ShardedStore) -> None:
    events = await store.add_events([new_event("a.b", tags=["odd"] if n % 2 else []) for n in range(50)])
    for tags, wanted in (((), events), (("odd",), events[1::2])):
        seen, before = [], None
        while True:
            page = await store.find(EventQuery(limit=4, tags=tags, before_id=before))
            seen += [event.id for event in page.events]
            before = page.next_before_id
            if before is None:
                break
        assert seen == sorted((event.id for event in wanted), reverse=True)


async def test_each_shard_keeps_its_share_of_the_newest_completed_and_cancelled_events(store: ShardedStore) -> None:
    await store.add_events([new_event("a.b") for _ in range(60)])
    claims = await store.claim_next_events(request(60))
    await store.settle_events(
        [Cancel(claim.ref, "expired") if n % 2 else Complete(claim.ref) for n, claim in enumerate(claims)]
    )
    ids = sorted(claim.event.id for claim in claims)
    kept = [id_ for shard in range(SHARDS) for id_ in [one for one in ids if one % SHARDS == shard][-3:]]
    assert await store.cleanup_excess_events(BUS, keep=7) == 60 - len(kept)
    assert sorted(event.id for event in (await store.find(EventQuery())).events) == sorted(kept)
    left = await store.counts(BUS)
    assert left.completed + left.cancelled == len(kept)


async def test_a_position_of_other_shards_is_refused(store: ShardedStore) -> None:
    for position in ('["1","2"]', '["1","2","3","4"]', '["x","",""]', "[1,2,3]", '["","",""]'):
        with pytest.raises(InvalidEventError):
            await store.read_log(after=position)


@pytest.mark.parametrize("mode", [EventMode.BUS_SERIAL, EventMode.GLOBAL_SERIAL])
async def test_serial_modes_are_refused(store: ShardedStore, mode: EventMode) -> None:
    with pytest.raises(UnsupportedByStore, match=r"mode=.*-serial is not possible on sharded://"):
        await store.claim_next_events(request(mode=mode))


async def test_keys_are_refused_with_what_to_do_instead(store: ShardedStore) -> None:
    with pytest.raises(UnsupportedByStore, match="event_id made from the key"):
        await store.add_events([new_event("a.b", idempotency_key="k")])
    with pytest.raises(UnsupportedByStore, match="ordering_key"):
        await store.add_events([new_event("a.b", ordering_key="k")])
    with pytest.raises(UnsupportedByStore, match="caller_transactions"):
        await store.add_events([new_event("a.b")], connection=object())
    assert (await store.counts()).pending == 0


async def test_a_batch_that_fails_half_way_is_completed_by_a_repeat(tmp_path: Path) -> None:
    url = f"sharded://sqlite:///{tmp_path}/0.db|sqlite:///{tmp_path}/1.db"
    store = ShardedStore.from_url(url)
    await store.open()
    new = [new_event("a.b") for _ in range(20)]
    await store._shards[1].close()
    with pytest.raises(StoreClosedError) as caught:
        await store.add_events(new)
    assert any("repeat the whole call" in note for note in caught.value.__notes__)
    await store.close()
    again = await open_store(url)
    stored = await again.add_events(new)
    assert [event.event_id for event in stored] == [one.event_id for one in new]
    assert (await again.counts()).pending == 20
    await again.close()


async def test_events_of_other_shards_are_claimed_while_one_is_down(
    store: ShardedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = await store.add_events([new_event("a.b") for _ in range(30)])

    async def down(_request: ClaimRequest) -> list[Claim]:
        raise StoreUnavailableError("no route to host")

    monkeypatch.setattr(store._shards[1], "claim_next_events", down)
    claims = await store.claim_next_events(request(30))
    assert {claim.event.id for claim in claims} == {event.id for event in events if event.id % SHARDS != 1}
    with pytest.raises(StoreUnavailableError, match="no route to host"):
        await store.claim_next_events(request(30))


async def test_shards_in_another_order_or_number_are_refused(tmp_path: Path) -> None:
    first, second, third = (f"sqlite:///{tmp_path}/{n}.db" for n in range(3))
    store = await open_store(f"sharded://{first}|{second}")
    await store.close()
    for wrong in (f"{second}|{first}", f"{first}|{second}|{third}", first):
        with pytest.raises(SchemaError, match="was made as shard"):
            await open_store(f"sharded://{wrong}")
    await (await open_store(f"sharded://{first}|{second}")).close()


async def test_a_store_with_events_of_its_own_is_no_shard(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path}/{n}.db" for n in range(2)]
    single = await open_store(urls[0])
    await single.add_events([new_event("a.b")])
    await single.close()
    with pytest.raises(SchemaError, match="begin with empty stores"):
        await open_store("sharded://" + "|".join(urls))


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("sharded://", "with a bar between them"),
        ("sharded://a.db|b.db", "with a bar between them"),
        ("sharded://kafka://u:secret@h|memory://", r"shard 0 is kafka://"),
        ("sharded://memory://|sharded://memory://", "sharded itself"),
        ("sharded://sqlite:///a.db|sqlite:///a.db", "named twice"),
        ("sharded://" + "|".join(["memory://"] * 17), "17 shards, at most 16"),
    ],
)
async def test_a_url_that_cannot_work_is_refused_at_once(url: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as caught:
        await open_store(url)
    assert "secret" not in str(caught.value)


async def test_a_bus_serves_all_shards(tmp_path: Path) -> None:
    bus = EventBus(f"sharded://sqlite:///{tmp_path}/0.db|sqlite:///{tmp_path}/1.db", retry=RetryPolicy(max_retries=0))
    seen: list[int] = []

    @bus.on("order.*")
    async def serve(order: dict[str, int]) -> None:
        seen.append(order["n"])
        if order["n"] == 7:
            raise ValueError("seven")

    async with bus:
        handles = [bus.emit("order.placed", {"n": n}) for n in range(40)]
        for handle in handles:
            await handle.completed()
        store: EventStore = bus.store
        counts = await store.counts()
        dead = await store.list_dead_letters()
    assert sorted(seen) == list(range(40))
    assert (counts.completed, counts.failed, dead.total) == (39, 1, 1)


async def test_dead_letters_are_looked_up_in_one_call_of_each_shard(
    store: ShardedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def one_by_one(_ref: EventRef) -> Event | None:
        raise AssertionError("one by one")

    await store.add_events([new_event("a.b") for _ in range(30)])
    claims = await store.claim_next_events(request(limit=30))
    await store.settle_events([Fail(claim.ref, "no", None) for claim in claims])
    for shard in store._shards:
        monkeypatch.setattr(shard, "get_event", one_by_one)
    ids = [claim.event.id for claim in claims]
    assert [event.id for event in await store.requeue_dead_letters(ids)] == ids

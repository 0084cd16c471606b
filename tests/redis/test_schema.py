"""Opening, upgrading and verifying. The store reports damaged data and does not change them."""

from typing import Any

import pytest
import redis
from tests.redis.server import keys_of, run

from durabus.errors import SchemaError
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.event import new_event
from durabus.model.log_entry import LOG_COLUMNS
from durabus.stores.redis.layout import SCHEMA
from durabus.stores.redis.pipelined_connection import PipelinedConnection
from durabus.stores.redis.schema import library
from durabus.stores.redis.store import RedisStore


def key(url: str, name: str) -> str:
    return f"{{{url.rpartition('=')[2]}}}:{name}"


async def test_a_new_store_is_one_key(url: str, store: RedisStore, admin: redis.Redis) -> None:
    assert keys_of(admin, url.rpartition("=")[2]) == {key(url, "meta")}
    assert admin.hget(key(url, "meta"), "schema") == SCHEMA.encode()
    await store.verify()


async def test_opening_again_keeps_everything(url: str, store: RedisStore) -> None:
    (event,) = await store.add_events([new_event("order.placed")])
    other = RedisStore.from_url(url)
    await other.open()
    await other.open()
    assert await other.get_event(event.id) == event
    await other.close()


async def test_two_processes_may_create_the_store_at_the_same_moment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = RedisStore.from_url(url), RedisStore.from_url(url)
    call = PipelinedConnection.call
    answers = 0

    async def call_slowly(self: PipelinedConnection, *arguments: Any, **options: Any) -> Any:
        nonlocal answers
        answer = await call(self, *arguments, **options)
        answers += 1
        if answers == 1:  # the first store has seen that there is none
            await second.open()
        return answer

    monkeypatch.setattr(PipelinedConnection, "call", call_slowly)
    await first.open()
    for store in (first, second):
        await store.verify()
        await store.close()


@pytest.mark.parametrize("schema", ["2", "99"], ids=["older", "newer"])
async def test_another_schema_is_refused(url: str, store: RedisStore, admin: redis.Redis, schema: str) -> None:
    admin.hset(key(url, "meta"), "schema", schema)
    with pytest.raises(SchemaError, match=f"has schema {schema}"):
        await store.verify()
    with pytest.raises(SchemaError, match=f"has schema {schema}"):
        await store.counts()
    other = RedisStore.from_url(url)
    with pytest.raises(SchemaError, match=f"has schema {schema}, this durabus works with {SCHEMA}"):
        await other.open()
    await other.close()


async def test_keys_of_another_program_are_left_alone(url: str, admin: redis.Redis) -> None:
    admin.set(key(url, "events:state"), "mine")
    store = RedisStore.from_url(url)
    with pytest.raises(SchemaError, match="name another prefix"):
        await store.open()
    await store.close()
    assert admin.get(key(url, "events:state")) == b"mine"
    assert not admin.exists(key(url, "meta"))


async def test_a_key_of_another_type_is_reported(url: str, store: RedisStore, admin: redis.Redis) -> None:
    admin.set(key(url, "locks:data"), "x")
    with pytest.raises(SchemaError, match=r"locks:data on .* is a string, not a hash"):
        await store.verify()
    with pytest.raises(SchemaError, match="not of the type"):
        await store.claim_lock("k", worker_id="w", token="t", lease=1.0)


async def test_damaged_counters_are_reported(url: str, store: RedisStore, admin: redis.Redis) -> None:
    admin.hset(key(url, "meta"), "position", "many")
    with pytest.raises(SchemaError, match="position must be whole numbers"):
        await store.verify()


async def test_a_store_reports_that_its_data_are_gone(url: str, store: RedisStore, admin: redis.Redis) -> None:
    await store.add_events([new_event("order.placed")])
    admin.delete(key(url, "meta"))
    with pytest.raises(SchemaError, match=r"are gone \(flushed, evicted"):
        await store.add_events([new_event("order.placed")])
    with pytest.raises(SchemaError, match="there is no durabus store"):
        await store.verify()


async def test_missing_functions_are_loaded_again(store: RedisStore, admin: redis.Redis) -> None:
    admin.function_delete(library()[0])
    with pytest.raises(SchemaError, match="is missing"):
        await store.verify()
    (event,) = await store.add_events([new_event("order.placed")])
    assert await store.get_event(event.id) == event
    await store.verify()


async def test_functions_changed_by_hand_are_reported(store: RedisStore, admin: redis.Redis) -> None:
    code = library()[1]
    admin.function_load(code + "\n-- and more", replace=True)
    try:
        with pytest.raises(SchemaError, match="was changed by hand"):
            await store.verify()
    finally:
        admin.function_load(code, replace=True)


async def test_a_damaged_event_does_not_stop_the_queue(url: str, store: RedisStore, admin: redis.Redis) -> None:
    first, second, third = await store.add_events([new_event("t", {"n": n}) for n in range(3)])
    admin.hset(key(url, "events:state"), str(first.id), b"\xc1 nonsense")
    admin.hdel(key(url, "events:data"), str(second.id))
    claims = await store.claim_next_events(
        ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=10, lease=30.0)
    )
    assert [claim.event.id for claim in claims] == [third.id]


async def test_damaged_data_are_shown_to_readers_of_rows(url: str, store: RedisStore, admin: redis.Redis) -> None:
    first, second = await store.add_events([new_event("t", {"n": n}) for n in range(2)])
    admin.hset(key(url, "events:data"), str(first.id), b"12345678nonsense")
    with pytest.raises(SchemaError, match="the log entry at position 1 does not decode"):
        await store.read_log()
    damaged, whole = (dict(zip(LOG_COLUMNS, row, strict=True)) for row in (await store.read_log_rows()).rows)
    assert (damaged["position"], damaged["id"], damaged["payload_json"]) == ("1", first.id, "12345678nonsense")
    assert (whole["event_id"], whole["action"]) == (second.event_id, "PUBLISHED")


async def test_a_store_refuses_writes_after_another_program_wrote_to_its_log(
    url: str, store: RedisStore, admin: redis.Redis
) -> None:
    await store.add_events([new_event("t")])
    foreign = run(admin, "XADD", key(url, "event_log"), "*", "a", "b")
    before = await store.counts()
    with pytest.raises(SchemaError, match="another program wrote to the event_log stream"):
        await store.add_events([new_event("t")])
    assert await store.counts() == before
    run(admin, "XDEL", key(url, "event_log"), foreign)
    run(admin, "HSET", key(url, "meta"), "position", foreign.partition(b"-")[0])
    await store.add_events([new_event("t")])
    assert (await store.counts()).pending == before.pending + 1
    assert await store.log_lag("") == 2


async def test_a_damaged_event_does_not_stop_claims_by_tag(url: str, store: RedisStore, admin: redis.Redis) -> None:
    first, second = await store.add_events([new_event("t", {"n": n}, tags=["eu"]) for n in range(2)])
    admin.hdel(key(url, "events:state"), str(first.id))

    async def claimed() -> list[int]:
        request = ClaimRequest(bus="default", worker_id="w", token=new_token(), tags=("eu",), lease=30.0)
        return [claim.event.id for claim in await store.claim_next_events(request)]

    assert await claimed() + await claimed() == [second.id]

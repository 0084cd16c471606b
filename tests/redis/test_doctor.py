"""What the doctor says about a Redis server."""

import asyncio

import pytest
import redis
from tests.redis.server import prompt

from durabus import open_store
from durabus.errors import StoreUnavailableError
from durabus.store.checks import examine
from durabus.stores.redis.schema import library
from durabus.stores.redis.store import RedisStore
from durabus.testing.servers.redis import RedisServer


async def findings(url: str) -> dict[str, str]:
    return {finding.setting: finding.level for finding in await examine(url)}


def rewrites(admin: redis.Redis) -> bool:
    now = admin.info("persistence")
    return bool(now["aof_rewrite_in_progress"] or now["aof_rewrite_scheduled"])


async def test_a_durable_server_is_only_noted(own_server: RedisServer) -> None:
    assert await findings(own_server.url) == {"appendfsync": "note"}
    with prompt(own_server.url) as admin:
        admin.config_set("appendfsync", "always")
    assert await findings(own_server.url) == {}


async def test_settings_that_lose_events_are_found(own_server: RedisServer) -> None:
    with prompt(own_server.url) as admin:
        admin.config_set("appendonly", "no")
        admin.config_set("maxmemory", "100mb")
        admin.config_set("maxmemory-policy", "allkeys-lru")
    assert await findings(own_server.url) == {"appendonly": "error", "maxmemory-policy": "error"}
    with prompt(own_server.url) as admin:
        admin.config_set("appendonly", "yes")
        admin.config_set("appendfsync", "no")
        admin.config_set("maxmemory", "0")
        assert await findings(own_server.url) == {"appendfsync": "warning", "maxmemory-policy": "warning"}
        # a server that writes its first append-only file does not end
        async with asyncio.timeout(30):
            while rewrites(admin):  # noqa: ASYNC110  (the server's doing)
                await asyncio.sleep(0.05)


async def test_short_memory_is_found(own_server: RedisServer) -> None:
    with prompt(own_server.url) as admin:
        store = await open_store(own_server.url)
        admin.config_set("maxmemory", str(int(admin.info("memory")["used_memory"] * 1.02)))
        assert (await findings(own_server.url))["used_memory"] == "warning"
        admin.config_set("maxmemory", "0")
        await store.close()


async def test_functions_of_other_versions_are_noted(store: RedisStore, admin: redis.Redis, url: str) -> None:
    name, code = library()
    other = name[:-1] + ("0" if name[-1] != "0" else "1")
    admin.function_load(code.replace(name, other), replace=True)
    try:
        (finding,) = [one for one in await examine(url) if one.setting == "functions"]
        assert finding.value == other
    finally:
        admin.function_delete(other)


async def test_a_server_that_is_away_is_an_error() -> None:
    with pytest.raises(StoreUnavailableError):
        await examine("redis://127.0.0.1:1?timeout=1")

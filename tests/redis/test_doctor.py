"""What a doctor says about the server."""

import asyncio

import redis
from tests.redis.server import prompt

from durabus.backends.redis.library import library
from durabus.backends.redis.store import RedisStore
from durabus.servers.redis import RedisServer


async def findings(server: RedisServer) -> dict[str, str]:
    store = RedisStore.from_url(server.url)
    await store.open()
    try:
        return {finding.setting: finding.level for finding in await store.inspect_server()}
    finally:
        await store.close()


def rewrites(admin: redis.Redis) -> bool:
    now = admin.info("persistence")
    return bool(now["aof_rewrite_in_progress"] or now["aof_rewrite_scheduled"])


async def test_a_durable_server_is_only_noted(own_server: RedisServer) -> None:
    assert await findings(own_server) == {"appendfsync": "note"}
    with prompt(own_server.url) as admin:
        admin.config_set("appendfsync", "always")
    assert await findings(own_server) == {}


async def test_settings_that_lose_events_are_found(own_server: RedisServer) -> None:
    with prompt(own_server.url) as admin:
        admin.config_set("appendonly", "no")
        admin.config_set("maxmemory", "100mb")
        admin.config_set("maxmemory-policy", "allkeys-lru")
    assert await findings(own_server) == {"appendonly": "bad", "maxmemory-policy": "bad"}
    with prompt(own_server.url) as admin:
        admin.config_set("appendonly", "yes")
        admin.config_set("appendfsync", "no")
        admin.config_set("maxmemory", "0")
        assert await findings(own_server) == {"appendfsync": "risk", "maxmemory-policy": "risk"}
        # a server that writes its first append-only file does not end
        async with asyncio.timeout(30):
            while rewrites(admin):  # noqa: ASYNC110  (the server's doing)
                await asyncio.sleep(0.05)


async def test_short_memory_is_found(own_server: RedisServer) -> None:
    with prompt(own_server.url) as admin:
        admin.config_set("appendfsync", "always")
        store = RedisStore.from_url(own_server.url)
        await store.open()
        admin.config_set("maxmemory", str(int(admin.info("memory")["used_memory"] * 1.02)))
        found = {finding.setting for finding in await store.inspect_server()}
        assert "used_memory" in found
        admin.config_set("maxmemory", "0")
        await store.close()


async def test_functions_of_other_versions_are_noted(store: RedisStore, admin: redis.Redis) -> None:
    name, code = library()
    other = name[:-1] + ("0" if name[-1] != "0" else "1")
    admin.function_load(code.replace(name, other), replace=True)
    try:
        (finding,) = [one for one in await store.inspect_server() if one.setting == "functions"]
        assert finding.value == other
    finally:
        admin.function_delete(other)

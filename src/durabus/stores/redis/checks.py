"""Checks of a Redis server: whether its settings and its state keep accepted events."""

from __future__ import annotations

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from durabus.store.checks import Finding, Level
from durabus.stores.redis.connection import Connector, ask, disconnect, parse_url, refused, unreachable
from durabus.stores.redis.schema import library

OLDEST = (7, 0)
"""The first version of Redis that has functions."""
FULL = 0.9
"""The share of maxmemory above which the server may soon refuse to publish."""

Facts = dict[str, str]


async def examine(url: str) -> list[Finding]:
    """Check the settings and the state of the server, and return the findings."""
    connector = Connector(parse_url(url))
    shown, connection = connector.address.shown, None
    try:
        connection = await connector.connect()
        facts = _facts(await ask(connection, "INFO"))
        try:
            found = await ask(connection, "CONFIG", "GET", "appendfsync")
            facts["appendfsync"] = found[1].decode() if found else ""
        except RedisError:
            facts["appendfsync"] = ""
        libraries = await ask(connection, "FUNCTION", "LIST", "LIBRARYNAME", "durabus_*")
    except (OSError, RedisConnectionError) as error:
        raise unreachable(shown, error) from error
    except RedisError as error:
        raise refused(shown, error) from error
    finally:
        await disconnect(connection)
    return [*_persistence(facts), *_memory(facts), *_place(facts), *_libraries(libraries)]


def _facts(info: bytes) -> Facts:
    pairs = (line.partition(":") for line in info.decode().splitlines() if ":" in line)
    return {name: value.strip() for name, _, value in pairs}


def _persistence(facts: Facts) -> list[Finding]:
    found: list[Finding] = []
    if facts.get("aof_enabled") != "1":
        advice = "a restart loses everything since the last snapshot: set appendonly yes"
        found.append(Finding(level="error", setting="appendonly", value="no", advice=advice))
    elif facts["appendfsync"] == "no":
        advice = "a power loss may lose half a minute of accepted events: set everysec, or always"
        found.append(Finding(level="warning", setting="appendfsync", value="no", advice=advice))
    elif facts["appendfsync"] == "everysec":
        advice = (
            "a power loss, or kill -9 of the server while its disk is slow, may lose up to two seconds of accepted "
            "events; always loses none"
        )
        found.append(Finding(level="note", setting="appendfsync", value="everysec", advice=advice))
    elif not facts["appendfsync"]:
        advice = "this user may not read the setting: ask the operator of the server whether it is everysec or always"
        found.append(Finding(level="note", setting="appendfsync", value="unknown", advice=advice))
    for setting in ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"):
        if facts.get(setting, "ok") != "ok":
            advice = "the server could not write to its disk: look at its log, free space or correct the permissions"
            found.append(Finding(level="error", setting=setting, value=facts[setting], advice=advice))
    return found


def _memory(facts: Facts) -> list[Finding]:
    found: list[Finding] = []
    policy, limit = facts.get("maxmemory_policy", ""), int(facts.get("maxmemory", "0"))
    if policy != "noeviction":
        level: Level = "error" if limit else "warning"
        advice = "the server may delete events when memory is short: set maxmemory-policy noeviction"
        found.append(Finding(level=level, setting="maxmemory-policy", value=policy, advice=advice))
    used = int(facts.get("used_memory", "0"))
    if limit and used > FULL * limit:
        advice = "soon nothing can be published: raise maxmemory, trim history or purge dead letters"
        found.append(Finding(level="warning", setting="used_memory", value=f"{used} of {limit}", advice=advice))
    if int(facts.get("evicted_keys", "0")):
        advice = "the server has evicted keys since it started: if one belonged to durabus, its data are lost"
        found.append(Finding(level="warning", setting="evicted_keys", value=facts["evicted_keys"], advice=advice))
    return found


def _place(facts: Facts) -> list[Finding]:
    found: list[Finding] = []
    version = facts.get("redis_version", "0.0")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        advice = "functions need Redis 7.0 or newer, or Valkey"
        found.append(Finding(level="error", setting="redis_version", value=version, advice=advice))
    if facts.get("role", "master") != "master":
        advice = "a replica takes no writes: give durabus the address of the primary"
        found.append(Finding(level="error", setting="role", value=facts["role"], advice=advice))
    if facts.get("connected_slaves", "0") != "0":
        advice = "replication is asynchronous: a failover may lose the newest events and repeat the newest claims"
        found.append(Finding(level="note", setting="replicas", value=facts["connected_slaves"], advice=advice))
    return found


def _libraries(listed: list[list[bytes]]) -> list[Finding]:
    names = sorted(fields[1].decode() for fields in listed)
    others = [name for name in names if name != library()[0]]
    if not others:
        return []
    advice = "functions of other versions of durabus: FUNCTION DELETE them once those versions are not used any more"
    return [Finding(level="note", setting="functions", value=", ".join(others), advice=advice)]

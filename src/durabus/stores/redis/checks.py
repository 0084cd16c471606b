"""Whether a server is set up so that it keeps what it accepts."""

from __future__ import annotations

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from durabus.store.checks import Finding, Level
from durabus.stores.redis.connection import Connector, ask, disconnect, parse_url, refused, unreachable
from durabus.stores.redis.schema import library

OLDEST = (7, 0)
"""The first Redis with functions."""
FULL = 0.9
"""The part of maxmemory beyond which publishing may soon be refused."""

Facts = dict[str, str]


async def examine(url: str) -> list[Finding]:
    """Look at the server's settings and state."""
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
        advice = "this user may not read it: ask whoever runs the server whether it is everysec or always"
        found.append(Finding(level="note", setting="appendfsync", value="unknown", advice=advice))
    for setting in ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"):
        if facts.get(setting, "ok") != "ok":
            advice = "the server could not write to its disk: look at its log, free space or mend the rights"
            found.append(Finding(level="error", setting=setting, value=facts[setting], advice=advice))
    return found


def _memory(facts: Facts) -> list[Finding]:
    found: list[Finding] = []
    policy, limit = facts.get("maxmemory_policy", ""), int(facts.get("maxmemory", "0"))
    if policy != "noeviction":
        level: Level = "error" if limit else "warning"
        advice = "the server may throw events away when memory is short: set maxmemory-policy noeviction"
        found.append(Finding(level=level, setting="maxmemory-policy", value=policy, advice=advice))
    used = int(facts.get("used_memory", "0"))
    if limit and used > FULL * limit:
        advice = "soon nothing can be published: raise maxmemory, trim history or purge dead letters"
        found.append(Finding(level="warning", setting="used_memory", value=f"{used} of {limit}", advice=advice))
    if int(facts.get("evicted_keys", "0")):
        advice = "keys were thrown away since the server started: if one was durabus's, its data are gone"
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
    advice = "functions of other versions of durabus: once none of them runs any more, FUNCTION DELETE them"
    return [Finding(level="note", setting="functions", value=", ".join(others), advice=advice)]

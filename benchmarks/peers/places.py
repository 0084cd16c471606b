"""The servers on which peers are compared: an empty place for every run, and a look at whether anything is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psycopg
import redis

from benchmarks import databases
from benchmarks.peers.peer import POSTGRESQL, REDIS
from durabus.testing.servers.redis import RedisServer

Look = Callable[[], bool]


class Place(Protocol):
    """One server."""

    names: tuple[str, ...]
    """The peers that can run here."""
    settings: str

    def version(self) -> str: ...

    @contextmanager
    def empty(self) -> Iterator[str]:
        """Yield the URL of a place that no run has used before."""
        ...

    def settle(self, url: str) -> None:
        """Let the server do after filling what it put off, so that no run pays for it."""
        ...

    @contextmanager
    def looking(self, url: str, unfinished: str) -> Iterator[Look]:
        """Yield a function that runs ``Peer.unfinished`` on the server."""
        ...


class Postgresql:
    names: tuple[str, ...] = POSTGRESQL
    settings = databases.SETTINGS

    def __init__(self, served: databases.Databases) -> None:
        self._databases = served

    def version(self) -> str:
        return f"PostgreSQL {self._databases.version()}"

    @contextmanager
    def empty(self) -> Iterator[str]:
        with self._databases.fresh() as url:
            yield url

    def settle(self, url: str) -> None:
        databases.settle(url)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CHECKPOINT")

    @contextmanager
    def looking(self, url: str, unfinished: str) -> Iterator[Look]:
        with psycopg.connect(url, autocommit=True) as connection:

            def look() -> bool:
                row = connection.execute(unfinished.encode()).fetchone()
                return row is not None and bool(row[0])

            yield look


class Redis:
    names: tuple[str, ...] = REDIS
    settings = "one server with appendonly=yes, appendfsync=everysec, on this machine"

    def __init__(self, url: str) -> None:
        self._url = url

    def version(self) -> str:
        with redis.Redis.from_url(self._url) as server:
            info = server.info("server")
        return f"{info.get('server_name', 'redis')} {info.get('valkey_version', info['redis_version'])}"

    @contextmanager
    def empty(self) -> Iterator[str]:
        with redis.Redis.from_url(self._url) as server:
            server.flushall()
            yield self._url
            server.flushall()

    def settle(self, url: str) -> None:
        """Do nothing: this server puts nothing off."""

    @contextmanager
    def looking(self, url: str, unfinished: str) -> Iterator[Look]:
        with redis.Redis.from_url(url) as server:
            yield lambda: bool(server.eval(unfinished, 0))


@contextmanager
def place(store: str, folder: Path) -> Iterator[Place]:
    """Yield a server of that kind. It runs until the context ends."""
    if store == "redis":
        with RedisServer(folder / "redis") as server:
            yield Redis(server.url)
    else:
        with databases.postgresql(folder) as served:
            yield Postgresql(served)


NAMES = {"postgresql": POSTGRESQL, "redis": REDIS}

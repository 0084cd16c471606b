"""A PostgreSQL for the benchmarks, started as a user would start it, and a fresh database for every run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg

from durabus.testing.servers.postgresql import PostgreSQLServer

SETTINGS = "PostgreSQL with its default settings (synchronous_commit=on, fsync=on), on this machine"


class Databases:
    """Databases of one server, which runs with its default settings, as most servers do."""

    def __init__(self, url: str) -> None:
        self._admin = psycopg.connect(url, autocommit=True)
        self._root = url.rpartition("/")[0]
        self._numbers = count(1)

    @contextmanager
    def fresh(self, template: str | None = None) -> Iterator[str]:
        """Yield the URL of an empty database, or of a copy of ``template``. The database is dropped afterwards."""
        name = f"bench_{next(self._numbers)}"
        source = f" TEMPLATE {template.rpartition('/')[2]} STRATEGY FILE_COPY" if template else ""
        self._run(f"CREATE DATABASE {name}{source}")
        # What a copy or the run before left to be written is not for the next run to pay.
        self._run("CHECKPOINT")
        try:
            yield f"{self._root}/{name}"
        finally:
            self._run(f"DROP DATABASE {name} WITH (FORCE)")

    def version(self) -> str:
        row = self._admin.execute("SHOW server_version").fetchone()
        assert row is not None
        return str(row[0])

    def _run(self, statement: str) -> None:
        self._admin.execute(statement.encode())

    def close(self) -> None:
        self._admin.close()


def settle(*urls: str) -> None:
    """Write statistics and hint bits after filling, so that no run pays for them."""
    for url in urls:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")


@contextmanager
def postgresql(folder: Path, kind: type[PostgreSQLServer] = PostgreSQLServer) -> Iterator[Databases]:
    with kind(folder / "postgresql") as server:
        databases = Databases(server.url)
        try:
            yield databases
        finally:
            databases.close()

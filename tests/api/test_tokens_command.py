"""``durabus tokens`` on the command line."""

from pathlib import Path

import msgspec
import pytest

from durabus.cli.app import run
from durabus.http import TokenFile
from durabus.http.auth.access import Scope

Output = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "tokens.json")


def test_a_token_goes_to_stdout_and_everything_else_to_stderr(file: str, capsys: Output) -> None:
    command = ["tokens", "create", "mailer", "--scope", "claim", "--scope", "read", "--tag", "email", "--days", "2"]
    assert run([*command, "--tokens", file]) == 0
    printed = capsys.readouterr()
    holder = TokenFile(file).holder(printed.out.strip())
    assert holder is not None
    assert (holder.name, holder.scopes, holder.tags) == (
        "mailer",
        frozenset({Scope.CLAIM, Scope.READ}),
        frozenset({"email"}),
    )
    assert "cannot be shown again" in printed.err
    (token,) = TokenFile(file).tokens()
    assert token.expires_ts == token.created_ts + 2 * 86_400


def test_a_list_shows_all_but_the_tokens(file: str, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DURABUS_TOKENS", file)
    texts = []
    for name in ("ann", "bob"):
        assert run(["tokens", "create", name, "--scope", "read", "--bus", "shop", "--json"]) == 0
        texts.append(msgspec.json.decode(capsys.readouterr().out)["token"])
    gone = TokenFile(file).tokens()[0].id
    assert run(["tokens", "revoke", gone]) == 0
    assert run(["tokens", "list"]) == 0
    shown = capsys.readouterr().out
    assert "revoked" in shown
    assert "valid" in shown
    assert run(["tokens", "list", "--json"]) == 0
    listed = msgspec.json.decode(capsys.readouterr().out)
    assert [one["name"] for one in listed] == ["ann", "bob"]
    assert [one["revoked_at"] is None for one in listed] == [False, True]
    assert not any(text in shown for text in texts)


@pytest.mark.parametrize(
    ("arguments", "code", "hint"),
    [
        (["list"], 2, "--tokens"),
        (["list", "--tokens", "no/such.json"], 4, "tokens create"),
        (["revoke", "abc", "--tokens", "no/such.json"], 4, "tokens create"),
        (["create", "x"], 2, "scope"),
        (["create", "x", "--scope", "everything", "--tokens", "t.json"], 2, "everything"),
        (["create", "x", "--scope", "read", "--days", "0", "--tokens", "t.json"], 2, "days"),
        (["create", "x", "--scope", "read", "--tag", "a,b", "--tokens", "t.json"], 2, "comma"),
    ],
)
def test_errors_say_what_to_do(
    arguments: list[str], code: int, hint: str, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DURABUS_TOKENS", raising=False)
    assert run(["tokens", *arguments]) == code
    assert hint in capsys.readouterr().err
    assert not Path("t.json").exists()


def test_an_unknown_id_cannot_be_revoked(file: str, capsys: Output) -> None:
    TokenFile(file).create("x", [Scope.READ])
    assert run(["tokens", "revoke", "abc", "--tokens", file]) == 4
    assert "tokens list" in capsys.readouterr().err

"""Errors are one block on stderr (what, why, what to do), an exit code, and never a traceback."""

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from cyclopts import App
from tests.cli.conftest import Durabus

from durabus import EventQueue
from durabus.cli.app import app, options_last
from durabus.cli.failures import from_error
from durabus.errors import DurabusError, LeaseLost

BLOCK = re.compile(r"error: [^\n]+\n(  [^\n]+\n)*(hint:  [^\n]+\n)?")


@pytest.mark.parametrize(
    ("arguments", "code", "texts"),
    [
        (["publish", "a.b", "--data", "{oops"], 2, ["--data is not JSON", "quote it for the shell"]),
        (["publish", "a.b", "--data", "@absent.json"], 2, ["cannot read absent.json", "No such file"]),
        (["publish", "a.b", "--data", "123456789012345678901234567890"], 2, ["cannot be stored", "64 bits"]),
        (["publish", ""], 2, ["event type is empty"]),
        (["publish"], 2, ["TYPE", "`durabus publish --help`"]),
        (["publish", "a.b", "--priority", "high"], 2, ["--priority", "high"]),
        (["publish", "a.b", "--priority", "5000"], 2, ["priority=5000", "1000"]),
        (["publish", "a.b", "--delay", "-1"], 2, ["delay"]),
        (["publish", "a.b", "--wat"], 2, ["--wat"]),
        (["nonsense"], 2, ["nonsense", "`durabus --help`"]),
        (["publish", "a.b", "--store", "ftp://x"], 3, ["no store for ftp://", "sqlite://"]),
        (["publish", "a.b", "--store", "bus.db"], 3, ["no store for 'bus.db'", "sqlite:///bus.db"]),
        (["publish", "a.b", "--store", "memory://"], 2, ["inside one process only"]),
        (["publish", "a.b", "--store", "sqlite:///absent/bus.db"], 3, ["absent", "folder"]),
        (["publish", "a.b", "--store", "sqlite:///bus.db?color=red"], 2, ["color"]),
        (["events", "list", "--store", "sqlite:///absent.db"], 3, ["absent.db does not exist", "durabus db migrate"]),
        (["events", "list", "--limit", "0"], 2, ["limit=0"]),
        (["events", "list", "--status", "lost"], 2, ["lost"]),
        (["events", "show", "99"], 4, ["no event 99", "`durabus events list`"]),
        (["events", "show", "0198c0de-0000-7000-8000-000000000000"], 4, ["no event"]),
        (["events", "show", "not-an-id"], 2, ["not-an-id", "UUID"]),
        (["dlq", "retry", "99"], 4, ["no event 99"]),
        (["dlq", "retry", "3"], 5, ["is PENDING, not a dead letter", "`durabus events show ID`"]),
        (["dlq", "retry"], 2, ["neither ids nor --all"]),
        (["dlq", "retry", "2", "--all"], 2, ["both ids and --all"]),
        (["dlq", "purge", "--yes", "--older-than-days", "-3"], 2, ["older_than_days"]),
        (["dlq", "list", "--offset", "-1"], 2, ["offset"]),
        (["worker", "app"], 2, ["a colon between them"]),
        (["worker", "no_such_module:bus"], 2, ["no module 'no_such_module'"]),
        (["worker", "json:bus"], 2, ["has no attribute 'bus'"]),
        (["worker", "json:dumps"], 2, ["dumps is function, not an EventBus"]),
        (["demo", "--orders", "0"], 2, ["orders=0", "100,000"]),
    ],
)
async def test_bad_input_gets_one_block_and_its_exit_code(
    durabus: Durabus, queue: EventQueue, arguments: list[str], code: int, texts: list[str]
) -> None:
    done = durabus(*arguments)
    assert (done.code, done.out) == (code, ""), done.err
    assert BLOCK.fullmatch(done.err), done.err
    for text in texts:
        assert text in done.err


def test_without_a_store_option_reading_uses_the_default_file_and_does_not_create_it(
    durabus: Durabus, tmp_path: Path
) -> None:
    done = durabus("stats", store=None)
    assert done.code == 3
    assert "durabus.db does not exist" in done.err
    assert "durabus db migrate --store sqlite:///durabus.db" in done.err
    assert not list(tmp_path.glob("durabus.db*"))
    assert durabus("publish", "order.placed", store=None).code == 0
    assert durabus("stats", "--json", store=None).json["counts"]["pending"] == 1


def test_a_path_that_cannot_be_written_is_reported(durabus: Durabus) -> None:
    done = durabus("publish", "a.b", "--store", "sqlite:////proc/bus.db")
    assert done.code == 3, done.err
    assert BLOCK.fullmatch(done.err)
    assert "/proc/bus.db" in done.err


@pytest.mark.parametrize("command", [["stats"], ["db", "status"], ["db", "migrate"], ["events", "list"]])
def test_a_file_that_is_no_database_is_reported(durabus: Durabus, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "bus.db").write_text("this is a letter to my aunt, and it is no database at all" * 20)
    done = durabus(*command)
    assert done.code == 3, done.err
    assert BLOCK.fullmatch(done.err)
    assert "not an SQLite database" in done.err
    assert "hint:  check the path in --store" in done.err


@pytest.mark.parametrize("command", [["stats"], ["db", "status"], ["db", "migrate"], ["events", "list"]])
def test_a_store_of_a_newer_durabus_asks_for_an_upgrade(durabus: Durabus, tmp_path: Path, command: list[str]) -> None:
    assert durabus("db", "migrate").code == 0
    with closing(sqlite3.connect(tmp_path / "bus.db", isolation_level=None)) as admin:
        admin.execute("INSERT INTO durabus_migrations VALUES (9999, '9999_future', 'x', 0.0)")
    done = durabus(*command)
    assert done.code == 3, done.err
    assert BLOCK.fullmatch(done.err)
    assert "hint:  upgrade durabus" in done.err
    assert "durabus db" not in done.err


def test_a_closed_pipe_ends_quietly(durabus: Durabus, url: str) -> None:
    for _ in range(3):
        assert durabus("publish", "a.b").code == 0
    command = f"{sys.executable} -m durabus.cli.main events tail --from-start --no-follow --store {url} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30, check=True)
    assert "PUBLISHED" in done.stdout
    assert done.stderr == ""


def test_a_missing_extra_names_the_pip_install(tmp_path: Path) -> None:
    script = (
        "import sys, importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'rich' else real(name, *a)\n"
        "from durabus.cli.main import main; sys.exit(main(['--help']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: the durabus command needs rich: pip install 'durabus[cli]'\n"


BROKEN = {
    "raises": ("import json\nraise KeyError('oops')", "broken.py:2\n  KeyError: 'oops'"),
    "in a function": ("def f():\n    return 1 / 0\n\nf()", "broken.py:2\n  ZeroDivisionError: division by zero"),
    "in a library": ("import json\n\njson.loads('{')", "broken.py:3\n  JSONDecodeError: "),
    "in durabus": ("from durabus import EventBus\nEventBus(lease=-1)", "broken.py:2\n  ConfigurationError: "),
    "syntax": ("x = 1\ny = = 2", "broken.py:2\n  SyntaxError: "),
    "missing package": ("\n\nimport nowhere_to_be_found", "broken.py:3\n  ModuleNotFoundError: "),
}


@pytest.mark.parametrize(("source", "told"), BROKEN.values(), ids=BROKEN)
def test_a_module_that_cannot_be_imported_is_reported_with_file_and_line(
    durabus: Durabus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, told: str
) -> None:
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    (tmp_path / "broken.py").write_text(source)
    done = durabus("worker", "broken:bus")
    assert done.code == 2
    assert BLOCK.fullmatch(done.err)
    assert f"importing broken failed at {told}" in done.err


GROUPS = ("events", "dlq", "db", "dev", "handlers", "pipeline", "schedules", "tokens", "workers")


def every_command(parent: App = app, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    names = [name for name in parent if not name.startswith("-")]
    return [path, *(deeper for name in names for deeper in every_command(parent[name], (*path, name)))]


@pytest.mark.parametrize("path", every_command(), ids=" ".join)
def test_every_command_has_help_with_an_example(durabus: Durabus, path: tuple[str, ...]) -> None:
    done = durabus(*path, "--help", store=None)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Usage: {' '.join(('durabus', *path))}")
    is_group = path in {(name,) for name in GROUPS}
    assert is_group or f"Example: {' '.join(('durabus', *path))}" in done.out
    if not is_group and path not in {(), ("pipeline", "report")}:  # that one writes a page
        assert "--json" in done.out


def test_the_usage_of_retry_names_what_it_takes(durabus: Durabus) -> None:
    assert durabus("dlq", "retry", "--help").out.startswith("Usage: durabus dlq retry [OPTIONS] [EVENT...]\n")


def test_version_is_printed(durabus: Durabus) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*\n", durabus("--version").out)


def test_exit_codes_reach_the_shell(durabus_process: Durabus) -> None:
    assert durabus_process("publish", "a.b").code == 0
    assert durabus_process("events", "show", "99").code == 4
    assert durabus_process("publish", "a.b", "--data", "-", "--json", stdin="{oops").code == 2


def test_options_before_the_command_move_behind_it() -> None:
    assert options_last(["--json", "--store", "u", "stats"]) == ["stats", "--json", "--store", "u"]
    assert options_last(["--store=u", "publish", "--", "-x"]) == ["publish", "--store=u", "--", "-x"]
    assert options_last(["--store"]) == ["--store"]


def test_a_lost_lease_is_a_conflict_and_the_rest_a_failure() -> None:
    assert from_error(LeaseLost(1, "taken over")).code == 5
    assert from_error(DurabusError("?")).code == 1

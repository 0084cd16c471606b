"""Every example that `--help` shows is run as it stands, in one folder, one command after the other."""

import re
import shlex
from pathlib import Path

import pytest
from cyclopts import App
from tests.cli.conftest import Durabus

from durabus import EventQueue, EventStore, UnrecoverableError
from durabus.cli.app import app
from durabus.http.auth.tokens import TokenFile
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.handler import HandlerInfo
from durabus.schedules.schedules import Schedules

ELSEWHERE = {
    ("demo",): "tests/cli/test_demo.py",
    ("dev", "up"): "tests/cli/test_dev.py",
    ("worker",): "tests/cli/test_worker.py",
    ("serve",): "tests/api/test_server.py",
    ("pipeline",): "tests/pipeline/test_command_line.py",
}
"""Commands that run until they are stopped, or need Spark, and the test that runs each."""
UNTIL_STOPPED = {"durabus stats --watch": "tests/cli/test_watch.py"}
ROOT = Path(__file__).resolve().parents[2]


def examples(parent: App = app, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], str]]:
    """Return every command, and what its help says after "Example:"."""
    found = [
        (path, example)
        for example in re.findall(r"^\s*Example: (durabus .*)$", str(parent.help), re.MULTILINE)
        if example not in UNTIL_STOPPED
    ]
    for name in parent:
        deeper = (*path, name)
        if not name.startswith("-") and deeper not in ELSEWHERE:
            found += examples(parent[name], deeper)
    return found


EXAMPLES = examples()


def test_an_example_that_another_test_runs_is_in_that_test() -> None:
    for path, test in [*ELSEWHERE.items(), *((tuple(key.split()[1:2]), test) for key, test in UNTIL_STOPPED.items())]:
        assert f'"{path[0]}"' in (ROOT / test).read_text(encoding="utf-8"), (path, test)


@pytest.fixture
async def shop(store: EventStore) -> None:
    """Store what the examples name: events 1 to 12 (7 and 12 are dead letters), a worker that holds one, a handler."""
    queue = EventQueue(store)
    mail = HandlerInfo(handler_id="mail.send", pattern="mail.*")
    await store.register_handlers("default", "web-1:4242:ab", [mail], kept_for=None)
    for number in range(1, 13):
        await queue.publish("order.placed", {"order_id": number})
        if number in (7, 12):
            request = ClaimRequest(bus="default", worker_id="web-1:4242", token=new_token(), lease=60, limit=20)
            await store.claim_next_events(request)
    for number in (7, 12):
        await store.reset_event(number, reason="for the next one")
    for _ in (7, 12):
        polled = await queue.poll()
        assert polled is not None
        await queue.finalize(polled.id, error_results=[UnrecoverableError("no such customer")])
    await Schedules(store, "default").put("nightly", 86_400.0, "report.due")


@pytest.mark.parametrize(("path", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
async def test_the_example_works(
    durabus: Durabus, shop: None, tmp_path: Path, path: tuple[str, ...], example: str
) -> None:
    words = shlex.split(example)[1:]
    if path == ("tokens", "revoke"):
        words[2] = _token(tmp_path)
    elif path[:1] == ("tokens",):
        _token(tmp_path)
    if path == ("doctor",):
        words = ["doctor"]  # the example names a server; tests/cli/test_doctor.py has one
    if path == ("db", "restore"):
        assert durabus("db", "backup", words[2]).code == 0
    done = durabus(*words)
    assert done.code == 0, done.err
    if words != ["--help"] and path != ("guarantees",):
        assert durabus(*words[: len(path)], "--help", store=None).code == 0


def _token(folder: Path) -> str:
    from durabus.http.auth.access import Scope

    made, _ = TokenFile(folder / "tokens.json").create("mailer", [Scope.CLAIM])
    return made.id

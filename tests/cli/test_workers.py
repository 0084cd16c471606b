"""Workers and what they hold, their release, locks; and the completion of a shell."""

import shutil
import subprocess

import pytest
from tests.cli.conftest import Durabus

from durabus import EventQueue, EventStore
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.handler import HandlerInfo
from durabus.model.settlement import Complete


async def claim(store: EventStore, worker: str, *, lease: float = 60.0, limit: int = 1) -> list[int]:
    request = ClaimRequest(bus="default", worker_id=worker, token=new_token(), lease=lease, limit=limit)
    return [one.event.id for one in await store.claim_next_events(request)]


async def test_workers_are_listed_with_what_they_hold(durabus: Durabus, store: EventStore) -> None:
    queue = EventQueue(store)
    for _ in range(3):
        await queue.publish("order.placed")
    assert await claim(store, "web-1:42", limit=2) == [1, 2]
    await store.register_handlers(
        "default", "web-2:43:abc", [HandlerInfo(handler_id="mail", pattern="*")], kept_for=None
    )
    listed = durabus("workers", "list", "--json").json["workers"]
    assert [(one["worker_id"], one["state"], one["holds"], one["handlers"]) for one in listed] == [
        ("web-1:42", "live", [2, 1], 0),
        ("web-2:43", "live", [], 1),
    ]
    text = durabus("workers", "list").out
    assert "web-1:42" in text
    assert "live" in text
    assert durabus("workers", "list", "--bus", "nobody").err == "no workers\n"


async def test_a_worker_whose_lease_is_over_is_late(durabus: Durabus, store: EventStore) -> None:
    await EventQueue(store).publish("order.placed")
    await claim(store, "web-1:42", lease=0.001)
    listed = durabus("workers", "list", "--json").json["workers"]
    assert [(one["state"], one["overdue"]) for one in listed] == [("late", 1)]


async def test_released_events_are_back_and_the_worker_is_refused(durabus: Durabus, store: EventStore) -> None:
    queue = EventQueue(store)
    for _ in range(3):
        await queue.publish("order.placed")
    request = ClaimRequest(bus="default", worker_id="web-1:42", token=new_token(), lease=60, limit=2)
    claims = await store.claim_next_events(request)
    await claim(store, "web-2:43")
    done = durabus("workers", "release", "web-1:42", "--reason", "it hangs")
    assert (done.code, done.out) == (0, "2 events of web-1:42 returned to the queue\n")
    counts = await store.counts()
    assert (counts.pending, counts.processing) == (2, 1)
    assert (await store.read_event_log(1))[-1].reason == "it hangs"
    (outcome,) = (await store.settle_events([Complete(claims[0].ref)])).outcomes
    assert "lost" in str(outcome)


async def test_an_unknown_worker_is_not_found(durabus: Durabus, queue: EventQueue) -> None:
    done = durabus("workers", "release", "nobody:1")
    assert done.code == 4
    assert "`durabus workers list`" in done.err


async def test_a_known_worker_that_holds_nothing_is_no_error(durabus: Durabus, store: EventStore) -> None:
    await store.register_handlers("default", "web:1:x", [HandlerInfo(handler_id="a", pattern="*")], kept_for=None)
    assert durabus("workers", "release", "web:1", "--json").json == {"worker_id": "web:1", "released": 0}


async def test_locks_are_listed_in_pages_without_their_tokens(durabus: Durabus, store: EventStore) -> None:
    assert durabus("locks").err == "no locks are held\n"
    for key in ("b", "a", "c"):
        await store.claim_lock(key, worker_id="web:1", token="t" * 32, lease=60)
    page = durabus("locks", "--limit", "2", "--json")
    assert [one["key"] for one in page.json["locks"]] == ["a", "b"]
    assert page.json["next_after"] == "b"
    assert "tttt" not in page.out
    assert [one["key"] for one in durabus("locks", "--after", "b", "--json").json["locks"]] == ["c"]
    shown = durabus("locks", "--limit", "2")
    assert "web:1" in shown.out
    assert shown.err == "more: --after b\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_that_the_shell_reads(durabus: Durabus, shell: str) -> None:
    script = durabus("completion", shell, store=None).out
    for word in ("workers", "release", "publish", "--older-than-days"):
        assert word in script
    program = shutil.which(shell)
    if program is not None:
        subprocess.run([program, "-n"], input=script, text=True, check=True, capture_output=True, timeout=20)


@pytest.mark.skipif(shutil.which("bash") is None, reason="completes in bash")
def test_bash_completes_commands(durabus: Durabus) -> None:
    script = durabus("completion", "bash", store=None).out
    asked = (
        "COMP_WORDS=(durabus wor); COMP_CWORD=1; COMP_LINE='durabus wor'; COMP_POINT=11; _durabus; echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(
        ["bash", "--norc"], input=f"{script}\n{asked}\n", text=True, check=True, capture_output=True, timeout=20
    )
    assert done.stdout.split() == ["worker", "workers"], done.stderr

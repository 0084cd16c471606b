"""Each command on a real SQLite store: what it prints, for people and as JSON."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Durabus

from durabus import Context, Event, EventBus, EventQueue, EventStatus, EventStore, new_event
from durabus.cli.options import Common, shown_url
from durabus.model.claim import ClaimRequest, new_token
from durabus.model.settlement import NO_HANDLER, Complete, Fail, Release


async def test_publish_stores_an_event_with_all_its_options(durabus: Durabus, store: EventStore) -> None:
    done = durabus(
        "publish", "order.placed", "--data", '{"order": 7}', "--bus", "shop", "--tag", "eu", "--tag", "vip",
        "--delay", "60", "--priority", "-5", "--idempotency-key", "k7",
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    event = await store.get_event(1)
    assert event is not None
    assert done.out == f"order.placed is event 1 on bus shop ({event.event_id})\n"
    assert (event.payload, event.bus, event.tags, event.priority) == ({"order": 7}, "shop", ("eu", "vip"), -5)
    assert event.due_ts - event.created_ts == 60


def test_publish_creates_the_store(durabus: Durabus, tmp_path: Path) -> None:
    assert durabus("publish", "a.b").code == 0
    assert (tmp_path / "bus.db").exists()


def test_publish_reads_a_file_and_stdin(durabus: Durabus, tmp_path: Path) -> None:
    (tmp_path / "payload.json").write_text('{"from": "file"}')
    assert durabus("publish", "a.b", "--data", "@payload.json", "--json").json["payload"] == {"from": "file"}
    assert durabus("publish", "a.b", "--data", "-", "--json", stdin="[1, 2]").json["payload"] == [1, 2]


def test_publish_says_that_a_key_was_known(durabus: Durabus) -> None:
    first = durabus("publish", "a.b", "--idempotency-key", "once", "--json").json
    again = durabus("publish", "a.b", "--idempotency-key", "once", "--json").json
    assert (first["duplicate"], again["duplicate"]) == (False, True)
    assert again["event_id"] == first["event_id"]
    assert "published before under this key (PENDING)" in durabus("publish", "a.b", "--idempotency-key", "once").out


def test_store_and_json_may_stand_before_the_command(durabus: Durabus, url: str) -> None:
    done = durabus("--store", url, "--json", "publish", "a.b", store=None)
    assert (done.code, done.json["type"]) == (0, "a.b")
    assert durabus("--json", f"--store={url}", "stats", store=None).json["counts"]["pending"] == 1


async def test_events_list_filters_and_pages(durabus: Durabus, queue: EventQueue) -> None:
    listed = durabus("events", "list", "--json").json
    assert [event["id"] for event in listed["events"]] == [3, 2, 1]
    assert listed["next_before_id"] is None
    page = durabus("events", "list", "--limit", "2", "--json").json
    assert page["next_before_id"] == 2
    assert [e["id"] for e in durabus("events", "list", "--before", "2", "--json").json["events"]] == [1]
    assert [e["id"] for e in durabus("events", "list", "--tag", "eu", "--json").json["events"]] == [1]
    found = durabus("events", "list", "--status", "PENDING", "--status", "COMPLETED", "--json").json
    assert [event["status"] for event in found["events"]] == ["PENDING", "COMPLETED"]
    assert durabus("events", "list", "--type", "mail.*", "--json").json["events"] == []


async def test_events_list_fits_80_columns(durabus: Durabus, queue: EventQueue) -> None:
    done = durabus("events", "list", COLUMNS="80")
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 100
    assert "no such customer" in done.out


async def test_an_empty_list_says_so_on_stderr(durabus: Durabus, queue: EventQueue) -> None:
    done = durabus("events", "list", "--bus", "nobody")
    assert (done.code, done.out, done.err) == (0, "", "no events match\n")


async def test_events_show_has_the_event_its_log_and_its_results(durabus: Durabus, queue: EventQueue) -> None:
    shown = durabus("events", "show", "2", "--json").json
    assert shown["event"]["status"] == "COMPLETED_WITH_ERRORS"
    assert [entry["action"] for entry in shown["log"]] == ["PUBLISHED", "PICKED", "COMPLETED_WITH_ERRORS"]
    assert shown["log"][-1]["payload"] == {"order": 2}
    by_uuid = durabus("events", "show", shown["event"]["event_id"])
    assert by_uuid.code == 0
    for text in ("PICKED", "UnrecoverableError: no such customer", '{"order":2}'):
        assert text in by_uuid.out


async def test_events_show_lists_the_steps_below_their_handler(durabus: Durabus, url: str) -> None:
    bus = EventBus(url, retry={"max_retries": 0})

    @bus.on("order.placed", id="order")
    async def order(event: Event, ctx: Context) -> str:
        await ctx.step("charge", lambda: {"receipt": "r" * 500})
        await ctx.sleep(0.01)
        await ctx.step("book", lambda: None)
        return "shipped"

    async with bus:
        await bus.publish("order.placed")
    shown = durabus("events", "show", "1", COLUMNS="90").out
    lines = [line.split() for line in shown.splitlines()]
    (begin,) = [number for number, words in enumerate(lines) if words[:2] == ["order", "SUCCEEDED"]]
    assert lines[begin][-1] == '"shipped"'
    assert [words[:3] for words in lines[begin + 1 : begin + 4]] == [
        [">", "charge", "kept"],
        [">", "sleep", "sleep"],
        [">", "book", "kept"],
    ]
    assert "until 20" in shown
    assert '{"receipt":"rrr' in shown
    assert max(map(len, shown.splitlines())) <= 100


async def test_events_tail_prints_the_log_in_commit_order(durabus: Durabus, queue: EventQueue) -> None:
    done = durabus("events", "tail", "--from-start", "--no-follow", "--json")
    entries = [json.loads(line) for line in done.out.splitlines()]
    actions = [entry["action"] for entry in entries]
    assert actions == ["PUBLISHED"] * 3 + ["PICKED", "COMPLETED", "PICKED", "COMPLETED_WITH_ERRORS"]
    text = durabus("events", "tail", "--from-start", "--no-follow", "--type", "order.*")
    assert len(text.out.splitlines()) == 7


async def test_the_log_says_why_an_event_was_given_back(durabus: Durabus, queue: EventQueue) -> None:
    request = ClaimRequest(bus=queue.bus, worker_id="host:1", token=new_token())
    (claim,) = await queue.store.claim_next_events(request)
    await queue.store.settle_events([Release(claim.ref, reason="waits for stock")])
    shown = durabus("events", "show", str(claim.event.id), "--json").json
    assert (shown["log"][-1]["action"], shown["log"][-1]["reason"]) == ("RELEASED", "waits for stock")
    assert "waits for stock" in durabus("events", "show", str(claim.event.id)).out
    assert "waits for stock" in durabus("events", "tail", "--from-start", "--no-follow").out


async def test_dlq_list_and_retry(durabus: Durabus, queue: EventQueue) -> None:
    listed = durabus("dlq", "list", "--json").json
    assert (listed["total"], [event["id"] for event in listed["events"]]) == (1, [2])
    assert "no such customer" in durabus("dlq", "list").out
    retried = durabus("dlq", "retry", "2", "--json").json
    assert (retried["requeued"], retried["events"][0]["status"]) == (1, "PENDING")
    assert durabus("dlq", "list").err == "no dead letters\n"


async def test_events_retry_brings_back_what_ended_badly(
    durabus: Durabus, queue: EventQueue, store: EventStore
) -> None:
    assert durabus("events", "retry", "2").out == "1 back in the queue\n"
    event = await store.get_event(2)
    assert event is not None
    assert (event.status, event.generation) == ("PENDING", 1)
    assert durabus("events", "retry", "3").code == 5
    polled = await queue.poll()
    assert polled is not None
    await queue.finalize(polled.id)
    for command in ("events", "dlq"):
        again = durabus(command, "retry", "2")
        assert (again.code, again.out) == (5, "")
        assert "event 2 is COMPLETED, not a dead letter" in again.err
    assert durabus("events", "retry").code == 2


async def test_events_cancel_ends_what_waits_and_says_what_it_cannot_end(
    durabus: Durabus, queue: EventQueue, store: EventStore
) -> None:
    parent = await queue.publish("order.placed")
    await queue.publish("order.packed", parent_id=parent.event_id)
    done = durabus("events", "cancel", str(parent.id), "--reason", "withdrawn", "--children", "--json")
    assert (done.code, json.loads(done.out)["cancelled"]) == (0, 2)
    assert "withdrawn" in durabus("events", "list", "--status", "CANCELLED").out
    done_with = await queue.poll()
    assert done_with is not None
    await queue.finalize(done_with.id)
    last = await queue.publish("order.placed")
    refused = durabus("events", "cancel", str(done_with.id), last.event_id, "--reason", "late")
    assert (refused.code, refused.out) == (5, "1 cancelled\n")
    assert f"event {done_with.id} has ended COMPLETED: there is nothing to cancel" in refused.err
    assert durabus("events", "cancel", str(last.id)).code == 2
    assert durabus("events", "cancel", str(last.id), "--reason", " ").code == 2


async def test_dlq_show_has_the_errors_and_refuses_what_is_no_dead_letter(durabus: Durabus, queue: EventQueue) -> None:
    shown = durabus("dlq", "show", "2", "--json").json
    assert shown["event"]["errors"] == ["UnrecoverableError: no such customer"]
    assert "no such customer" in durabus("dlq", "show", "2").out
    assert durabus("dlq", "show", "1").code == 5
    assert durabus("dlq", "show", "99").code == 4


async def test_dlq_purge_takes_the_named_ones_or_none(durabus: Durabus, queue: EventQueue, store: EventStore) -> None:
    assert durabus("dlq", "purge", "2").code == 2
    assert durabus("dlq", "purge", "2", "3", "--yes").code == 5
    assert durabus("dlq", "purge", "2", "99", "--yes").code == 4
    assert durabus("dlq", "purge", "2", "--bus", "default", "--yes").code == 2
    assert (await store.counts()).completed_with_errors == 1
    assert durabus("dlq", "purge", "2", "--yes", "--json").json == {"purged": 1}
    assert (await store.counts()).completed_with_errors == 0


async def test_dlq_retries_and_purges_many_in_steps_and_shows_its_progress(
    durabus: Durabus, store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("durabus.cli.dlq.AT_ONCE", 2)

    async def make_dead_letters() -> None:
        wanted = ClaimRequest(bus="default", worker_id="w:1", token=new_token(), limit=10)
        claims = await store.claim_next_events(wanted)
        await store.settle_events([Fail(claim.ref, "boom", None) for claim in claims])

    await store.add_events([new_event("a.b") for _ in range(5)])
    await make_dead_letters()
    done = durabus("dlq", "retry", "--all")
    assert done.out == "5 back in the queue\n"
    assert "retry" in done.err
    assert "5 events" in done.err
    await make_dead_letters()
    done = durabus("dlq", "purge", "--older-than-days", "0", "--yes")
    assert done.out == "5 purged\n"
    assert "5 events" in done.err


def test_a_password_is_not_asked_back(durabus: Durabus) -> None:
    url = "postgresql://shop:s3cret@db.example/shop?sslkey=s3cret"
    assert shown_url(Common(store=url)) == "postgresql://db.example/shop"


async def test_dlq_retry_all_takes_every_dead_letter(durabus: Durabus, queue: EventQueue, store: EventStore) -> None:
    third = await queue.poll()
    assert third is not None
    await queue.finalize(third.id, success=False)
    assert durabus("dlq", "retry", "--all").out == "2 back in the queue\n"
    assert (await store.counts()).pending == 2


async def test_dlq_purge_needs_yes_without_a_terminal(durabus: Durabus, queue: EventQueue, store: EventStore) -> None:
    refused = durabus("dlq", "purge", "--older-than-days", "0")
    assert (refused.code, refused.out) == (2, "")
    assert "hint:  add --yes" in refused.err
    assert (await store.counts()).completed_with_errors == 1
    assert durabus("dlq", "purge", "--yes").out == "0 purged\n"
    assert durabus("dlq", "purge", "--older-than-days", "0", "--yes", "--json").json == {"purged": 1}
    event = await store.get_event(2)
    assert event is None


async def test_stats_counts_by_status(durabus: Durabus, queue: EventQueue) -> None:
    found = durabus("stats", "--json").json
    assert found["counts"] == {
        "pending": 1, "processing": 0, "completed": 1, "completed_with_errors": 1, "failed": 0, "cancelled": 0,
    }  # fmt: skip
    assert (found["dead_letters"], found["log_entries"]) == (1, 7)
    assert "log entries" in durabus("stats").out
    assert durabus("stats", "--bus", "nobody", "--json").json["counts"]["pending"] == 0


def test_db_goes_from_nothing_to_verified(durabus: Durabus) -> None:
    absent = durabus("db", "status")
    assert absent.code == 3
    assert "durabus db migrate --store" in absent.err
    first = durabus("db", "migrate", "--json").json
    assert first["applied"] == [step["name"] for step in first["steps"]] != []
    assert durabus("db", "migrate").out.startswith("up to date: ")
    status = durabus("db", "status", "--json")
    assert (status.code, status.json["up_to_date"]) == (0, True)
    assert durabus("db", "verify").out == "the schema is correct\n"
    assert durabus("db", "verify", "--json").json == {"ok": True}


def test_db_status_does_not_touch_a_file_that_is_not_migrated(durabus: Durabus, tmp_path: Path) -> None:
    (tmp_path / "bus.db").touch()
    status = durabus("db", "status", "--json")
    assert (status.code, status.json["up_to_date"]) == (1, False)
    assert "missing" in durabus("db", "status").out
    assert durabus("db", "verify").code == 3
    assert (tmp_path / "bus.db").stat().st_size == 0


def test_db_sql_prints_every_step_both_ways(durabus: Durabus, tmp_path: Path) -> None:
    up, down = durabus("db", "sql"), durabus("db", "sql", "--down", "--json")
    assert "CREATE TABLE events" in up.out
    assert all("DROP" in step["sql"] for step in down.json)
    assert not (tmp_path / "bus.db").exists()


async def test_statuses_are_named_as_everywhere_else(durabus: Durabus, queue: EventQueue) -> None:
    for status in EventStatus:
        assert durabus("events", "list", "--status", status.value, "--json").code == 0


async def test_an_event_that_no_handler_took_is_marked_as_unhandled(durabus: Durabus, store: EventStore) -> None:
    await store.add_events([new_event("order.plcaed"), new_event("order.placed")])
    claims = await store.claim_next_events(ClaimRequest(bus="default", worker_id="w", token=new_token(), limit=2))
    await store.settle_events([Complete(claims[0].ref, reason=NO_HANDLER), Complete(claims[1].ref)])
    assert [event["reason"] for event in durabus("events", "list", "--json").json["events"]] == [None, "no handler"]
    rows = [line for line in durabus("events", "list").out.splitlines() if "COMPLETED" in line]
    assert ["no handler" in row for row in rows] == [False, True]
    assert "no handler" in durabus("events", "show", "1").out
    assert "no handler" not in durabus("events", "show", "2").out

"""``durabus schedules``: each command, as text and as JSON, and its failures."""

import pytest
from tests.cli.conftest import Durabus

from durabus import EventBus

NIGHTLY = ("schedules", "put", "nightly", "report.due", "--cron", "0 3 * * *", "--tz", "Europe/Oslo")


def test_a_schedule_is_put_listed_shown_and_deleted(durabus: Durabus) -> None:
    done = durabus(*NIGHTLY, "--data", '{"a": 1}', "--tag", "eu", "--reason", "new")
    assert done.code == 0, done.err
    assert "nightly on bus default: 0 3 * * * Europe/Oslo, publishes report.due, next run" in done.out
    durabus("schedules", "put", "beat", "ping", "--every", "30", "--overlap", "parallel", "--catch-up", "all")
    listed = durabus("schedules", "list", "--json").json["schedules"]
    assert [(one["name"], one["cron"], one["every"]) for one in listed] == [
        ("beat", None, 30.0),
        ("nightly", "0 3 * * *", None),
    ]
    text = durabus("schedules", "list").out
    assert "nightly" in text
    assert "never" in text
    shown = durabus("schedules", "show", "nightly", "--json").json
    assert (shown["payload"], shown["tags"], len(shown["next_runs"])) == ({"a": 1}, ["eu"], 5)
    assert [(one["action"], one["reason"]) for one in shown["history"]] == [("put", "new")]
    assert "next runs:" in durabus("schedules", "show", "nightly").out
    assert durabus("schedules", "delete", "nightly", "--json").json == {"deleted": "nightly"}
    assert "beat is deleted" in durabus("schedules", "delete", "beat").out
    assert durabus("schedules", "list").err == "no schedules on bus default\n"


def test_a_schedule_is_paused_resumed_and_run(durabus: Durabus) -> None:
    durabus(*NIGHTLY)
    assert durabus("schedules", "pause", "nightly", "--reason", "holidays").out.endswith(", paused\n")
    assert "if it were not paused" in durabus("schedules", "show", "nightly").out
    assert not durabus("schedules", "resume", "nightly", "--json").json["paused"]
    assert len(durabus("schedules", "run", "nightly", "--json").json["event_id"]) == 36
    assert "publishes event" in durabus("schedules", "run", "nightly").out
    trail = [one["action"] for one in durabus("schedules", "show", "nightly", "--json").json["history"]]
    assert trail == ["run", "run", "resume", "pause", "put"]


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("put", "s", "a.b"), 2, "--cron or --every"),
        (("put", "s", "a.b", "--cron", "* * * * *", "--every", "5"), 2, "and not both"),
        (("put", "s", "a.b", "--cron", "0 25 * * *"), 2, "'25' at character 3 is no hour"),
        (("put", "s", "a.b", "--every", "5", "--tz", "Mars"), 2, "is no time zone"),
        (("put", "s/t", "a.b", "--every", "5"), 2, "a slash is not allowed"),
        (("put", "s", "a.b", "--every", "5", "--data", "{"), 2, "not JSON"),
        (("show", "nobody"), 4, "has no schedule 'nobody'"),
        (("pause", "nobody"), 4, "has no schedule"),
        (("delete", "nobody"), 4, "has no schedule"),
        (("list", "--bus", "shop~schedules"), 2, "belongs to the schedules of a bus"),
    ],
)
def test_a_failure_says_why(durabus: Durabus, arguments: tuple[str, ...], code: int, why: str) -> None:
    durabus("db", "migrate")
    done = durabus("schedules", *arguments)
    assert (done.code, why in done.err) == (code, True), done.err


async def test_a_schedule_of_the_command_line_runs_on_a_bus(durabus: Durabus, url: str) -> None:
    assert durabus("schedules", "put", "beat", "ping", "--every", "0.1").code == 0
    async with EventBus(url) as bus:
        bus.subscribe("ping", lambda event: None)
        assert await bus.find("ping", future=20.0) is not None

"""Handlers that processes announced: which of them no live process has, and how to forget them."""

import pytest
from tests.cli.conftest import Durabus

from durabus import EventStore
from durabus.model.handler import HandlerInfo
from durabus.views import workers


@pytest.fixture
async def announced(store: EventStore) -> None:
    old, new = (
        HandlerInfo(handler_id="mail.old", pattern="mail.*"),
        HandlerInfo(handler_id="mail.new", pattern="mail.*"),
    )
    await store.register_handlers("default", "web-1:42:ab", [old], kept_for=None)
    await store.register_handlers("default", "web-2:43:cd", [new], kept_for=None)
    await store.register_handlers("other", "web-2:43:ef", [old], kept_for=None)


@pytest.fixture
def _all_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "LATE_AFTER", -1.0)


def names(durabus: Durabus, *options: str) -> list[tuple[str, str, str]]:
    listed = durabus("handlers", "list", "--json", *options).json["handlers"]
    return [(one["bus"], one["handler_id"], one["state"]) for one in listed]


@pytest.mark.usefixtures("announced")
async def test_handlers_are_listed_with_their_nodes(durabus: Durabus) -> None:
    assert names(durabus) == [
        ("default", "mail.new", "live"),
        ("default", "mail.old", "live"),
        ("other", "mail.old", "live"),
    ]
    assert names(durabus, "--bus", "other") == [("other", "mail.old", "live")]
    assert durabus("handlers", "list", "--missing").err == "no handlers\n"
    text = durabus("handlers", "list").out
    assert "mail.old" in text
    assert "web-1:42:ab" in text


@pytest.mark.usefixtures("announced", "_all_silent")
async def test_a_handler_that_no_live_node_has_is_missing_and_the_doctor_warns(durabus: Durabus) -> None:
    assert ("default", "mail.old", "missing") in names(durabus, "--missing")
    done = durabus("doctor", "--json")
    assert done.code == 0
    (found,) = [one for one in done.json["findings"] if one["setting"] == "handler mail.old of bus default"]
    assert found["level"] == "warning"
    assert "web-1:42:ab" in found["value"]
    assert "durabus handlers forget mail.old --bus default" in found["advice"]


@pytest.mark.usefixtures("announced")
async def test_the_doctor_says_nothing_of_handlers_that_are_live(durabus: Durabus) -> None:
    assert not [one for one in durabus("doctor", "--json").json["findings"] if "handler" in one["setting"]]


@pytest.mark.usefixtures("announced")
async def test_a_forgotten_handler_is_gone_on_every_bus_or_on_one(durabus: Durabus, store: EventStore) -> None:
    done = durabus("handlers", "forget", "mail.old", "--bus", "other", "--yes")
    assert (done.code, done.out) == (0, "mail.old of bus other is forgotten\n")
    assert "web-2:43:ef is live and will register it again" in done.err
    assert (await store.list_handlers("other")).handlers == []
    done = durabus("handlers", "forget", "mail.old", "mail.new", "--yes", "--json")
    assert done.json == {
        "forgotten": [{"bus": "default", "handler_id": "mail.new"}, {"bus": "default", "handler_id": "mail.old"}]
    }
    assert (await store.list_handlers("default")).handlers == []


@pytest.mark.usefixtures("announced")
async def test_nothing_is_forgotten_without_a_yes(durabus: Durabus, store: EventStore) -> None:
    done = durabus("handlers", "forget", "mail.old")
    assert done.code == 2
    assert "add --yes" in done.err
    assert len((await store.list_handlers("default")).handlers) == 2


@pytest.mark.usefixtures("announced")
async def test_an_unknown_handler_is_not_found(durabus: Durabus) -> None:
    done = durabus("handlers", "forget", "mail.older", "--yes")
    assert done.code == 4
    assert "`durabus handlers list`" in done.err
    assert durabus("handlers", "forget", "--yes").code != 0

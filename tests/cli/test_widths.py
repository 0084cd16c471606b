"""Lists of events at every width: id, status, type, tries and age stay whole, the error gives way."""

import pytest
from tests.cli.conftest import Durabus

from durabus import EventQueue, EventStore, UnrecoverableError
from durabus.cli import output
from durabus.model.handler import HandlerInfo

LONG = "ConnectionError: " + "mail server unreachable, " * 20 + "the end"
NO_SPACES = "x" * 500


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("command", [("events", "list"), ("dlq", "list")], ids=" ".join)
async def test_only_the_error_gives_way(
    durabus: Durabus, store: EventStore, monkeypatch: pytest.MonkeyPatch, command: tuple[str, str], width: int
) -> None:
    queue = EventQueue(store)
    for number, error in enumerate((LONG, NO_SPACES, "[red]short[/red]")):
        await queue.publish(f"mail.sent.{number}")
        polled = await queue.poll()
        assert polled is not None
        await queue.finalize(polled.id, error_results=[UnrecoverableError(error)])
    monkeypatch.setattr(output, "PLAIN_WIDTH", width)
    done = durabus(*command)
    head, _, *rows = [line for line in done.out.splitlines() if line.strip()]
    assert head.split() == ["id", "status", "type", "tries", "age", "error"]
    for number, row in enumerate(reversed(rows)):
        id_, status, type_, tries, seconds, unit, error = row.split(maxsplit=6)
        assert (id_, status, type_, tries, unit) == (
            str(number + 1), "COMPLETED_WITH_ERRORS", f"mail.sent.{number}", "1", "s",
        )  # fmt: skip
        assert float(seconds) < 60
        assert error, "at least the beginning of the error is shown"
        if number < 2 and width < 200:
            assert row.rstrip().endswith("…")
        if width > 80:
            assert len(row) <= width
    if width > 80:
        assert "UnrecoverableError: [red]short[/red]" in rows[0]
    assert len({len(row) for row in rows}) == 1, "the table is as wide at each row"


@pytest.mark.parametrize("width", [40, 100, 300])
@pytest.mark.parametrize("command", [("handlers", "list"), ("stats",)], ids=" ".join)
async def test_ids_of_handlers_stay_whole(
    durabus: Durabus, store: EventStore, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], width: int
) -> None:
    handler_id, pattern = "order.*@" + "shop.checkout.main.<locals>." * 5 + "charge", "order." + "x" * 150
    node = "web-1.example.org:42:" + "ab" * 20
    info = HandlerInfo(handler_id=handler_id, pattern=pattern)
    await store.register_handlers("default", node, [info], kept_for=None)
    monkeypatch.setattr(output, "PLAIN_WIDTH", width)
    shown = durabus(*command).out
    assert {handler_id, node} <= set(shown.split())
    assert "…" not in shown
    assert shown.count("x") >= 150, "a long pattern is broken into lines, not cut"

"""Hooks for tracing: they see everything, and can spoil nothing."""

import contextvars
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from tests.runtime.conftest import MakeBus

from durabus import Event, EventStatus

SPAN: contextvars.ContextVar[str] = contextvars.ContextVar("span", default="none")


class Tracer:
    """Writes down what it is told, and lends handlers a context variable."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def publishing(self, event_type: str) -> Mapping[str, Any]:
        self.seen.append(f"publish {event_type}")
        return {"traceparent": SPAN.get()}

    @contextmanager
    def handling(self, event: Event, handler_id: str) -> Iterator[None]:
        self.seen.append(f"begin {handler_id}")
        token = SPAN.set(f"{event.type}/{handler_id}")
        try:
            yield
        finally:
            SPAN.reset(token)
            self.seen.append(f"end {handler_id}")

    def settled(self, event: Event, status: EventStatus) -> None:
        self.seen.append(f"{event.type} {status}")


class Broken(Tracer):
    """Fails whenever it is asked."""

    def publishing(self, event_type: str) -> Mapping[str, Any]:
        raise RuntimeError("no")

    def handling(self, event: Event, handler_id: str) -> Any:
        raise RuntimeError("no")

    def settled(self, event: Event, status: EventStatus) -> None:
        raise RuntimeError("no")


@pytest.mark.parametrize("handler_mode", ["serial", "parallel"])
async def test_a_trace_goes_from_the_parent_through_its_handler_to_the_child(
    make_bus: MakeBus, handler_mode: str
) -> None:
    tracer = Tracer()
    bus = make_bus(tracing=tracer, handler_mode=handler_mode)

    async def parent(event: Event) -> None:
        await bus.emit("child", None, {"given": 1})

    async def child(event: Event) -> None: ...

    bus.subscribe("parent", parent, id="p")
    bus.subscribe("child", child, id="c")
    await bus.start()
    await bus.publish("parent")
    found = await bus.find("child")
    assert found is not None
    assert found.metadata == {"traceparent": "parent/p", "given": 1}
    assert tracer.seen == [
        "publish parent",
        "begin p",
        "publish child",
        "begin c",
        "end c",
        "child COMPLETED",
        "end p",
        "parent COMPLETED",
    ]


async def test_a_retry_is_told_too(make_bus: MakeBus) -> None:
    tracer = Tracer()
    bus = make_bus(tracing=tracer, retry={"max_retries": 1, "base_delay": 0.0})

    async def fails_once(event: Event) -> None:
        if event.attempts == 1:
            raise ValueError("no")

    bus.subscribe("job", fails_once, id="h")
    await bus.start()
    await bus.publish("job")
    assert tracer.seen[1:] == ["begin h", "end h", "job PENDING", "begin h", "end h", "job COMPLETED"]


async def test_a_tracer_that_fails_changes_nothing(make_bus: MakeBus, caplog: pytest.LogCaptureFixture) -> None:
    bus, calls = make_bus(tracing=Broken()), []

    async def handler(event: Event) -> str:
        calls.append(event.id)
        return "done"

    bus.subscribe("job", handler)
    await bus.start()
    with caplog.at_level(logging.ERROR, "durabus.tracing"):
        assert await bus.emit("job", 1, {"source": "web"}).result() == "done"
    assert len(calls) == 1
    assert len([record for record in caplog.records if record.name == "durabus.tracing"]) == 3

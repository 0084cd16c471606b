"""Hooks for tracing: they see every call, and their errors change nothing."""

import asyncio
import contextvars
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from tests.runtime.conftest import MakeBus

from durabus import Event, EventStatus, UnrecoverableError

SPAN: contextvars.ContextVar[str] = contextvars.ContextVar("span", default="none")


@dataclass
class Question:
    event_result_type: ClassVar[type] = int


class Tracer:
    """Notes its calls, and sets a context variable for handlers."""

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
    """A tracer that fails at every call."""

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
    assert found.metadata == {"traceparent": "parent/p", "given": 1, "event_depth": 1}
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


async def test_the_tracer_sees_a_retry_too(make_bus: MakeBus) -> None:
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


class Spans(Tracer):
    """Ends a span as OpenTelemetry does: with the exception that its block was left with."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[str] = []

    @contextmanager
    def handling(self, event: Event, handler_id: str) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.ended.append(f"ERROR {type(error).__name__}: {error}")
            raise
        else:
            self.ended.append("OK")


@pytest.mark.parametrize("handler_mode", ["serial", "parallel"])
async def test_the_span_of_a_failed_call_ends_with_its_exception(make_bus: MakeBus, handler_mode: str) -> None:
    spans = Spans()
    bus = make_bus(tracing=spans, handler_mode=handler_mode, retry={"max_retries": 0})

    async def raises(event: Event) -> None:
        raise KeyError("customer")

    def raises_in_a_thread(event: Event) -> None:
        raise KeyError("thread")

    async def returns(event: Event) -> UnrecoverableError:
        return UnrecoverableError("no such customer")

    async def takes_too_long(event: Event) -> None:
        await asyncio.Event().wait()

    async def raises_something_odd(event: Event) -> None:
        raise GeneratorExit("odd")

    async def fine(event: Event) -> None: ...

    for handler in (raises, raises_in_a_thread, returns, raises_something_odd, fine):
        bus.subscribe(handler.__name__, handler)
    bus.subscribe("takes_too_long", takes_too_long, id="slow", timeout=0.01)
    await bus.start()
    for event_type in ("raises", "raises_in_a_thread", "returns", "takes_too_long", "raises_something_odd", "fine"):
        await bus.publish(event_type)
    assert spans.ended == [
        "ERROR KeyError: 'customer'",
        "ERROR KeyError: 'thread'",
        "ERROR UnrecoverableError: no such customer",
        "ERROR TimeoutError: handler slow took longer than 0.01 s",
        "ERROR GeneratorExit: odd",
        "OK",
    ]


async def test_the_span_of_a_result_of_the_wrong_type_ends_with_an_error(make_bus: MakeBus) -> None:
    spans = Spans()
    bus = make_bus(tracing=spans)

    async def wrong(question: Question) -> str:
        return "many"

    bus.subscribe(Question, wrong)
    await bus.start()
    await bus.publish(Question())
    assert len(spans.ended) == 1
    assert spans.ended[0].startswith("ERROR RuntimeError: ResultSchemaError")


async def test_the_span_of_a_cancelled_call_ends_with_the_cancellation(make_bus: MakeBus) -> None:
    spans, entered = Spans(), asyncio.Event()
    bus = make_bus(tracing=spans)

    async def endless(event: Event) -> None:
        entered.set()
        await asyncio.Event().wait()

    bus.subscribe("job", endless)
    await bus.start()
    bus.emit("job")
    await entered.wait()
    await bus.shutdown(0.0)
    assert spans.ended == ["ERROR CancelledError: "]

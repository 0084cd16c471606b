"""Typed payloads: the type hint of a handler's first argument picks the decoder."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

import msgspec
import pytest
from pydantic import BaseModel
from tests.seeds.support import QUICK, Recorder, stored

from durabus import ConfigurationError, Context, Event, EventBus, EventStatus, EventStore, PayloadDecodeError
from durabus.model.payload import decode_as


@dataclass
class UserData:
    id: int
    name: str = "nobody"


class UserStruct(msgspec.Struct):
    id: int
    name: str = "nobody"


class UserModel(BaseModel):
    id: int
    name: str = "nobody"


class UserDict(TypedDict):
    id: int


seen: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


async def takes_dataclass(user: UserData) -> None:
    seen.append(user)


async def takes_struct(user: UserStruct) -> None:
    seen.append(user)


async def takes_model(user: UserModel) -> None:
    seen.append(user)


async def takes_typed_dict(user: UserDict) -> None:
    seen.append(user)


async def takes_dict(user: dict[str, Any]) -> None:
    seen.append(user)


def takes_dataclass_in_a_thread(user: UserData) -> None:
    seen.append(user)


class Mailer:
    async def send(self, user: UserData) -> None:
        seen.append(user)

    async def __call__(self, user: UserStruct) -> None:
        seen.append(user)


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (takes_dataclass, UserData(1)),
        (takes_struct, UserStruct(1)),
        (takes_model, UserModel(id=1)),
        (takes_typed_dict, {"id": 1}),
        (takes_dict, {"id": 1}),
        (takes_dataclass_in_a_thread, UserData(1)),
        (Mailer().send, UserData(1)),
        (Mailer(), UserStruct(1)),
    ],
    ids=["dataclass", "msgspec", "pydantic", "typed-dict", "dict", "plain-function", "method", "callable-object"],
)
async def test_a_handler_is_given_the_payload_as_the_type_it_asks_for(
    store: EventStore, handler: Callable[..., Any], expected: Any
) -> None:
    async with EventBus(store) as bus:
        bus.subscribe("user.created", handler)
        await bus.publish("user.created", {"id": 1})
    assert seen == [expected]


async def test_a_handler_without_a_type_hint_is_given_the_event(store: EventStore) -> None:
    async with EventBus(store) as bus:
        bus.subscribe("user.created", lambda event: seen.append(event))  # noqa: PLW0108  (a Python signature)
        await bus.publish("user.created", {"id": 1})
    (event,) = seen
    assert isinstance(event, Event)
    assert event.payload == {"id": 1}


async def test_a_handler_with_two_arguments_is_given_the_context(store: EventStore) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        seen.append((event.id, ctx.event.id, ctx.fence, ctx.attempt))

    async def typed(user: UserData, ctx: Context) -> None:
        seen.append((user.id, ctx.attempt))

    async with EventBus(store) as bus:
        bus.subscribe("user.created", handler)
        bus.subscribe("user.created", typed)
        event = await stored(bus.store, await bus.publish("user.created", {"id": 7}))
    assert seen == [(event.id, event.id, 1, 1), (7, 1)]


async def test_the_fence_grows_and_the_attempt_counts_with_every_attempt(store: EventStore) -> None:
    async def handler(event: Event, ctx: Context) -> None:
        seen.append((ctx.fence, ctx.attempt))
        if ctx.attempt < 3:
            raise ValueError("not today")

    async with EventBus(store, retry=QUICK) as bus:
        bus.subscribe("user.created", handler)
        await bus.publish("user.created")
    assert seen == [(1, 1), (2, 2), (3, 3)]


async def test_a_second_argument_with_a_default_is_left_alone(store: EventStore) -> None:
    async def handler(event: Event, copies: int = 2) -> None:
        seen.append(copies)

    async with EventBus(store) as bus:
        bus.subscribe("user.created", handler)
        await bus.publish("user.created")
    assert seen == [2]


@pytest.mark.parametrize(
    "user",
    [UserData(1, "Ada"), UserStruct(1, "Ada"), UserModel(id=1, name="Ada")],
    ids=["dataclass", "msgspec", "pydantic"],
)
async def test_an_object_is_published_under_the_name_of_its_class(store: EventStore, user: object) -> None:
    async with EventBus(store) as bus:
        bus.subscribe(type(user), Recorder())
        event = await stored(store, await bus.publish(user))
    assert (event.type, event.payload) == (type(user).__name__, {"id": 1, "name": "Ada"})
    assert event.status is EventStatus.COMPLETED


class OrderPlaced(msgspec.Struct):
    event_type: ClassVar[str] = "order.placed"
    order_id: int


async def on_order(order: OrderPlaced) -> None:
    seen.append(order)


async def test_a_class_may_name_its_event_type(store: EventStore) -> None:
    async with EventBus(store) as bus:
        bus.subscribe("order.*", on_order)
        bus.subscribe(OrderPlaced, on_order)
        event = await bus.emit(OrderPlaced(7))
    assert event.type == "order.placed"
    assert seen == [OrderPlaced(7), OrderPlaced(7)]


async def test_a_payload_that_no_longer_decodes_goes_to_the_dead_letters_and_the_worker_lives(
    store: EventStore,
) -> None:
    async with EventBus(store, retry=QUICK) as bus:
        bus.subscribe("user.created", takes_dataclass)
        bad = await stored(store, await bus.publish("user.created", {"id": "not a number"}))
        good = await stored(store, await bus.publish("user.created", {"id": 1}))
    assert (bad.status, bad.attempts) == (EventStatus.COMPLETED_WITH_ERRORS, 1)
    assert bad.errors[0].startswith("PayloadDecodeError: ")
    assert good.status is EventStatus.COMPLETED
    assert seen == [UserData(1)]


async def test_a_payload_that_does_not_decode_for_one_handler_shows_in_its_error() -> None:
    with pytest.raises(PayloadDecodeError, match="UserModel"):
        decode_as('{"id": "x"}', UserModel)


@pytest.mark.parametrize(
    "payload", [None, True, 0, -1.5, "text", "", [], {}, [1, "two", None], {"ü": "😀", "n": {"deep": [1]}}]
)
async def test_a_payload_comes_back_as_it_was_published(store: EventStore, payload: Any) -> None:
    handler = Recorder()
    async with EventBus(store) as bus:
        bus.subscribe("any", handler)
        await bus.publish("any", payload)
    (event,) = handler.events
    assert event.payload == payload
    assert type(event.payload) is type(payload)


async def test_a_handler_cannot_change_the_payload_of_the_next(store: EventStore) -> None:
    async def spoil(event: Event) -> None:
        event.payload["id"] = 2
        seen.append(event.payload)

    async with EventBus(store) as bus:
        bus.subscribe("user.created", spoil)
        bus.subscribe("user.created", takes_dict)
        await bus.publish("user.created", {"id": 1})
    assert seen == [{"id": 1}, {"id": 1}]


async def test_a_type_hint_that_cannot_be_found_is_refused_at_once() -> None:
    async def handler(user: "Unknown") -> None:  # type: ignore[name-defined]  # noqa: F821
        seen.append(user)

    async with EventBus("memory://") as bus:
        with pytest.raises(ConfigurationError, match="Unknown"):
            bus.subscribe("user.created", handler)

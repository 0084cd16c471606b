"""What goes into JSON, what comes back, and what is refused on the way."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from durabus.errors import InvalidPayloadError, PayloadDecodeError
from durabus.model.limits import MAX_DEPTH, MAX_PAYLOAD_BYTES
from durabus.model.payload import decode_as, decode_payload, encode_payload

NAN, INF = float("nan"), float("inf")


@dataclass
class OrderData:
    order_id: int
    lines: list[str] = field(default_factory=list)
    extra: Any = None


class OrderStruct(msgspec.Struct):
    order_id: int
    lines: list[str] = []
    extra: Any = None


class OrderModel(pydantic.BaseModel):
    order_id: int
    lines: list[str] = []
    extra: Any = None


class OrderDict(TypedDict):
    order_id: int
    lines: list[str]


class Unknown:
    """A class that does not say which fields it has."""


TYPED: dict[str, Callable[..., Any]] = {"dataclass": OrderData, "struct": OrderStruct, "pydantic": OrderModel}

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


def nested(levels: int, make: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = make(value)
    return value


@given(JSON)
def test_every_json_value_comes_back_as_it_went(value: Any) -> None:
    assert decode_payload(encode_payload(value)) == value


def test_a_tuple_is_a_json_array() -> None:
    assert encode_payload({"point": (1, 2)}) == '{"point":[1,2]}'
    assert encode_payload((1, (2, 3))) == "[1,[2,3]]"


@pytest.mark.parametrize("make", TYPED.values(), ids=TYPED)
def test_a_typed_value_becomes_the_object_of_its_fields(make: Callable[..., Any]) -> None:
    text = encode_payload(make(order_id=7, lines=["tea"], extra={"gift": True}))
    assert decode_payload(text) == {"order_id": 7, "lines": ["tea"], "extra": {"gift": True}}


@pytest.mark.parametrize("value", [NAN, INF, -INF], ids=str)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda value: value,
        lambda value: {"price": value},
        lambda value: [1, value],
        lambda value: {"prices": [{"net": value}]},
        lambda value: OrderData(1, extra=value),
        lambda value: OrderStruct(1, extra=value),
        lambda value: OrderModel(order_id=1, extra=value),
    ],
    ids=["bare", "in an object", "in an array", "deep", "in a dataclass", "in a struct", "in a pydantic model"],
)
def test_a_number_that_json_does_not_know_is_refused(wrap: Callable[[float], Any], value: float) -> None:
    with pytest.raises(InvalidPayloadError, match="is not a JSON number"):
        encode_payload(wrap(value))


@pytest.mark.parametrize(
    "value",
    [
        b"raw",
        bytearray(b"raw"),
        memoryview(b"raw"),
        {1, 2},
        frozenset({1}),
        datetime(2026, 1, 1, tzinfo=UTC),
        date(2026, 1, 1),
        Decimal("1.50"),
        uuid.UUID(int=7),
        object(),
        object,
        1 + 2j,
        range(3),
        (n for n in range(3)),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize(
    "wrap",
    [lambda value: value, lambda value: {"field": value}, lambda value: [value]],
    ids=["bare", "in an object", "in an array"],
)
def test_a_value_that_would_have_to_be_converted_is_refused(wrap: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(InvalidPayloadError, match="not JSON-serialisable"):
        encode_payload(wrap(value))


@pytest.mark.parametrize("make", [OrderData, OrderStruct])
def test_bytes_inside_a_typed_value_are_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(InvalidPayloadError, match="bytes is not JSON-serialisable"):
        encode_payload(make(order_id=1, extra=b"raw"))


@pytest.mark.parametrize("key", [1, 1.5, True, None, b"k", ("a", "b")], ids=repr)
def test_a_key_that_is_not_a_string_is_refused(key: object) -> None:
    with pytest.raises(InvalidPayloadError, match="JSON keys are strings"):
        encode_payload({"rows": {key: 1}})


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63)])
def test_the_largest_and_smallest_64_bit_integers_are_taken(value: int) -> None:
    assert decode_payload(encode_payload([value, {"n": value}])) == [value, {"n": value}]


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**30], ids=str)
def test_an_integer_beyond_64_bits_is_refused_with_the_remedy(value: int) -> None:
    for payload in (value, [value], {"n": value}):
        with pytest.raises(InvalidPayloadError, match="does not fit 64 bits: send it as a string"):
            encode_payload(payload)


@pytest.mark.parametrize("payload", [10**5000, [10**5000], {"n": -(10**5000)}], ids=["bare", "array", "object"])
def test_an_integer_too_long_to_print_is_refused_like_any_other(payload: Any) -> None:
    with pytest.raises(InvalidPayloadError, match="does not fit 64 bits"):
        encode_payload(payload)


def test_a_key_too_long_to_print_is_refused_like_any_other() -> None:
    with pytest.raises(InvalidPayloadError, match="JSON keys are strings"):
        encode_payload({10**5000: 1})


def test_a_list_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidPayloadError, match="contains itself"):
        encode_payload(loop)


def test_an_object_that_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = [loop]
    with pytest.raises(InvalidPayloadError, match="contains itself"):
        encode_payload(loop)


def test_a_dataclass_that_contains_itself_is_refused() -> None:
    loop = OrderData(1)
    loop.extra = loop
    with pytest.raises(InvalidPayloadError):
        encode_payload(loop)


@pytest.mark.parametrize(
    "make", [lambda value: [value], lambda value: {"a": value}, lambda value: (value,)], ids=["list", "dict", "tuple"]
)
def test_nesting_is_taken_up_to_the_limit_and_refused_beyond(make: Callable[[Any], Any]) -> None:
    encode_payload(nested(MAX_DEPTH, make))
    with pytest.raises(InvalidPayloadError, match=f"nested deeper than {MAX_DEPTH} levels"):
        encode_payload(nested(MAX_DEPTH + 1, make))


def test_absurd_nesting_is_refused_without_exhausting_the_stack() -> None:
    with pytest.raises(InvalidPayloadError, match="nested deeper"):
        encode_payload(nested(100_000, lambda value: [value]))


@pytest.mark.parametrize("payload", ["\ud800", ["\udfff"], {"k": "a\ud800b"}, {"\ud800": 1}], ids=ascii)
def test_a_lone_surrogate_is_refused(payload: Any) -> None:
    with pytest.raises(InvalidPayloadError, match="surrogates not allowed"):
        encode_payload(payload)


@pytest.mark.parametrize("character", ["x", "é", "😀"])
def test_the_size_limit_counts_bytes_and_is_exact(character: str) -> None:
    width = len(character.encode())
    room = MAX_PAYLOAD_BYTES - len('""')
    full = character * (room // width) + "x" * (room % width)
    assert len(encode_payload(full).encode()) == MAX_PAYLOAD_BYTES
    with pytest.raises(InvalidPayloadError):
        encode_payload(full + "x")


def test_a_payload_that_is_too_large_is_refused_with_size_limit_and_remedy() -> None:
    with pytest.raises(InvalidPayloadError, match=r"1,048,577 bytes.*limit is 1,048,576: .*publish a reference"):
        encode_payload("x" * (MAX_PAYLOAD_BYTES - 1))


def test_the_refusal_says_where_the_trouble_is() -> None:
    with pytest.raises(InvalidPayloadError, match=r"^payload\.customer\.photo: bytes"):
        encode_payload({"customer": {"name": "Ann", "photo": b"raw"}})


def test_the_refusal_says_what_was_being_encoded() -> None:
    with pytest.raises(InvalidPayloadError, match=r"^metadata\.trace: bytes"):
        encode_payload({"trace": b"raw"}, "metadata")


def test_a_pydantic_model_that_cannot_be_dumped_is_refused() -> None:
    with pytest.raises(InvalidPayloadError, match="OrderModel is not JSON-serialisable"):
        encode_payload(OrderModel(order_id=1, extra=object()))


@pytest.mark.parametrize("text", ["", "{", "nul", "[1,]", '{"a":1}x', '"\ud800"', "NaN"], ids=ascii)
def test_stored_text_that_is_not_json_is_an_error_of_our_own(text: str) -> None:
    with pytest.raises(PayloadDecodeError, match="does not decode"):
        decode_payload(text)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (OrderData, OrderData(7, ["tea"])),
        (OrderStruct, OrderStruct(7, ["tea"])),
        (OrderModel, OrderModel(order_id=7, lines=["tea"])),
        (OrderDict, OrderDict(order_id=7, lines=["tea"])),
        (dict, {"order_id": 7, "lines": ["tea"]}),
        (dict[str, Any], {"order_id": 7, "lines": ["tea"]}),
        (object, {"order_id": 7, "lines": ["tea"]}),
    ],
    ids=["dataclass", "struct", "pydantic", "typeddict", "dict", "dict of", "anything"],
)
def test_a_payload_decodes_as_the_type_asked_for(wanted: type[Any], expected: object) -> None:
    assert decode_as('{"order_id":7,"lines":["tea"]}', wanted) == expected


@pytest.mark.parametrize(
    ("text", "wanted", "expected"),
    [
        ("[1,2]", list[int], [1, 2]),
        ("[1,2]", tuple[int, int], (1, 2)),
        ('"x"', str, "x"),
        ("7", int, 7),
        ("7", float, 7.0),
    ],
)
def test_plain_types_decode_too(text: str, wanted: type[Any], expected: object) -> None:
    assert decode_as(text, wanted) == expected


@pytest.mark.parametrize("make", TYPED.values(), ids=TYPED)
def test_a_typed_value_comes_back_equal(make: Callable[..., Any]) -> None:
    order = make(order_id=7, lines=["tea"])
    assert decode_as(encode_payload(order), type(order)) == order


@pytest.mark.parametrize("wanted", [OrderData, OrderStruct, OrderModel, OrderDict, list, int])
@pytest.mark.parametrize("text", ['{"order_id":"seven","lines":[]}', '{"lines":[]}', '"text"', "{"], ids=ascii)
def test_a_payload_of_another_shape_is_an_error_that_names_the_type(wanted: type[Any], text: str) -> None:
    with pytest.raises(PayloadDecodeError, match=wanted.__name__) as caught:
        decode_as(text, wanted)
    assert caught.value.__cause__ is not None


def test_a_type_that_json_knows_nothing_about_is_an_error_of_our_own() -> None:
    with pytest.raises(PayloadDecodeError, match="Unknown"):
        decode_as("{}", Unknown)

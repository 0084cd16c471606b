"""The columns of typed tables, without Spark: declared or inferred, and the payloads that fit them."""

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from random import Random
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pydantic
import pytest

from durabus.errors import ConfigurationError, PipelineError
from durabus.pipeline.declared import INSTANT, JSON_TEXT, declared_columns
from durabus.pipeline.decoding import PayloadDecoder
from durabus.pipeline.inference import extends, find_kinds, inferred_columns, kinds_of, merged_kinds


class Currency(StrEnum):
    EUR = "EUR"


MONEY = pa.decimal128(12, 2)


class ItemStruct(msgspec.Struct):
    sku: str
    price: Annotated[Decimal, MONEY]


class OrderStruct(msgspec.Struct, rename="camel"):
    order_id: int
    currency: Currency
    items: list[ItemStruct]
    placed_at: datetime
    due: date | None = None
    labels: dict[str, float] = {}
    anything: Any = None


@dataclass
class ItemData:
    sku: str
    price: Annotated[Decimal, MONEY]


@dataclass
class OrderData:
    orderId: int  # noqa: N815  (as in the JSON)
    currency: Literal["EUR"]
    items: tuple[ItemData, ...]
    placedAt: datetime  # noqa: N815
    due: date | None = None
    labels: dict[str, float] = field(default_factory=dict)
    anything: int | str | None = None


class ItemModel(pydantic.BaseModel):
    sku: str
    price: Decimal = pydantic.Field(max_digits=12, decimal_places=2)


class OrderModel(pydantic.BaseModel):
    order_id: int = pydantic.Field(alias="orderId")
    currency: Currency
    items: list[ItemModel]
    placed_at: datetime = pydantic.Field(alias="placedAt")
    due: date | None = None
    labels: dict[str, float] = {}
    anything: Any = None


class ItemDict(TypedDict):
    sku: str
    price: Annotated[Decimal, MONEY]


class OrderDict(TypedDict):
    orderId: int
    currency: str
    items: list[ItemDict]
    placedAt: datetime
    due: NotRequired[date | None]
    labels: NotRequired[dict[str, float]]
    anything: NotRequired[Any]


ORDER_SCHEMA = {
    "type": "object",
    "required": ["orderId", "currency", "items", "placedAt"],
    "properties": {
        "orderId": {"type": "integer"},
        "currency": {"type": "string", "enum": ["EUR"]},
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
        "placedAt": {"type": "string", "format": "date-time"},
        "due": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        "labels": {"type": "object", "additionalProperties": {"type": "number"}},
        "anything": {},
    },
    "$defs": {
        "item": {
            "type": "object",
            "required": ["sku", "price"],
            "properties": {"sku": {"type": "string"}, "price": {"type": "string", "format": "decimal"}},
        }
    },
}


def order_columns(price: pa.DataType) -> pa.Schema:
    item = pa.struct([pa.field("sku", pa.string(), nullable=False), pa.field("price", price, nullable=False)])
    return pa.schema(
        [
            pa.field("orderId", pa.int64(), nullable=False),
            pa.field("currency", pa.string(), nullable=False),
            pa.field("items", pa.list_(pa.field("element", item)), nullable=False),
            pa.field("placedAt", INSTANT, nullable=False),
            pa.field("due", pa.date32()),
            pa.field("labels", pa.map_(pa.string(), pa.field("value", pa.float64()))),
            pa.field("anything", pa.string(), metadata=JSON_TEXT),
        ]
    )


@pytest.mark.parametrize("declared", [OrderStruct, OrderData, OrderModel, OrderDict, ORDER_SCHEMA], ids=str)
def test_every_way_to_declare_an_order_gives_the_same_columns(declared: Any) -> None:
    price = pa.decimal128(38, 18) if declared is ORDER_SCHEMA else MONEY
    assert declared_columns(declared).equals(order_columns(price), check_metadata=True)


@pytest.mark.parametrize(
    "declared", [int, list[int], {"type": "array"}, {"$ref": "#/no"}, {"$ref": "elsewhere.json"}, "order"], ids=str
)
def test_what_describes_no_object_is_refused(declared: Any) -> None:
    with pytest.raises(ConfigurationError):
        declared_columns(declared)


ORDER: dict[str, Any] = {
    "orderId": 7,
    "currency": "EUR",
    "items": [{"sku": "lamp", "price": "19.90"}, {"sku": "bulb", "price": 2.5}],
    "placedAt": "2026-11-18T10:00:00.25+01:00",
    "due": "2026-12-01",
    "labels": {"weight": 1},
    "anything": [1, {"a": None}],
    "unknown": 1,
}

UNFIT: dict[str, dict[str, Any]] = {
    "Expected `int`, got `str` - at `$.orderId`": {"orderId": "7"},
    "Object missing required field `currency`": {"currency": ...},
    "Expected `array`, got `object` - at `$.items`": {"items": {}},
    "Expected `array`, got `null` - at `$.items`": {"items": None},
    "Rescaling Decimal value would cause data loss - at `$.items`": {"items": [{"sku": "x", "price": "1.005"}]},
    "Invalid RFC3339 encoded datetime - at `$.placedAt`": {"placedAt": "tomorrow"},
    "Invalid RFC3339 encoded date - at `$.due`": {"due": "2026-02-30"},
}


def test_a_payload_becomes_exact_values_or_a_reason() -> None:
    unfit = [{name: value for name, value in (ORDER | change).items() if value is not ...} for change in UNFIT.values()]
    payloads = [json.dumps(one) for one in (ORDER, *unfit)]
    arrays, reasons = PayloadDecoder(declared_columns(OrderStruct)).arrays([*payloads, "[]", "{"])
    row = {name: array[0].as_py() for name, array in zip(declared_columns(OrderStruct).names, arrays, strict=True)}
    assert row == {
        "orderId": 7,
        "currency": "EUR",
        "items": [{"sku": "lamp", "price": Decimal("19.90")}, {"sku": "bulb", "price": Decimal("2.50")}],
        "placedAt": datetime(2026, 11, 18, 9, 0, 0, 250_000, tzinfo=UTC),
        "due": date(2026, 12, 1),
        "labels": [("weight", 1.0)],
        "anything": '[1,{"a":null}]',
    }
    assert reasons[0] is None
    for expected, found in zip(UNFIT, reasons[1:], strict=False):
        assert found is not None
        assert found.startswith(expected)
    assert all(reasons[1:])
    assert all(array.null_count == len(reasons) - 1 for array in arrays)


def columns_of(*payloads: Any) -> pa.Schema:
    return inferred_columns(kinds_of((n, json.dumps(one)) for n, one in enumerate(payloads)))


def test_inferred_columns_take_the_kind_of_the_oldest_event() -> None:
    found = columns_of(
        {"n": 1, "x": 2, "nothing": None, "empty": [], "s": "a", "odd name": 1, "durabus_id": 9},
        {"n": "text", "N": "second", "x": 2.5, "deep": {"list": [{"a": 1}, {"b": [True]}]}},
        {"s": {"no": "object"}, "nothing": "now"},
        [1, 2],
    )
    element = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.field("element", pa.bool_())))])
    assert found.equals(
        pa.schema(
            [
                ("n", pa.int64()),
                ("s", pa.string()),
                ("x", pa.float64()),
                ("deep", pa.struct([("list", pa.list_(pa.field("element", element)))])),
                ("nothing", pa.string()),
            ]
        )
    )


def test_inference_does_not_depend_on_the_order_or_on_the_parts() -> None:
    random = Random(18)
    values = [None, 1, 2.5, "a", True, [1], ["a"], {"x": 1}, {"x": "a", "y": []}]
    payloads = [(n, json.dumps({key: random.choice(values) for key in "abc"})) for n in range(40)]
    expected = inferred_columns(kinds_of(payloads))
    for _ in range(5):
        random.shuffle(payloads)
        batches = [
            pa.RecordBatch.from_pylist([{"seq": seq, "payload": one} for seq, one in payloads[n::3]]) for n in range(3)
        ]
        rows = [row for batch in find_kinds(batches) for row in batch.to_pylist()]
        assert inferred_columns(merged_kinds(rows)).equals(expected)


def test_new_fields_come_after_the_columns_that_a_table_has() -> None:
    before = columns_of({"z": 1, "a": {"q": 1, "b": 2}}, {"m": "x"})
    rows = [
        row
        for batch in find_kinds(
            [pa.RecordBatch.from_pylist([{"seq": 9, "payload": '{"a": {"c": 1}, "b": 1, "m": 1}'}])]
        )
        for row in batch.to_pylist()
    ]
    after = inferred_columns(merged_kinds(rows, before))
    assert after.names == ["a", "z", "m", "b"]
    assert [one.name for one in after.field("a").type] == ["b", "q", "c"]
    assert after.field("m").type == pa.string()
    assert extends(pa.struct(list(after)), pa.struct(list(before)))
    assert not extends(pa.struct(list(before)), pa.struct(list(after)))
    assert not extends(pa.struct([("z", pa.float64())]), pa.struct([("z", pa.int64())]))


def test_payloads_with_changing_keys_need_a_declared_schema() -> None:
    with pytest.raises(PipelineError, match="more than 1,000 different fields: declare a schema"):
        columns_of({f"key{n}": n for n in range(1_001)})

"""Typed tables on Spark: they grow with the events, and are always what a rebuild gives."""

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import Row
from tests.pipeline.history import History

from durabus import upcast
from durabus.errors import ConfigurationError
from durabus.pipeline.derive import watermarks
from durabus.pipeline.lake import Lake
from durabus.pipeline.projections import Projection
from durabus.pipeline.rebuilding import rebuild
from durabus.pipeline.run import Pipeline, PipelinePart
from durabus.pipeline.schema import EVENTS
from durabus.pipeline.session import SPARK_ERRORS
from durabus.pipeline.tables import EventTable, tables_of_types, update_table

ORDERS = EventTable("order.placed")
TABLE = "silver.order_placed"


def payload_types(lake: Lake, name: str = TABLE) -> dict[str, str]:
    return {column: kind for column, kind in lake.read(name).dtypes if not column.startswith("durabus_")}


def reasons(lake: Lake) -> list[str]:
    return sorted(row["reason"] for row in lake.read("silver.quarantine").collect())


SEEDED = "id BIGINT, event_id STRING, type STRING, status STRING, payload STRING, metadata STRING, ended_at TIMESTAMP, "
SEEDED += "first_seq BIGINT, last_seq BIGINT"


def add_events(lake: Lake, first: int, kind: str, *events: tuple[object, object]) -> None:
    """Add ended events with these payloads and metadata to ``silver.events``. Their ids count from ``first``."""
    ended = datetime(2026, 11, 18, tzinfo=UTC)
    rows = [
        (n, f"event {n}", kind, "COMPLETED", json.dumps(payload), metadata and json.dumps(metadata), ended, n, n)
        for n, (payload, metadata) in enumerate(events, first)
    ]
    lake.append(lake.spark.createDataFrame(rows, SEEDED), EVENTS)


def test_an_inferred_table_grows_and_widens_with_its_events(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.create(EVENTS)
    first = {"order": 1, "total": 5, "customer": {"name": "Ada"}}
    add_events(lake, 1, "order.placed", (first, None), ({"order": 2}, None))
    assert update_table(lake, ORDERS, seen=None) == 2
    assert payload_types(lake) == {"customer": "struct<name:string>", "order": "bigint", "total": "bigint"}
    second = {"order": 3, "customer": {"name": "Bob", "vip": True}, "items": [{"sku": "x"}]}
    add_events(lake, 3, "order.placed", (second, None), ({"order": "four"}, None), ([5], None))
    assert update_table(lake, ORDERS, seen=2) == 3
    grown = {
        "customer": "struct<name:string,vip:boolean>",
        "order": "bigint",
        "total": "bigint",
        "items": "array<struct<sku:string>>",
    }
    assert payload_types(lake) == grown
    refused = ["Expected `int | null`, got `str` - at `$.order`", "Expected `object`, got `array`"]
    assert reasons(lake) == refused
    monkeypatch.setattr("durabus.pipeline.tables.FEW_BYTES", -1)  # Spark's workers decode, not the driver
    add_events(lake, 6, "order.placed", ({"order": 6, "total": 2.5}, None))
    assert update_table(lake, ORDERS, seen=5) == 6  # a rebuild
    assert (payload_types(lake), reasons(lake)) == (grown | {"total": "double"}, refused)
    found = {row["order"]: row for row in lake.read(TABLE).collect()}
    assert sorted(found) == [1, 2, 3, 6]
    assert (found[1]["total"], found[6]["durabus_status"]) == (5.0, "COMPLETED")
    assert found[3]["customer"].asDict() == {"name": "Bob", "vip": True}


@dataclass
class Line:
    sku: str
    due: date | None = None


@dataclass
class Order:
    order: int
    total: Annotated[Decimal, pa.decimal128(8, 2)]
    placed: datetime
    due: date | None = None
    first: Line | None = None
    lines: list[Line] | None = None
    prices: dict[str, Annotated[Decimal, pa.decimal128(8, 2)]] | None = None


@dataclass
class RicherOrder(Order):
    coupon: str | None = None


LAMP = {"sku": "lamp", "due": date(2026, 12, 24)}
NESTED = {
    "due": date(2026, 12, 31),
    "first": LAMP,
    "lines": [LAMP, {"sku": "bulb", "due": None}],
    "prices": {"lamp": Decimal("17.90"), "bulb": Decimal("2.00")},
}


def nested_columns(row: Row) -> dict[str, object]:
    values = row.asDict(recursive=True)
    return {name: values[name] for name in NESTED}


async def test_a_run_fills_declared_tables_and_follows_a_changed_declaration(
    lake: Lake, url: str, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"sku": "lamp", "due": "2026-12-24"}, {"sku": "bulb"}]
    nested = {"due": "2026-12-31", "first": lines[0], "lines": lines, "prices": {"lamp": "17.90", "bulb": "2"}}
    good = {"order": 1, "total": "19.90", "placed": "2026-11-18T10:00:00Z", "coupon": "X", **nested}
    await history.publish("order.placed", good)
    await history.publish("order.placed", {"order": 2, "total": "0.005", "placed": "2026-11-18T10:00:00Z"})
    await history.publish("payment.taken", {"order": 1})
    await history.publish("payment-taken", {"order": 1})
    declared = [EventTable("order.placed", Order), EventTable("payment.taken", name="payments")]
    Pipeline(lake, url).run(PipelinePart.ARCHIVE)
    Pipeline(lake, url, declared).run(PipelinePart.PROJECT)
    (row,) = lake.read(TABLE).collect()
    assert (row["order"], row["total"], row["durabus_status"]) == (1, Decimal("19.90"), "PENDING")
    assert row["placed"].astimezone(UTC) == datetime(2026, 11, 18, 10, tzinfo=UTC)
    assert nested_columns(row) == NESTED
    (reason,) = reasons(lake)
    assert reason.startswith("Rescaling Decimal value would cause data loss - at `$.total`")
    assert payload_types(lake, "silver.payments") == {"order": "bigint"}
    newest = lake.value("bronze.event_log", "max(seq)")
    assert {watermarks(lake)[name, None] for name in (TABLE, "silver.payments")} == {newest}
    monkeypatch.setattr("durabus.pipeline.tables.FEW_BYTES", -1)  # Spark's workers decode, not the driver
    richer = EventTable("order.placed", RicherOrder)
    assert update_table(lake, richer, seen=newest) == 2
    (row,) = lake.read(TABLE).collect()
    assert row["coupon"] == "X"
    assert nested_columns(row) == NESTED
    changed = {**good, "lines": [], "prices": {"lamp": "16.90"}, "first": None}
    add_events(lake, 9, "order.placed", ({**changed, "order": 9}, None), ({**changed, "due": "31.12."}, None))
    assert update_table(lake, richer, seen=newest) == 2
    old, new = sorted(lake.read(TABLE).collect(), key=lambda one: one["order"])
    assert nested_columns(old) == NESTED
    assert nested_columns(new) == {**NESTED, "first": None, "lines": [], "prices": {"lamp": Decimal("16.90")}}
    assert reasons(lake)[0] == "Invalid RFC3339 encoded date - at `$.due`"
    with pytest.raises(ConfigurationError, match=r"'payment-taken' and 'payment\.taken' would both"):
        tables_of_types(lake, [EventTable("payment.*"), EventTable("*")])


def test_tables_and_projections_see_older_versions_upcasted(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durabus.model.upcasting._UPCASTERS", {})
    lake.create(EVENTS)
    add_events(lake, 1, "customer.joined", ({"name": "Ada"}, None), ({"first": "Bob"}, {"schema_version": 2}))
    customers = EventTable("customer.joined")
    key = {"first": "get_json_object(payload, '$.first')"}
    joined = Projection(name="joined", key=key, sql="SELECT first, count(*) AS n FROM {events} GROUP BY first")
    before = customers.fingerprint, joined.fingerprint

    @upcast("customer.joined", 1, 2)
    def rename(payload: dict[str, str]) -> dict[str, str]:
        return {"first": payload["name"]}

    assert customers.fingerprint != before[0]
    assert joined.fingerprint != before[1]
    assert rebuild(lake, "joined", [joined]) == 2
    assert sorted(row["first"] for row in lake.read("gold.joined_v1").collect()) == ["Ada", "Bob"]
    add_events(lake, 3, "customer.joined", ({"nickname": "Cy"}, None))
    assert update_table(lake, customers, seen=None) == 3
    assert sorted(row["first"] for row in lake.read("silver.customer_joined").collect()) == ["Ada", "Bob"]
    assert reasons(lake) == ["the upcaster from version 1 to 2 failed: KeyError: 'name'"]
    with pytest.raises(SPARK_ERRORS, match=r"of type customer\.joined: the upcaster from version 1 to 2 failed"):
        rebuild(lake, "joined", [joined])


def test_names_that_cannot_be_tables_or_columns_are_refused(lake: Lake) -> None:
    assert EventTable("Order.line-item:added").table == "silver.order_line_item_added"
    for event_type, told in {
        "events": "silver.events is a table of durabus: choose a name=",
        "quarantine": "silver.quarantine is a table of durabus",
        "bestellung.geprüft": "'bestellung_geprüft' cannot be the name of a table: give one with name=",
        "7up": "'7up' cannot be the name of a table",
    }.items():
        with pytest.raises(ConfigurationError, match=told):
            EventTable(event_type)
    with pytest.raises(ConfigurationError, match="a pattern has several tables"):
        EventTable("order.*", Order)
    for field in ("two words", "durabus_id", "ORDER"):
        properties = {name: {"type": "string"} for name in ("order", field)}
        with pytest.raises(ConfigurationError, match=f"the field '{field}' cannot be a column"):
            EventTable("order.placed", {"type": "object", "properties": properties})
    with pytest.raises(ConfigurationError, match=r"'a\.b' and 'a-b' would both be silver\.a_b"):
        tables_of_types(lake, [EventTable("a.b"), EventTable("a-b")])

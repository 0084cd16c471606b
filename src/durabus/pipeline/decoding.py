"""Decodes JSON payloads into typed columns, strictly: a value that does not fit is never converted silently."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # it ships no types

from durabus.pipeline.declared import JSON_TEXT

REASON = "reason"
"""The column that says why a payload does not fit; NULL if it fits."""

_PLAIN: dict[pa.DataType, Any] = {
    pa.string(): str,
    pa.bool_(): bool,
    pa.int64(): Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)],
    pa.float64(): float,
    pa.date32(): date,
    pa.binary(): bytes,
}
_encode = msgspec.json.Encoder().encode
Convert = Callable[[Any], Any]


def decoded_type(field: pa.Field) -> Any:
    """Return the type for msgspec that decodes the values of a field. It refuses everything that does not fit."""
    kind = field.type
    if field.metadata == JSON_TEXT:
        made: Any = Any
    elif pa.types.is_struct(kind):
        made = _object_type(kind)
    elif pa.types.is_list(kind):
        made = list[decoded_type(kind.value_field)]  # type: ignore[misc]
    elif pa.types.is_map(kind):
        made = dict[str, decoded_type(kind.item_field)]  # type: ignore[misc]
    elif pa.types.is_decimal(kind):
        made = Decimal
    elif pa.types.is_timestamp(kind):
        made = datetime
    else:
        made = _PLAIN[kind]
    return made | None if field.nullable and made is not Any else made


def _object_type(fields: Iterable[pa.Field]) -> Any:
    hints = {one.name: decoded_type(one) for one in fields}
    optional = {one.name: NotRequired[hints[one.name]] for one in fields if one.nullable}
    return TypedDict("object", hints | optional)  # type: ignore[operator]


def _conversion(field: pa.Field) -> Convert | None:
    """Return the function from a decoded value to a value for Arrow; None if they are the same."""
    kind = field.type
    if field.metadata == JSON_TEXT:
        return lambda value: None if value is None else _encode(value).decode()
    if pa.types.is_struct(kind):
        parts = {one.name: made for one in kind if (made := _conversion(one)) is not None}
        return partial(_convert_object, parts) if parts else None
    if pa.types.is_list(kind) and (made := _conversion(kind.value_field)) is not None:
        return partial(_convert_list, made)
    if pa.types.is_map(kind):
        return partial(_convert_map, _conversion(kind.item_field))
    return None


def _convert_object(parts: dict[str, Convert], value: Any) -> Any:
    return value and value | {name: made(value[name]) for name, made in parts.items() if name in value}


def _convert_list(made: Convert, value: Any) -> Any:
    return value and [made(one) for one in value]


def _convert_map(made: Convert | None, value: Any) -> Any:
    return value and [(key, one if made is None else made(one)) for key, one in value.items()]


def with_nulls(columns: pa.Schema) -> pa.Schema:
    """Return the same columns, in which every value may be NULL, as in a table: its older rows lack new fields."""
    return pa.schema([one.with_type(_nullable(one.type)).with_nullable(True) for one in columns])


def _nullable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(_nullable(one.type)).with_nullable(True) for one in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _nullable(kind.value_type), metadata=kind.value_field.metadata))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, pa.field("value", _nullable(kind.item_type), metadata=kind.item_field.metadata))
    return kind


class PayloadDecoder:
    """Decodes the payloads of one table."""

    def __init__(self, columns: pa.Schema) -> None:
        self._columns = with_nulls(columns)
        self._decoder: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(_object_type(columns))
        self._conversions = [_conversion(one) for one in columns]

    def arrays(self, payloads: Sequence[str | bytes]) -> tuple[list[pa.Array], list[str | None]]:
        """Return the columns of these payloads, and for each payload the reason why it does not fit.

        All columns of a payload that does not fit are NULL.
        """
        rows: list[dict[str, Any]] = []
        reasons: list[str | None] = []
        for payload in payloads:
            try:
                rows.append(self._decoder.decode(payload))
                reasons.append(None)
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                rows.append({})
                reasons.append(str(error))
        made = []
        for field, convert in zip(self._columns, self._conversions, strict=True):
            values = [row.get(field.name) for row in rows]
            array, unfit = _array([*map(convert, values)] if convert else values, field)
            made.append(array)
            for n, reason in unfit.items():
                reasons[n] = reasons[n] or reason
        refused = pa.array([reason is not None for reason in reasons])
        return [pc.if_else(refused, pa.scalar(None, array.type), array) for array in made], reasons


def _array(values: list[Any], field: pa.Field) -> tuple[pa.Array, dict[int, str]]:
    """Return the values as Arrow, and the reason of each that does not fit, such as a decimal with too many digits."""
    try:
        return pa.array(values, field.type), {}
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        unfit = {}
        for n, value in enumerate(values):
            try:
                pa.array([value], field.type)
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                unfit[n] = f"{error} - at `$.{field.name}`, which is {field.type}"
        kept = [None if n in unfit else value for n, value in enumerate(values)]
        return pa.array(kept, field.type), unfit


def decode_batches(batches: Iterable[pa.RecordBatch], columns: pa.Schema, payload: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches with the decoded columns of the column ``payload``, and ``REASON``, for ``mapInArrow``."""
    decoder = PayloadDecoder(columns)
    for batch in batches:
        arrays, reasons = decoder.arrays(batch.column(payload).to_pylist())
        names = [*batch.schema.names, *columns.names, REASON]
        yield pa.RecordBatch.from_arrays([*batch.columns, *arrays, pa.array(reasons, pa.string())], names)

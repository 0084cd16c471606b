"""Turns a declared schema of a payload into columns: of a class with typed fields, or of a JSON Schema.

::

    Python                              JSON Schema                        column
    str, UUID, Enum of str, Literal     string                             STRING
    int, bool, float                    integer, boolean, number           BIGINT, BOOLEAN, DOUBLE
    Decimal                             string, format decimal             DECIMAL(38,18), or as declared
    datetime, date                      string, format date-time, date     TIMESTAMP, DATE
    bytes                               string, contentEncoding base64     BINARY
    list, tuple[X, ...], set            array                              ARRAY
    dict[str, X]                        object with additionalProperties   MAP
    a model, dataclass, Struct          object with properties             STRUCT
    Any, unions of several types        everything else                    STRING with the JSON text

An Arrow type in ``Annotated`` is used as it is: ``Annotated[Decimal, pa.decimal128(12, 2)]``. So are ``max_digits`` and
``decimal_places`` of pydantic. A field without a default is required.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import uuid
from collections.abc import Collection, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import (
    Annotated,
    Any,
    Literal,
    NewType,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types

from durabus.errors import ConfigurationError

JSON_TEXT = {b"durabus": b"json"}
"""The metadata of a field whose column has the JSON text of any value."""
DEEPEST = 20
INSTANT = pa.timestamp("us", tz="UTC")
_DIGITS = 38
_PLACES = 18

_PLAIN: dict[Any, pa.DataType] = {
    str: pa.string(),
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    Decimal: pa.decimal128(_DIGITS, _PLACES),
    datetime: INSTANT,
    date: pa.date32(),
    bytes: pa.binary(),
    uuid.UUID: pa.string(),
    time: pa.string(),
    timedelta: pa.string(),
}


def declared_columns(schema: Any) -> pa.Schema:
    """Return the columns of a declared schema. Raises ``ConfigurationError`` if it does not describe an object."""
    made = _from_json_schema(schema, schema) if isinstance(schema, Mapping) else _from_hint(schema, (), 0)
    if made is None or not pa.types.is_struct(made.type):
        raise ConfigurationError(
            f"schema={schema!r}: must describe an object: a pydantic model, dataclass, msgspec Struct, TypedDict, or a "
            "JSON Schema with properties"
        )
    return pa.schema(list(made.type))


def _field(name: str, made: pa.Field | None, *, required: bool = False) -> pa.Field:
    """Return a field with this name. Without a type, it has the JSON text."""
    made = pa.field("", pa.string(), metadata=JSON_TEXT) if made is None else made
    return pa.field(name, made.type, nullable=made.nullable or not required, metadata=made.metadata)


def _of(kind: pa.DataType | None, *, nullable: bool = False) -> pa.Field | None:
    return None if kind is None else pa.field("", kind, nullable=nullable)


def _from_hint(hint: Any, notes: tuple[Any, ...], depth: int) -> pa.Field | None:  # noqa: C901  (a switch)
    """Return the column of a Python type; None for any JSON. ``notes`` are those of ``Annotated`` or pydantic."""
    if depth > DEEPEST:
        raise ConfigurationError(f"a declared schema is nested deeper than {DEEPEST} levels, or contains itself")
    given = next((note for note in notes if isinstance(note, pa.DataType)), None)
    if given is not None:
        return _of(given)
    if isinstance(hint, NewType):
        return _from_hint(hint.__supertype__, notes, depth)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Required, NotRequired):
        return _from_hint(args[0], notes, depth)
    if origin is Annotated:
        return _from_hint(args[0], (*notes, *args[1:]), depth)
    if origin in (Union, types.UnionType):
        return _optional([_from_hint(one, notes, depth) for one in args if one is not type(None)], args)
    if origin is Literal:
        kinds = {type(value) for value in args}
        return _of(_PLAIN.get(kinds.pop())) if len(kinds) == 1 else None
    if hint is Decimal:
        return _of(_decimal(notes))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        kinds = {type(one.value) for one in hint}
        return _of(_PLAIN.get(kinds.pop())) if len(kinds) == 1 else None
    if hint in _PLAIN:
        return _of(_PLAIN[hint])
    fields = _fields(hint)
    if fields is not None:
        return _of(pa.struct([_field(n, _from_hint(t, m, depth + 1), required=r) for n, t, m, r in fields]))
    return _container(origin or hint, args, depth)


def _container(origin: Any, args: tuple[Any, ...], depth: int) -> pa.Field | None:
    if not isinstance(origin, type) or not args:
        return None
    if issubclass(origin, Mapping):
        return _of(pa.map_(pa.string(), _field("value", _from_hint(args[1], (), depth + 1))))
    if issubclass(origin, tuple) and (len(args) != 2 or args[1] is not ...):  # noqa: PLR2004  (tuple[X, ...])
        return None
    if issubclass(origin, Collection):
        return _of(pa.list_(_field("element", _from_hint(args[0], (), depth + 1))))
    return None


def _optional(kinds: list[pa.Field | None], args: tuple[Any, ...]) -> pa.Field | None:
    """Return the column of a union: of ``X | None``, or of an int and a float. Other unions are any JSON."""
    nullable = type(None) in args
    plain = [one.type for one in kinds if one is not None]
    if len(kinds) == len(plain) == 1:
        return _of(plain[0], nullable=nullable)
    if len(plain) == len(kinds) and set(plain) <= {pa.int64(), pa.float64()}:
        return _of(pa.float64(), nullable=nullable)
    return pa.field("", pa.string(), nullable=nullable, metadata=JSON_TEXT)


def _decimal(notes: tuple[Any, ...]) -> pa.DataType:
    """Return the type of a Decimal. pydantic's notes may name the number of digits and decimal places."""
    digits, places = (
        next((found for note in notes if (found := getattr(note, name, None)) is not None), default)
        for name, default in (("max_digits", _DIGITS), ("decimal_places", _PLACES))
    )
    return pa.decimal128(digits, min(places, digits))


def _fields(hint: Any) -> list[tuple[str, Any, tuple[Any, ...], bool]] | None:
    """Return name in the JSON, type, notes and whether it is required, for each field of a class; None: it has none."""
    if not isinstance(hint, type):
        return None
    model = getattr(hint, "model_fields", None)
    if model is not None:  # pydantic, which durabus does not need
        return [
            (one.serialization_alias or one.alias or name, one.annotation, tuple(one.metadata), one.is_required())
            for name, one in model.items()
        ]
    if issubclass(hint, msgspec.Struct):
        hints = get_type_hints(hint, include_extras=True)
        return [(one.encode_name, hints[one.name], (), one.required) for one in msgspec.structs.fields(hint)]
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint, include_extras=True)
        return [(one.name, hints[one.name], (), _is_required(one)) for one in dataclasses.fields(hint)]
    if is_typeddict(hint):
        hints = get_type_hints(hint, include_extras=True)
        required: frozenset[str] = vars(hint)["__required_keys__"]
        return [(name, kind, (), name in required) for name, kind in hints.items()]
    return None


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


_FORMATS = {
    "date-time": INSTANT,
    "date": pa.date32(),
    "decimal": pa.decimal128(_DIGITS, _PLACES),
    "binary": pa.binary(),
}
_JSON_TYPES = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}


def _from_json_schema(given: Any, root: Mapping[str, Any], depth: int = 0) -> pa.Field | None:
    """Return the column of a part of a JSON Schema; None for any JSON."""
    if depth > DEEPEST:
        raise ConfigurationError(f"a JSON Schema is nested deeper than {DEEPEST} levels, or contains itself")
    if not isinstance(given, Mapping):
        return None
    if "$ref" in given:
        return _from_json_schema(_resolved(given["$ref"], root), root, depth + 1)
    kinds = given.get("type")
    several = given.get("anyOf") or given.get("oneOf")
    if several is None and isinstance(kinds, list):
        several = [{**given, "type": kind} for kind in kinds]
    if several is not None:
        parts = [one for one in several if one.get("type") != "null"]
        args = (type(None),) if len(parts) < len(several) else ()
        return _optional([_from_json_schema(one, root, depth + 1) for one in parts], args)
    if kinds == "object" or (kinds is None and "properties" in given):
        return _json_object(given, root, depth)
    if kinds == "array":
        return _of(pa.list_(_field("element", _from_json_schema(given.get("items"), root, depth + 1))))
    if kinds == "string" and given.get("contentEncoding") == "base64":
        return _of(pa.binary())
    formats = _FORMATS if kinds == "string" else {}
    return _of(formats.get(given.get("format", ""), _JSON_TYPES.get(str(kinds))))


def _json_object(given: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> pa.Field | None:
    properties, required = given.get("properties"), given.get("required", ())
    if properties:
        made = {name: _from_json_schema(one, root, depth + 1) for name, one in properties.items()}
        return _of(pa.struct([_field(name, one, required=name in required) for name, one in made.items()]))
    values = given.get("additionalProperties")
    if isinstance(values, Mapping):
        return _of(pa.map_(pa.string(), _field("value", _from_json_schema(values, root, depth + 1))))
    return None


def _resolved(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    if not reference.startswith("#"):
        raise ConfigurationError(f"$ref={reference!r}: only references within the JSON Schema are possible")
    for part in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    if found is None:
        raise ConfigurationError(f"$ref={reference!r}: the JSON Schema has no such part")
    return found

"""Finds the columns of payloads for which the user has declared none.

Each path in a payload, such as ``items[].price``, gets the kind of value that the oldest event has there. Only numbers
widen: a path with whole and other numbers is DOUBLE. A payload with another kind at a path does not fit the table.
The result depends on the events alone, not on the order in which they are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types

from durabus.errors import PipelineError

FieldPath = tuple[str, ...]
"""The names of the fields that lead to a value. ``ELEMENT`` stands for all elements of a list."""
Kinds = dict[FieldPath, dict[str, int]]
"""The kinds of values at each path, each with the ``seq`` of the oldest event that has it."""

ELEMENT = "[]"
FOUND = pa.schema([("path", pa.string()), ("kind", pa.string()), ("seq", pa.int64())])
"""The columns of ``find_kinds``."""
MOST = 1_000
"""Maximum number of paths of a table. A payload with changing keys needs a declared schema with a map."""
DEEPEST_PATH = 20
ODD = re.compile(r"[ ,;{}()\n\t=.`]")
"""Characters that Delta refuses in the name of a column, or that make it hard to use."""
RESERVED = "durabus_"
"""The columns of the event itself begin with this."""
_SCALARS: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
}
_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array"}


def kinds_of(payloads: Iterable[tuple[int, str]]) -> Kinds:
    """Return the kinds of pairs of ``seq`` and payload. A payload that is no object is left out."""
    kinds: Kinds = {}
    for seq, payload in payloads:
        try:
            value = msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
        if isinstance(value, dict):
            _note(kinds, (), value, seq)
    return kinds


def _note(kinds: Kinds, path: FieldPath, value: Any, seq: int) -> None:
    if value is None or len(path) > DEEPEST_PATH:
        return
    at = kinds.setdefault(path, {})
    name = _NAMES[type(value)]
    at[name] = min(seq, at.get(name, seq))
    if isinstance(value, dict):
        for key, one in value.items():
            if key and not ODD.search(key) and (path or not key.lower().startswith(RESERVED)):
                _note(kinds, (*path, key), one, seq)
    elif isinstance(value, list):
        for one in value:
            _note(kinds, (*path, ELEMENT), one, seq)


def find_kinds(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the kinds of batches with the columns ``seq`` and ``payload`` as rows of ``FOUND``, for ``mapInArrow``."""
    for batch in batches:
        found = kinds_of(zip(batch.column("seq").to_pylist(), batch.column("payload").to_pylist(), strict=True))
        rows = [
            {"path": msgspec.json.encode(path).decode(), "kind": kind, "seq": seq}
            for path, at in found.items()
            for kind, seq in at.items()
        ]
        yield pa.RecordBatch.from_pylist(rows, FOUND)


def merged_kinds(rows: Iterable[Mapping[str, Any]], columns: pa.Schema | None = None) -> Kinds:
    """Return the kinds of rows of ``FOUND``. The kinds of existing columns are older than all events."""
    kinds: Kinds = {}
    for row in rows:
        at = kinds.setdefault(tuple(msgspec.json.decode(row["path"])), {})
        at[row["kind"]] = min(row["seq"], at.get(row["kind"], row["seq"]))
    if columns is not None:
        _note_columns(kinds, (), pa.struct(list(columns)), count(-2 * MOST))
    return kinds


def _note_columns(kinds: Kinds, path: FieldPath, kind: pa.DataType, seqs: Iterator[int]) -> None:
    """Note the kinds of existing columns. Their numbers keep the order of the columns."""
    at, seq = kinds.setdefault(path, {}), next(seqs)
    if pa.types.is_struct(kind):
        at["object"] = seq
        for one in kind:
            _note_columns(kinds, (*path, one.name), one.type, seqs)
    elif pa.types.is_list(kind):
        at["array"] = seq
        _note_columns(kinds, (*path, ELEMENT), kind.value_type, seqs)
    else:
        at[next(name for name, scalar in _SCALARS.items() if scalar == kind)] = seq


def inferred_columns(kinds: Kinds) -> pa.Schema:
    """Return the columns for these kinds. Places that were always null or empty have none yet."""
    if len(kinds) > MOST:
        raise PipelineError(
            f"the payloads have more than {MOST:,} different fields: declare a schema, with dict[str, …] for objects "
            "whose keys change"
        )
    # The oldest field comes first: new fields are added at the end.
    ordered = sorted(kinds, key=lambda path: (min(kinds[path].values()), path))
    children: dict[FieldPath, list[FieldPath]] = {}
    for path in ordered:
        if path:
            children.setdefault(path[:-1], []).append(path)
    made = _type_at((), kinds, children)
    return pa.schema([]) if made is None else pa.schema(list(made))


def _type_at(path: FieldPath, kinds: Kinds, children: Mapping[FieldPath, list[FieldPath]]) -> pa.DataType | None:
    at = kinds.get(path, {})
    oldest = min(at, key=lambda kind: (at[kind], kind), default="")
    if oldest == "object":
        fields: dict[str, pa.Field] = {}
        for one in children.get(path, ()):
            kind = None if one[-1] == ELEMENT else _type_at(one, kinds, children)
            if kind is not None:  # Spark does not tell Name and name apart: the older one gets the column
                fields.setdefault(one[-1].lower(), pa.field(one[-1], kind))
        return pa.struct(list(fields.values())) if fields else None
    if oldest == "array":
        kind = _type_at((*path, ELEMENT), kinds, children)
        return None if kind is None else pa.list_(pa.field("element", kind))
    if oldest == "integer" and "number" in at:
        return _SCALARS["number"]
    return _SCALARS.get(oldest)


def extends(new: pa.DataType, old: pa.DataType) -> bool:
    """Return whether a type differs from an older one at most by further fields."""
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        names = {one.name for one in new}
        return all(one.name in names and extends(new.field(one.name).type, one.type) for one in old)
    if pa.types.is_list(old) and pa.types.is_list(new):
        return extends(new.value_type, old.value_type)
    return bool(new == old)

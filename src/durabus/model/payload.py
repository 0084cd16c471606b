"""Encode payloads as JSON and decode them. A value that JSON would change is refused, never converted silently."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any, NoReturn, TypeVar

import msgspec

from durabus.errors import InvalidPayloadError, PayloadDecodeError
from durabus.model.limits import MAX_DEPTH, MAX_PAYLOAD_BYTES

T = TypeVar("T")

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_PLAIN = frozenset({str, bool, type(None)})
_NESTED = frozenset({dict, list, tuple})
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1


def encode_payload(value: Any, what: str = "payload", *, limit: int = MAX_PAYLOAD_BYTES) -> str:
    """Return ``value`` as JSON text. Raises ``InvalidPayloadError``, which names the place of the problem.

    A value is plain JSON, or a dataclass, msgspec struct or pydantic model made of plain JSON. NaN, infinities, bytes,
    keys that are not strings, integers beyond 64 bits, cycles and anything over ``limit`` bytes are refused.
    """
    plain = value if type(value) is dict else _to_plain(value, what)
    _check(plain, what, 0)
    try:
        text = _ENCODER.encode(plain)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidPayloadError(f"{what} is not JSON-serialisable: {error}") from error
    if len(text) > limit:
        raise InvalidPayloadError(
            f"{what} has {len(text):,} bytes as JSON, the limit is {limit:,}: "
            "store the large part elsewhere and publish a reference to it"
        )
    return text.decode()


def decode_payload(text: str) -> Any:
    """Return the plain JSON value that ``text`` encodes."""
    try:
        return _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise PayloadDecodeError(f"stored JSON does not decode: {error}") from error


def decode_as(text: str, wanted: type[T]) -> T:
    """Decode ``text`` as ``wanted``: a dataclass, msgspec struct, pydantic model, TypedDict or plain type."""
    try:
        from_json: Callable[[str], T] | None = getattr(wanted, "model_validate_json", None)
        if from_json is not None:
            return from_json(text)
        return msgspec.json.decode(text, type=wanted)
    except (ValueError, TypeError, RecursionError) as error:
        raise PayloadDecodeError(f"payload does not decode as {wanted!r}: {error}") from error


def _to_plain(value: Any, what: str) -> Any:
    if type(value) in (dict, list, str, int, float, bool, type(None)):
        return value
    try:
        if hasattr(value, "model_dump"):
            _check_numbers(value.model_dump(), what)  # pydantic writes null for a NaN in a field of type Any
            return value.model_dump(mode="json")
        if not (is_dataclass(value) or isinstance(value, msgspec.Struct | Mapping | tuple)):
            return value
        # bytes stay bytes, so that the check below refuses them: msgspec would turn them into base64 silently
        return msgspec.to_builtins(value, builtin_types=(bytes, bytearray, memoryview))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidPayloadError(f"{what} of type {type(value).__name__} is not JSON-serialisable: {error}") from error


def _check_numbers(value: Any, where: str) -> None:
    if type(value) is float and not math.isfinite(value):
        raise InvalidPayloadError(f"{where}: {value} is not a JSON number")
    if isinstance(value, dict):
        for key, item in value.items():
            _check_numbers(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for item in value:
            _check_numbers(item, where)


def _check(value: Any, where: str, depth: int) -> None:  # noqa: C901  (one flat switch, on the hot path)
    kind = type(value)
    if kind in _PLAIN:
        return
    if depth >= MAX_DEPTH and kind in _NESTED:
        raise InvalidPayloadError(f"{where}: nested deeper than {MAX_DEPTH} levels, or contains itself")
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                shown = "" if isinstance(key, int) else f" {key!r}"  # an int may be too long to print
                raise InvalidPayloadError(f"{where}: key{shown} is {type(key).__name__}, JSON keys are strings")
            if type(item) not in _PLAIN and not (type(item) is int and _INT_MIN <= item <= _INT_MAX):
                _check(item, f"{where}.{key}", depth + 1)
    elif kind in _NESTED:
        for item in value:
            if type(item) not in _PLAIN:
                _check(item, where, depth + 1)
    elif not (kind is int and _INT_MIN <= value <= _INT_MAX) and not (kind is float and math.isfinite(value)):
        _refuse(value, where)


def _refuse(value: Any, where: str) -> NoReturn:
    kind = type(value)
    if kind is int:
        shown = value if value.bit_length() <= 256 else f"an integer of {value.bit_length()} bits"  # noqa: PLR2004
        raise InvalidPayloadError(f"{where}: {shown} does not fit 64 bits: send it as a string")
    if kind is float:
        raise InvalidPayloadError(f"{where}: {value} is not a JSON number")
    raise InvalidPayloadError(
        f"{where}: {kind.__name__} is not JSON-serialisable; convert it first (str, isoformat, base64, …)"
    )

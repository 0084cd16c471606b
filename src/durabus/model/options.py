"""Options that a caller gives as a whole value, or as a mapping with some of its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from durabus.errors import ConfigurationError

Value = TypeVar("Value", bound=msgspec.Struct)


def replace_fields(value: Value, override: Value | Mapping[str, Any], option: str) -> Value:
    """Return ``override`` if it is a whole value, else ``value`` after replacing the fields that ``override`` names."""
    if isinstance(override, type(value)):
        return override
    if not isinstance(override, Mapping):
        kind = type(value).__name__
        raise ConfigurationError(f"{option}={override!r}: must be a {kind}, or a mapping with some of its fields")
    unknown = set(override) - set(value.__struct_fields__)
    if unknown:
        raise ConfigurationError(
            f"{option}={dict(override)!r}: no such option {sorted(unknown)}; there are {list(value.__struct_fields__)}"
        )
    return msgspec.structs.replace(value, **override)

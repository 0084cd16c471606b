"""For schemathesis: two rules that JSON Schema cannot say. Whole numbers have 64 bits, and no point."""

from typing import Any

import schemathesis

LIMIT = 2**63


@schemathesis.hook
def filter_body(_context: schemathesis.HookContext, body: Any) -> bool:
    return fits(body)


@schemathesis.hook
def map_body(_context: schemathesis.HookContext, body: Any) -> Any:
    return without_points(body)


def fits(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(fits, value.values()))
    if isinstance(value, list):
        return all(map(fits, value))
    return not isinstance(value, int | float) or -LIMIT <= value < LIMIT or not float(value).is_integer()


def without_points(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_points(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_points(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value

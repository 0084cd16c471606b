"""For schemathesis: rules that JSON Schema cannot say.

Whole numbers have 64 bits, and no point. An event is due before it expires, and has one of ``delay`` and ``at``.
"""

from typing import Any

import schemathesis

LIMIT = 2**63


@schemathesis.hook
def filter_body(_context: schemathesis.HookContext, body: Any) -> bool:
    return fits(body)


@schemathesis.hook
def map_body(_context: schemathesis.HookContext, body: Any) -> Any:
    return with_one_time(without_points(body))


def with_one_time(body: Any) -> Any:
    """Leave one of the times of each event: they may contradict each other, or the clock."""
    if not isinstance(body, dict):
        return body
    if isinstance(body.get("events"), list):
        return {**body, "events": [with_one_time(event) for event in body["events"]]}
    times = [name for name in ("delay", "at", "expires") if body.get(name)]
    dropped = set(times[1:]) | {name for name in ("at", "expires") if is_far(body.get(name))}
    return {name: value for name, value in body.items() if name not in dropped}


def is_far(time: Any) -> bool:
    """Whether this is an instant that may lie in the past, or beyond the limit of a hundred years."""
    return isinstance(time, str) and not "2098" < time[:4] < "2120"


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

"""For schemathesis: rules that JSON Schema cannot say.

Whole numbers have 64 bits, and no point. An event is due before it expires, and has one of ``delay`` and ``at``. A
schedule has one of ``cron`` and ``every``, and a time zone that exists. For Python, a number such as ``²`` is a word
character.
"""

import unicodedata
from typing import Any
from urllib.parse import unquote

import schemathesis

from durabus.model.limits import MAX_NAME_CHARS
from durabus.schedules.timing import MAX_CRON_CHARS

LIMIT = 2**63


@schemathesis.hook
def filter_body(_context: schemathesis.HookContext, body: Any) -> bool:
    return fits(body)


@schemathesis.hook
def filter_path_parameters(_context: schemathesis.HookContext, path_parameters: Any) -> bool:
    text = "".join(unquote(str(value)) for value in (path_parameters or {}).values())
    return "No" not in map(unicodedata.category, text)


@schemathesis.hook
def map_body(_context: schemathesis.HookContext, body: Any) -> Any:
    return with_one_time(without_points(body))


@schemathesis.hook
def before_call(_context: schemathesis.HookContext, case: schemathesis.Case[Any], _kwargs: dict[str, Any]) -> None:
    """Examples of the document of the API come here alone, and not to ``map_body``."""
    if case.operation.path == "/schedules/{name}":
        case.body = with_one_rhythm(case.body)


def with_one_rhythm(body: Any) -> Any:
    """Give a schedule a rhythm and a time zone that exist. What the document of the API refuses stays as it is."""
    if not isinstance(body, dict):
        return body
    cron, every, zone = (body.get(name) for name in ("cron", "every", "tz"))
    changed: dict[str, Any] = {}
    if isinstance(cron, str) and len(cron) <= MAX_CRON_CHARS:
        changed["cron"] = "*/5 * * * *" if every is None else None
    elif cron is None and every is None:
        changed["every"] = 30
    if isinstance(zone, str) and len(zone) <= MAX_NAME_CHARS:
        changed["tz"] = "Europe/Oslo"
    if body.get("catch_up") == "all" and body.get("overlap", "skip") == "skip":
        changed["overlap"] = "parallel"
    return {**body, **changed}


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

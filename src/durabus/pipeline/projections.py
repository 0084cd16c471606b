"""Projections over events: declared once, updated by every run, and rebuilt on request."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own habit)

from durabus.errors import ConfigurationError
from durabus.model.pattern import ANY, check_pattern, matches
from durabus.model.upcasting import upcasted_types, upcasters_of

Build = Callable[[DataFrame], DataFrame]

_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Projection(msgspec.Struct, frozen=True, kw_only=True):
    """A table made of events, one row per key.

    - ``key``: the columns of the table's key, each with its SQL expression over ``silver.events``. The input of
      ``build`` has these columns. Events with a NULL in one of them are left out.
    - ``types``: patterns of the event types that it uses.
    - ``live``: whether it uses an event from its publishing on, with the status of that time. Otherwise it uses ended
      events only.
    - ``build`` (DataFrame -> DataFrame) or ``sql`` (a SELECT over ``{events}``) computes the rows. A row must depend
      only on the events of its key: then an update of the changed keys gives the same table as a rebuild.
    - A new ``version`` is built beside the old table and takes over its name when it is complete. A changed formula
      with the same version replaces the table in one commit.
    """

    name: str
    key: Mapping[str, str]
    build: Build | None = None
    sql: str | None = None
    types: tuple[str, ...] = (ANY,)
    live: bool = False
    version: int = 1

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or re.search(r"_v\d+$", self.name):
            raise ConfigurationError(
                f"projection name={self.name!r}: must be small letters, digits and _, and not end in _v and a number"
            )
        if self.version < 1:
            raise ConfigurationError(f"projection {self.name}: version={self.version}: must be 1 or more")
        if (self.build is None) == (self.sql is None):
            raise ConfigurationError(f"projection {self.name}: give either build= or sql=")
        if not self.key:
            raise ConfigurationError(f"projection {self.name}: key is empty: name the columns that identify a row")
        for pattern in self.types:
            check_pattern(pattern)

    @property
    def table(self) -> str:
        """The name of its table."""
        return f"gold.{self.name}_v{self.version}"

    @property
    def fingerprint(self) -> str:
        """A hash of what computes the rows: key, types, ``live``, the SQL or the source of ``build``, and upcasters."""
        formula = self.sql if self.build is None else source_of(self.build)
        parts = (sorted(self.key.items()), self.types, self.live, formula, upcasting_source(self.types))
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def rows(self, events: DataFrame) -> DataFrame:
        """Return the rows for these events."""
        if self.build is not None:
            return self.build(events)
        return events.sparkSession.sql(self.sql or "", args=None, events=events)


def upcasting_source(types: Sequence[str]) -> str:
    """Return the text of the upcasters of the event types that match one of these patterns."""
    return repr(
        [
            (one, version, step.to, source_of(step.function))
            for one in upcasted_types()
            if any(matches(pattern, one) for pattern in types)
            for version, step in sorted(upcasters_of(one).items())
        ]
    )


def source_of(function: Callable[..., Any], seen: frozenset[str] = frozenset()) -> str:
    """Return the text of a function, of the values that it takes from outside, and of functions of its own module.

    A function without a source file is described by its bytecode.
    """
    function = inspect.unwrap(function)
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    if name in seen or not inspect.isfunction(function):
        return name
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        text = f"{function.__code__.co_code!r} {function.__code__.co_consts!r}"
    outside = inspect.getclosurevars(function)
    used = sorted({**outside.globals, **outside.nonlocals}.items())
    return "\n".join([text, *(f"{key} = {_value_of(value, function, seen | {name})}" for key, value in used)])


def _value_of(value: Any, function: Callable[..., Any], seen: frozenset[str]) -> str:
    if inspect.isfunction(value) and value.__module__ == function.__module__:
        return source_of(value, seen)
    # The text of other objects may contain an address, which differs in every process.
    plain = isinstance(value, str | int | float | bool | bytes | tuple | list | dict | None)
    return repr(value) if plain and " at 0x" not in repr(value) else type(value).__qualname__


def of_types(types: tuple[str, ...]) -> Column:
    """Return the condition that an event's type matches one of these patterns. Spark can push it down."""
    if ANY in types:
        return F.lit(True)
    exact = [pattern for pattern in types if ANY not in pattern]
    condition = F.col("type").isin(exact)
    for pattern in types:
        if ANY in pattern:
            parts = "[.]".join("[^.]+" if part == ANY else re.escape(part) for part in pattern.split("."))
            condition = condition | F.col("type").rlike(f"^{parts}$")
    return condition


def hourly_counters(**options: Any) -> Projection:
    """Return a projection that counts events per type and hour of publishing, with their results and durations."""

    def build(events: DataFrame) -> DataFrame:
        return events.groupBy("bus", "type", "hour").agg(
            F.count("*").alias("events"),
            F.count_if(F.col("status") == "COMPLETED").alias("completed"),
            F.count_if(F.col("status").isin("FAILED", "COMPLETED_WITH_ERRORS")).alias("dead"),
            F.count_if(F.col("status") == "CANCELLED").alias("cancelled"),
            F.count_if(F.col("attempts") > 1).alias("retried"),
            F.sum("claims").alias("claims"),
            F.min("end_to_end_ms").alias("fastest_ms"),
            F.max("end_to_end_ms").alias("slowest_ms"),
        )

    key = {"bus": "bus", "type": "type", "hour": "date_trunc('HOUR', published_at)"}
    return Projection(name="hourly_counters", key=key, build=build, **options)


def latest_state(entity: str, **options: Any) -> Projection:
    """Return a projection of the newest event of each entity. ``entity`` is the field of the payload that names it."""

    def build(events: DataFrame) -> DataFrame:
        newest = F.max(F.struct("first_seq", "type", "status", "event_id", "published_at", "payload")).alias("newest")
        return (
            events.groupBy(entity)
            .agg(newest, F.count("*").alias("events"))
            .select(
                entity,
                *(
                    F.col(f"newest.{name}").alias(name)
                    for name in ("type", "status", "event_id", "published_at", "payload")
                ),
                "events",
            )
        )

    options.setdefault("name", f"latest_{entity}")
    return Projection(key=_payload_key(entity), build=build, **options)


def journeys(entity: str, **options: Any) -> Projection:
    """Return a projection of the event types of each entity in order, and the time from each event to the next."""

    def build(events: DataFrame) -> DataFrame:
        step = F.struct("first_seq", "type", "published_at")
        ordered = events.groupBy(entity).agg(F.sort_array(F.collect_list(step)).alias("steps"))
        times = F.transform("steps", lambda one: F.unix_micros(one["published_at"]))
        return ordered.select(
            entity,
            F.transform("steps", lambda one: one["type"]).alias("path"),
            _between(times).alias("between_ms"),
            F.element_at("steps", 1)["published_at"].alias("began_at"),
            F.element_at("steps", -1)["published_at"].alias("last_at"),
            ((F.element_at(times, -1) - F.element_at(times, 1)) / 1000.0).alias("total_ms"),
        )

    options.setdefault("name", f"journeys_{entity}")
    return Projection(key=_payload_key(entity), build=build, **options)


def _between(times: Column) -> Column:
    """Return the differences between neighbours in an array of microseconds, in milliseconds."""
    count = F.size(times)
    pairs = F.arrays_zip(F.slice(times, 1, count - 1).alias("a"), F.slice(times, 2, count - 1).alias("b"))
    return F.transform(pairs, lambda pair: (pair["b"] - pair["a"]) / 1000.0)


def _payload_key(entity: str) -> dict[str, str]:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", entity):
        raise ConfigurationError(
            f"entity={entity!r}: must be the name of a field of the payload: letters, digits and _"
        )
    return {entity: f"get_json_object(payload, '$.{entity}')"}

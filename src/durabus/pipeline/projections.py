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

from durabus.errors import ConfigurationError, PipelineError
from durabus.model.pattern import ANY, check_pattern, matches
from durabus.model.upcasting import upcasted_types, upcasters_of
from durabus.pipeline.schema import EVENT_LOG, EVENTS

Build = Callable[..., DataFrame]
"""A function from one DataFrame for each input to the rows of a projection."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TABLE = re.compile(rf"{re.escape(EVENT_LOG.name)}|(silver|gold)\.[a-z][a-z0-9_]*")
_SEPARATORS = re.compile(r"[./]+")


class Projection(msgspec.Struct, frozen=True, kw_only=True):
    """A table made of other tables, with a key that identifies each row.

    - ``build`` (a function from one DataFrame for each input to a DataFrame) or ``sql`` (a SELECT over ``{events}``
      and the other inputs) computes the rows.
    - ``inputs``: the tables that it reads, in the order of the function's arguments: ``bronze.event_log``, tables of
      ``silver``, ``gold.NAME`` of another projection, and paths of Delta tables of your own. In SQL, an input is known
      by the last part of its name.
    - ``key``: the columns of the table's key. As a mapping, each has its SQL expression over ``silver.events``, and
      the run adds these columns to that input. Rows with a NULL in one of them are left out.
    - ``types``: patterns of the event types that it uses from ``silver.events``.
    - ``live``: whether it uses an event from its publishing on, with the status of that time. Otherwise it uses ended
      events only.
    - A new ``version`` is built beside the old table and takes over its name when it is complete. A changed formula
      with the same version replaces the table in one commit.

    ``durabus.pipeline.key_tracing`` says when an update computes only rows of changed keys.
    """

    name: str
    key: Mapping[str, str] | Sequence[str] | str
    build: Build | None = None
    sql: str | None = None
    inputs: Sequence[str] | str = (EVENTS.name,)
    types: tuple[str, ...] = (ANY,)
    live: bool = False
    version: int = 1

    def __post_init__(self) -> None:
        for field in ("key", "inputs"):
            given = getattr(self, field)
            if not isinstance(given, Mapping):
                msgspec.structs.force_setattr(self, field, (given,) if isinstance(given, str) else tuple(given))
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
        self._check_inputs()

    def _check_inputs(self) -> None:
        for one in self.inputs:
            if not is_own_table(one) and not _TABLE.fullmatch(one):
                raise ConfigurationError(
                    f"projection {self.name}: input {one!r}: must be {EVENT_LOG.name}, silver.TABLE, gold.PROJECTION, "
                    "or the path of a Delta table with a / in it"
                )
        if not self.inputs or len(set(self.aliases)) < len(self.aliases):
            raise ConfigurationError(
                f"projection {self.name}: inputs={list(self.inputs)}: must be one or more tables whose names differ in "
                "their last part"
            )
        of_events = self.live or self.types != (ANY,) or self.expressions
        if of_events and EVENTS.name not in self.inputs:
            raise ConfigurationError(
                f"projection {self.name}: types=, live= and expressions in key= are about {EVENTS.name}, which is not "
                "in inputs="
            )

    @property
    def table(self) -> str:
        """The name of its table."""
        return f"gold.{self.name}_v{self.version}"

    @property
    def expressions(self) -> Mapping[str, str]:
        """The SQL expressions over ``silver.events`` for columns of the key; empty if the formula computes the key."""
        return self.key if isinstance(self.key, Mapping) else {}

    @property
    def aliases(self) -> tuple[str, ...]:
        """The name of each input in the SQL."""
        return tuple(_SEPARATORS.split(one.rstrip("/"))[-1] for one in self.inputs)

    @property
    def fingerprint(self) -> str:
        """A hash of what computes the rows: key, inputs, types, ``live``, SQL or source of ``build``, upcasters.

        A projection that does not read ``silver.events`` does not depend on upcasters itself.
        """
        formula = self.sql if self.build is None else source_of(self.build)
        upcasters = upcasting_source(self.types) if EVENTS.name in self.inputs else ""
        key = sorted(self.key.items()) if isinstance(self.key, Mapping) else self.key
        parts = (key, self.inputs, self.types, self.live, formula, upcasters)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def rows(self, *inputs: DataFrame) -> DataFrame:
        """Return the rows for these inputs. Those without a key are left out."""
        made = self._made(inputs)
        absent = [name for name in self.key if name not in made.columns]
        if absent:
            raise PipelineError(f"its rows lack the key column {absent[0]}: select it, or take it out of key=")
        return made.dropna(subset=list(self.key))

    def _made(self, inputs: Sequence[DataFrame]) -> DataFrame:
        if self.build is None:
            named = dict(zip(self.aliases, inputs, strict=True))
            return inputs[0].sparkSession.sql(self.sql or "", args=None, **named)
        made = self.build(*inputs)
        if not hasattr(made, "sparkSession"):
            raise PipelineError(f"its function returned {type(made).__name__}: it must return a DataFrame")
        return made


def projection(
    *,
    key: Mapping[str, str] | Sequence[str] | str,
    inputs: Sequence[str] | str = (EVENTS.name,),
    **options: Any,
) -> Callable[[Build], Projection]:
    """Make a ``Projection`` of a function, which gets one DataFrame for each input. Its name is the function's name."""

    def declared(build: Build) -> Projection:
        return Projection(**{"name": build.__name__, **options}, key=key, inputs=inputs, build=build)

    return declared


def is_own_table(name: str) -> bool:
    """Return whether an input is a Delta table of the user, which is named by its path."""
    return "/" in name


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
        return events.groupBy(entity).agg(newest, F.count("*").alias("events")).select(entity, "newest.*", "events")

    options.setdefault("name", f"latest_{entity}")
    return Projection(key=_payload_key(entity), build=build, **options)


def journeys(entity: str, **options: Any) -> Projection:
    """Return a projection of the event types of each entity in order, and the time from each event to the next."""

    def build(events: DataFrame) -> DataFrame:
        step = F.struct("first_seq", "type", "published_at")
        ordered = events.groupBy(entity).agg(F.sort_array(F.collect_list(step)).alias("steps"))
        times = F.transform("steps", lambda one: F.unix_micros(one["published_at"]))
        return ordered.select(
            *(entity, "steps"),
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

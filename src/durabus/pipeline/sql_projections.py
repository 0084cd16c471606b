"""Reads projections from a folder of ``.sql`` files. Comments at the top of a file declare its projection.

::

    -- key: customer
    -- inputs: silver.order_placed, /data/rates
    SELECT customer, sum(total) AS spent FROM {order_placed} GROUP BY customer

The name of the file is the name of the projection. ``key`` is required; ``inputs``, ``types``, ``live`` (true or
false) and ``version`` are as in ``Projection``. Other comments are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from durabus.errors import ConfigurationError
from durabus.pipeline.projections import Projection

_FIELD = re.compile(r"--\s*([a-z]+)\s*:\s*(.*?)\s*")
_COMMENT = re.compile(r"\s*(--.*)?")


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("must be true or false")
    return text == "true"


_FIELDS: dict[str, Callable[[str], Any]] = {
    "key": _listed,
    "inputs": _listed,
    "types": _listed,
    "live": _truth,
    "version": int,
}


def read_sql_folder(folder: Path) -> list[Projection]:
    """Return the projections of the ``.sql`` files in a folder, or raise ``ConfigurationError`` for a bad one."""
    files = sorted(folder.glob("*.sql"))
    if not files:
        raise ConfigurationError(f"{folder} has no .sql file: put one projection into each, such as spent.sql")
    return [_read(file) for file in files]


def _read(file: Path) -> Projection:
    text = file.read_text(encoding="utf-8")
    fields: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not _COMMENT.fullmatch(line):
            break
        found = _FIELD.fullmatch(line.strip())
        if found is None or found[1] not in _FIELDS:
            continue
        if found[1] in fields:
            raise ConfigurationError(f"{file}, line {number}: {found[1]} is declared twice")
        try:
            fields[found[1]] = _FIELDS[found[1]](found[2])
        except ValueError as error:
            raise ConfigurationError(f"{file}, line {number}: {found[1]}={found[2]!r}: {error}") from error
    if not fields.get("key"):
        raise ConfigurationError(f"{file} does not declare its key: begin it with a line such as -- key: customer")
    try:
        return Projection(name=file.stem, sql=text, **fields)
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: {error}") from error

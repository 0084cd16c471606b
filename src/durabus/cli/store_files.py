"""What some stores offer beyond the contract: the path of the file, schema steps, and backups.

Modules are imported by name, as ``durabus.store.connect`` does, so only the store that is used gets loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from durabus.cli.failures import CommandFailed, Exit

SQLITE = "durabus.stores.sqlite"
WITH_TABLES = {"sqlite": SQLITE, "postgresql": "durabus.stores.postgresql"}


class SchemaStep(msgspec.Struct, frozen=True, kw_only=True):
    """One numbered migration, and when it was applied to this store; None if it was not."""

    number: int
    name: str
    up: str
    down: str
    applied_ts: float | None = None


def sqlite_file(url: str) -> Path | None:
    """The file of a ``sqlite://`` URL; None for other stores."""
    if urlsplit(url).scheme != "sqlite":
        return None
    path: Path = import_module(f"{SQLITE}.address").parse_url(url).path
    return path


def refuse_absent_file(url: str) -> None:
    """Refuse a file that does not exist: a mistyped path must not become a new, empty store."""
    if urlsplit(url).scheme == "sharded":
        for part in import_module("durabus.stores.sharded.address").parse_url(url):
            refuse_absent_file(part)
        return
    path = sqlite_file(url)
    if path is not None and not path.exists():
        raise CommandFailed(
            "no store found",
            f"{path} does not exist",
            f"check --store, or create it: durabus db migrate --store {url}",
            code=Exit.STORE,
        )


def warning_of_copy(url: str) -> str:
    """A warning if a SQLite file was copied without its write-ahead log; otherwise empty."""
    path = sqlite_file(url)
    if path is None:
        return ""
    copied = import_module(f"{SQLITE}.file_identity")
    return f"{path}: {copied.ADVICE}" if copied.came_alone(path) and copied.is_from_open_store(path) else ""


def schema_steps(url: str) -> list[SchemaStep]:
    """The migrations of this kind of store, in order."""
    known = import_module(f"{_package(url)}.schema").migrations()
    return [SchemaStep(number=one.number, name=one.name, up=one.up, down=one.down) for one in known]


async def applied_steps(url: str) -> list[SchemaStep]:
    """The migrations and when each was applied. Changes nothing, not even an outdated store."""
    steps = schema_steps(url)
    refuse_absent_file(url)
    package = _package(url)
    address = import_module(f"{package}.address").parse_url(url)
    applied = await import_module(f"{package}.schema").applied_instants(address)
    return [msgspec.structs.replace(step, applied_ts=applied.get(step.number)) for step in steps]


BackUp = Literal["backup", "restore"]


def file_backup(url: str, way: BackUp, file: Path, *, overwrite: bool, moved: Callable[[int, int], None]) -> int:
    """Copy a SQLite store into a file, or a file into the store. Returns the number of bytes."""
    path = sqlite_file(url)
    if path is None:
        raise CommandFailed(
            f"no {way} for {urlsplit(url).scheme or url}",
            "durabus copies SQLite files only",
            "use the server's own tools, such as pg_dump; for sharded:// back up each file by itself",
            code=Exit.USAGE,
        )
    module = import_module(f"{SQLITE}.backup")
    call = module.back_up if way == "backup" else module.restore
    size: int = call(path.resolve(), file, overwrite=overwrite, moved=moved)
    return size


def _package(url: str) -> str:
    scheme = urlsplit(url).scheme
    if scheme not in WITH_TABLES:
        raise CommandFailed(
            f"no schema files for {scheme or url}",
            f"only {' and '.join(f'{one}://' for one in WITH_TABLES)} stores have tables that durabus creates",
            code=Exit.USAGE,
        )
    return WITH_TABLES[scheme]

"""Options that many commands share, the store that they name, and what some stores offer beyond the contract.

The latter are the path of the file, schema steps, and backups. Modules of stores are imported by name, as
``durabus.store.connect`` does, so only the store that is used gets loaded.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from cyclopts import Parameter

from durabus.cli.failures import CommandFailed, Exit
from durabus.store.connect import DEFAULT_URL, STORE_VARIABLE, default_url, make_store
from durabus.store.contract import EventStore

SQLITE = "durabus.stores.sqlite"
WITH_TABLES = {"sqlite": SQLITE, "postgresql": "durabus.stores.postgresql"}

BackUp = Literal["backup", "restore"]
JsonOption = Annotated[
    bool, Parameter(negative="", show_default=False, help="Print JSON for programs instead of text for people.")
]
BusOption = Annotated[str | None, Parameter(help="Only this bus. Default: all buses.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Common:
    """``--store`` and ``--json``."""

    store: Annotated[
        str | None, Parameter(env_var=STORE_VARIABLE, help=f"URL of the store. Default: {DEFAULT_URL}")
    ] = None
    json: JsonOption = False


DEFAULTS = Common()


def store_url(common: Common) -> str:
    """The URL in ``--store``, or else the one that ``EventBus()`` uses."""
    return common.store or default_url()


def shown_url(common: Common) -> str:
    """The URL without any password, to show to people."""
    return re.sub(r"//[^/@]*@", "//", store_url(common)).partition("?")[0]


def _unopened_store(common: Common) -> EventStore:
    """The store that ``--store`` names. Refuses a store that other processes cannot see."""
    store = make_store(store_url(common))
    if not store.features.shared_between_processes:
        raise CommandFailed(
            f"{store.features.scheme}:// does not work here",
            "it exists inside one process only, and this command is another process",
            "use a store that processes share, such as sqlite:///bus.db",
            code=Exit.USAGE,
        )
    return store


@asynccontextmanager
async def opened_store(common: Common, *, create: bool = False) -> AsyncIterator[EventStore]:
    """Open the store for one command. Only with ``create`` may this create a new store."""
    store = _unopened_store(common)
    if not create:
        refuse_absent_file(store_url(common))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


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
        for part in import_module("durabus.stores.sharded.store").parse_url(url):
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

"""Options that many commands share, and the store that they name."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from durabus.cli.failures import CommandFailed, Exit
from durabus.cli.store_files import refuse_absent_file
from durabus.store.connect import DEFAULT_URL, STORE_VARIABLE, default_url, make_store
from durabus.store.contract import EventStore

JsonOption = Annotated[
    bool, Parameter(negative="", show_default=False, help="Print JSON for programs instead of text for people.")
]


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

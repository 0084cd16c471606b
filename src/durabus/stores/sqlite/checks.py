"""Checks of ``durabus doctor``: whether this file, its folder or its settings can lose committed events."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from pathlib import Path

from durabus.errors import SchemaError, StoreUnavailableError
from durabus.store.checks import Finding
from durabus.stores.sqlite import file_locks, schema
from durabus.stores.sqlite.address import SQLiteAddress, parse_url
from durabus.stores.sqlite.connection import connect_reader, store_error
from durabus.stores.sqlite.file_identity import ADVICE, came_alone, file_system, is_from_open_store

WAL_RESET_MENDED = (3, 51, 3)
LITTLE_SPACE = 256 * 1024 * 1024
LARGE_WAL = 256 * 1024 * 1024
OVER_A_NETWORK = frozenset({"9p", "afs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "lustre", "ncpfs", "nfs"})
OVER_A_NETWORK |= {"nfs4", "smb3", "smbfs", "virtiofs", "vboxsf"}
IN_MEMORY = frozenset({"ramfs", "tmpfs"})


async def examine(url: str) -> list[Finding]:
    """Check the file, its settings and its file system."""
    return await asyncio.to_thread(_examine, parse_url(url))


def _examine(address: SQLiteAddress) -> list[Finding]:
    path = address.path.resolve()
    if not path.exists():
        raise StoreUnavailableError(f"{path} does not exist: `durabus db migrate` makes it")
    alone = came_alone(path)
    return [*_durability(address), *_contents(path, alone=alone), *_place(path)]


def _durability(address: SQLiteAddress) -> list[Finding]:
    found: list[Finding] = []
    if address.synchronous != "full":
        advice = "kill -9 loses nothing, a power cut may lose the newest events: leave it out, or say synchronous=full"
        found.append(Finding(level="warning", setting="synchronous", value=address.synchronous, advice=advice))
    if sqlite3.sqlite_version_info < WAL_RESET_MENDED:
        advice = (
            "commits of your own connections, which durabus does not know of, can meet SQLite's WAL-reset race: "
            "write to this file through durabus only, or use SQLite 3.51.3"
        )
        found.append(Finding(level="note", setting="sqlite_version", value=sqlite3.sqlite_version, advice=advice))
    if not file_locks.supported():
        advice = (
            "closing any descriptor of the file drops SQLite's locks: do not read or copy it in a process that has "
            "the store open, use `durabus db backup`. Events of a killed process come back when their lease is over"
        )
        found.append(Finding(level="note", setting="file_locks", value="of the process", advice=advice))
    return found


def _contents(path: Path, *, alone: bool) -> list[Finding]:
    found: list[Finding] = []
    try:
        if alone and is_from_open_store(path):
            found.append(Finding(level="warning", setting="copy", value="without -wal", advice=ADVICE))
        connection = connect_reader(path)
        try:
            schema.verify(connection, path)
            mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
            damage = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
        finally:
            connection.close()
    except SchemaError as error:
        return [*found, Finding(level="error", setting="schema", value="not as it should be", advice=str(error))]
    except sqlite3.Error as error:
        raise store_error(error, path) from error
    if mode != "wal":
        advice = "the next store that is opened changes it back; keep the program that changed it away from this file"
        found.append(Finding(level="warning", setting="journal_mode", value=mode, advice=advice))
    if damage != ["ok"]:
        advice = "the file is damaged: restore a backup, or save what is left with `sqlite3 FILE .recover`"
        found.append(Finding(level="error", setting="quick_check", value="; ".join(damage), advice=advice))
    wal = Path(f"{path}-wal")
    size = wal.stat().st_size if wal.exists() else 0
    if size > LARGE_WAL:
        advice = "a connection has read in one transaction for very long, so the log cannot be written back: end it"
        found.append(Finding(level="warning", setting="wal_bytes", value=f"{size:,}", advice=advice))
    return found


def _place(path: Path) -> list[Finding]:
    found: list[Finding] = []
    kind = file_system(path)
    if kind in OVER_A_NETWORK:
        advice = "locks and shared memory do not work over a network: put the file on a local disk, or use PostgreSQL"
        found.append(Finding(level="error", setting="file_system", value=kind, advice=advice))
    elif kind in IN_MEMORY:
        advice = "the file is in memory: a reboot loses everything"
        found.append(Finding(level="warning", setting="file_system", value=kind, advice=advice))
    free = shutil.disk_usage(path.parent).free
    if free < LITTLE_SPACE:
        advice = "soon nothing can be published: free some space, trim history or purge dead letters"
        found.append(Finding(level="warning", setting="free_bytes", value=f"{free:,}", advice=advice))
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        advice = "this user cannot write to the file and its folder: SQLite needs both"
        found.append(Finding(level="error", setting="rights", value="read-only", advice=advice))
    return found

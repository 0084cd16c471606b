"""Noticing a store that was copied without its log.

The newest commits of an open store are in ``-wal``: a copy of the database file alone lacks them, down to the tables of
a young store, and nothing in it says so. But the lock file stays beside an original for ever, and ``durabus db backup``
makes files that are not in WAL mode. So a file in WAL mode that lies there alone is a copy made by other means.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from durabus.backends.sqlite.connection import connect_reader, store_error
from durabus.backends.sqlite.flock import LOCK_SUFFIX

ADVICE = (
    "this file was copied without its -wal. If the original was open at that time, its newest events are missing here: "
    "copy a store with `durabus db backup`"
)


def came_alone(path: Path) -> bool:
    """Whether nothing lies beside the file. Opening a store changes that."""
    return path.exists() and not any(Path(f"{path}{suffix}").exists() for suffix in ("-wal", LOCK_SUFFIX))


def is_from_open_store(path: Path) -> bool:
    """Whether the file is one of durabus, in the mode in which a store that is open has a ``-wal``."""
    try:
        with closing(connect_reader(path)) as connection:
            mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
            names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    except sqlite3.Error as error:
        raise store_error(error, path) from error
    return mode == "wal" and (not names or "durabus_migrations" in names)

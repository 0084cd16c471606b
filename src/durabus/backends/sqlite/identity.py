"""Which files the store has open, to notice that another one, or none, is under their names now."""

from __future__ import annotations

import os
from pathlib import Path

from durabus.backends.sqlite.mounts import is_mounted_alone
from durabus.errors import StoreUnavailableError


def refuse_second_name(path: Path) -> None:
    """Refuse a file that has two names, or is in two places: SQLite keeps a write-ahead log for each name."""
    names = path.stat().st_nlink
    if names > 1:
        raise StoreUnavailableError(
            f"{path} has {names} names (hard links): processes that open it under different names would "
            "each use a write-ahead log and a lock of their own and damage it: keep one name, use symbolic links"
        )
    if is_mounted_alone(path):
        raise StoreUnavailableError(
            f"{path} is mounted as a single file, so its write-ahead log and its lock lie in {path.parent}, where "
            "others that have this file do not find them, and may end with a container: mount its folder instead"
        )


class Identity:
    """Of a database file and its write-ahead log, taken when both are open."""

    def __init__(self, path: Path) -> None:
        self._file = _File(str(path))
        self._log = _File(f"{path}-wal")

    def check(self) -> None:
        """Refuse to go on with files that nobody else can find: what is written there is lost."""
        became = self._file.became()
        if became:
            raise StoreUnavailableError(
                f"{self._file.name} was {became} while it was open: close every store on it, put the right file there "
                "together with its -wal, then open it again. Nothing was written"
            )
        became = self._log.became()
        if became:
            raise StoreUnavailableError(f"{self._log_was(became)}. Nothing was written")

    def check_committed(self) -> None:
        """The same after a commit and before anybody is told of it: the log may have gone in between."""
        became = self._log.became()
        if became:
            raise StoreUnavailableError(f"{self._log_was(became)}, and repeat this call: its outcome is not known")

    def _log_was(self, became: str) -> str:
        return (
            f"{self._log.name} was {became} while it was open, so another program took this file for closed: leave "
            "-wal and -shm alone, copy with `durabus db backup`. Close this store, open it again"
        )


class _File:
    def __init__(self, name: str) -> None:
        self.name = name
        file = os.stat(name)  # noqa: PTH116  (as below)
        self._identity = (file.st_dev, file.st_ino)

    def became(self) -> str:
        """What happened to it; empty if nothing did."""
        try:
            file = os.stat(self.name)  # noqa: PTH116  (in every transaction: half the cost of Path.stat)
        except FileNotFoundError:
            return "removed"
        return "" if (file.st_dev, file.st_ino) == self._identity else "replaced by another file"

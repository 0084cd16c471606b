"""Which file the store has open, to notice that another one, or none, is under its name now."""

from __future__ import annotations

import os
from pathlib import Path

from durabus.errors import StoreUnavailableError


class Identity:
    """Of a database file, taken when it is opened."""

    def __init__(self, path: Path) -> None:
        file = path.stat()
        if file.st_nlink > 1:
            raise StoreUnavailableError(
                f"{path} has {file.st_nlink} names (hard links): processes that open it under different names would "
                "each use a write-ahead log and a lock of their own and damage it: keep one name, use symbolic links"
            )
        self._path = path
        self._name = str(path)
        self._identity = (file.st_dev, file.st_ino)

    def check(self) -> None:
        """Refuse to go on with a file that nobody else can find: what is written there is lost."""
        try:
            file = os.stat(self._name)  # noqa: PTH116  (in every transaction: half the cost of Path.stat)
        except FileNotFoundError:
            became = "removed"
        else:
            if (file.st_dev, file.st_ino) == self._identity:
                return
            became = "replaced by another file"
        raise StoreUnavailableError(
            f"{self._path} was {became} while it was open: close every store on it, put the right file there together "
            "with its -wal, then open it again. Nothing was written"
        )

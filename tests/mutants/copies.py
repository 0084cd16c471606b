"""Copies of the source, in which a change can be planted while the working tree stays as it is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"

_OTHER_TIMES = count(1_000_000_000)
"""Modification times that no file of the source has, nor any other mutant: Python knows bytecode by time and size."""


def copy_source(folder: Path) -> Path:
    """Make a copy of ``src`` with bytecode and times. It goes first in PYTHONPATH."""
    return Path(shutil.copytree(SOURCE, folder / "src"))


def occurrences(mutant: Mutant) -> int:
    """Return how often the text that is to be changed occurs in the source."""
    path = SOURCE / "durabus" / mutant.file
    return path.read_text().count(mutant.old) if path.exists() else 0


@contextmanager
def planted(mutant: Mutant, copy: Path) -> Iterator[None]:
    """Plant the change in the copy, and take it back afterwards."""
    path = copy / "durabus" / mutant.file
    times = path.stat()
    original = path.read_bytes()
    path.write_text(original.decode().replace(mutant.old, mutant.new, 1))
    other = next(_OTHER_TIMES)
    os.utime(path, (other, other))
    try:
        yield
    finally:
        path.write_bytes(original)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

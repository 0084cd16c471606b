"""Where file systems are mounted, as far as the system tells (Linux)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")
"""Blanks and backslashes in a path, as the kernel writes them."""


def file_system(path: Path) -> str:
    """The type of the file system that a path is on; empty where the system does not say."""
    best, kind = "", ""
    for place, type_ in _mounts():
        if len(place) >= len(best) and path.is_relative_to(place):
            best, kind = place, type_
    return kind


def is_mounted_alone(path: Path) -> bool:
    """Whether a file is a mount of its own, as ``docker run -v /data/bus.db:/app/bus.db`` makes it."""
    return any(place == str(path) for place, _ in _mounts())


def _mounts() -> Iterator[tuple[str, str]]:
    if not MOUNTS.exists():
        return
    for line in MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        yield _ESCAPED.sub(lambda found: chr(int(found[1], 8)), before.split(" ")[4]), after.split(" ")[0]

"""How everything is measured: sizes, repetitions, fresh folders, the garbage collector, alternating sides."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

Side = Callable[[int], float]
"""Does ``count`` pieces of work and returns its figure: pieces per second, or a time."""
Fresh = Callable[[], AbstractContextManager[str]]
"""Yields the URL of an empty store."""


class Progress(Protocol):
    """Shows what is being measured."""

    def __call__(self, text: str) -> None: ...


class Bench:
    """The sizes, folders and progress that every group of measurements gets."""

    def __init__(self, *, quick: bool, folder: Path, progress: Progress) -> None:
        self.quick = quick
        self._folder = folder
        self._progress = progress

    @property
    def repetitions(self) -> int:
        return self.size(5, 2)

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def say(self, text: str) -> None:
        self._progress(text)

    @contextmanager
    def fresh_folder(self) -> Iterator[Path]:
        """Yield a new folder for one run, on the disk that was chosen."""
        path = Path(tempfile.mkdtemp(prefix="durabus-bench-", dir=self._folder))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def alternate(
        self, sides: Mapping[str, Side], count: Mapping[str, int], *, warm_up: bool = True
    ) -> dict[str, list[float]]:
        """Run the sides in turn, so that other work on the machine slows all of them alike."""
        if warm_up:
            for name, side in sides.items():
                self.say(f"{name}: warming up")
                with same_gc():
                    side(max(count[name] // 10, 1))
        figures: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(1, self.repetitions + 1):
            for name, side in sides.items():
                self.say(f"{name}: {turn} of {self.repetitions}")
                with same_gc():
                    figures[name].append(side(count[name]))
        return figures


@contextmanager
def same_gc() -> Iterator[None]:
    """Collect garbage first, so that no side pays for earlier work. The collector stays on, as it does for users."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def percentile(samples: list[float], part: float) -> float:
    """Return the smallest sample that at least ``part`` of all samples do not exceed."""
    ordered = sorted(samples)
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{path.resolve()}"


def copy_database(source: Path, target: Path) -> None:
    """Copy a closed database and wait until the disk has it, so that no run pays for the copy."""
    for suffix in ("", "-wal"):
        part = source.with_name(source.name + suffix)
        if part.exists():
            copy = target.with_name(target.name + suffix)
            shutil.copyfile(part, copy)
            with copy.open("rb+") as file:
                os.fsync(file.fileno())

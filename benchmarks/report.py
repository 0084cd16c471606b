"""The one table, on the terminal and as docs/proof/benchmarks.md."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.processes import ROOT
from benchmarks.results import Published, Report, Row, Target

DOCS = ROOT / "docs" / "proof" / "benchmarks.md"
COLUMNS = ("measurement", "durabus", "compared with", "ratio", "target", "")

_PAGE = """# Benchmarks

<!-- Written by `python -m benchmarks --write-docs`. Run it again instead of editing. -->

Ratios are taken in one run, in turn, against a loop written by hand on the same driver (the ceiling) or against a peer.
They carry over to other machines better than the absolute figures beside them. A MISS is printed like everything else.

{table}

- Machine: {machine}.
- Settings: {settings}.
- Figures: medians of {repetitions}, sides in turn, after a warm-up, each run in a fresh folder; `p99`
  rows are what they say. The garbage collector is on; what was allocated before a run is kept out of it on both sides.
- Command: `python -m benchmarks`, for some groups with their names. `make bench` runs it here, `make bench
  ARGS=--quick` in a minute. Groups were measured one at a time:

{groups}

## Peers

`make bench-peers`: durabus and its peers on one server, in turn, in one run.

{peers}

## The pipeline

`make bench-pipeline`: the pipeline against the plain ways from a store to Delta.

{pipeline}

## What each row leaves out

{notes}
"""
PEERS = ROOT / "build" / "published" / "peers.json"
PIPELINE = ROOT / "build" / "published" / "pipeline.json"
"""Where the other runners leave their tables for the page."""


def print_table(console: Console, report: Report) -> None:
    table = Table(*COLUMNS, box=SIMPLE_HEAD, pad_edge=False)
    for index in (1, 3):
        table.columns[index].justify = "right"
    for group in report.groups.values():
        for row in group.rows:
            verdict = {"ok": "[green]ok[/]", "MISS": "[bold red]MISS[/]"}.get(row.verdict, "")
            table.add_row(*_cells(row), verdict)
        table.add_section()
    console.print(table)
    console.print(report.machine.line(), report.settings, sep="\n", style="dim")
    for name, group in report.groups.items():
        console.print(f"{name}: {group.line()}", style="dim")
    if report.quick:
        console.print("--quick: a sanity run, too short for figures to quote", style="yellow")


def write_json(report: Report, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def read_json(path: Path) -> Report:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except msgspec.DecodeError as error:
        raise SystemExit(
            f"{path} holds no results of this version ({error}): delete it, or choose another --json"
        ) from error


def write_docs(report: Report, path: Path = DOCS) -> None:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|--:|---|--:|---|---|"]
    lines += ["| " + " | ".join((*_cells(row), row.verdict)) + " |" for row in report.rows]
    notes = [f"- **{row.name}**: {row.note}" for row in report.rows if row.note]
    path.write_text(
        _PAGE.format(
            table="\n".join(lines),
            machine=report.machine.line(),
            settings=report.settings,
            repetitions="2 short runs (--quick: not for quoting)" if report.quick else "5 runs",
            groups="\n".join(f"  - {name}: {group.line()}" for name, group in report.groups.items()),
            peers=_published(PEERS),
            pipeline=_published(PIPELINE),
            notes="\n".join(notes),
        ),
        encoding="utf-8",
    )


def _published(path: Path) -> str:
    if not path.exists():
        return "Not measured on this machine yet."
    return msgspec.json.decode(path.read_bytes(), type=Published).text()


def _cells(row: Row) -> tuple[str, str, str, str, str]:
    peer = row.peer_value
    against = "" if peer is None else f"{row.peer} {_figure(peer, row.unit)}"
    return row.name, _figure(row.value, row.unit), against, _ratio(row.ratio), _target(row.target, row)


def _figure(value: float, unit: str) -> str:
    if unit == "/s":
        return f"{value:,.0f}/s"
    return f"{value:,.1f} {unit}" if value >= 10 else f"{value:.2f} {unit}"


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.1f} ×" if ratio >= 2 else f"{ratio:.2f} ×"


def _target(target: Target | None, row: Row) -> str:
    if target is None:
        return ""
    bound = f"{target.bound:g} ×" if target.on == "ratio" else _bound(target.bound, row.unit)
    return f"{target.sign} {bound}"


def _bound(value: float, unit: str) -> str:
    return f"{value:,.0f}/s" if unit == "/s" else f"{value:g} {unit}"

"""docs/proof/seeds.md goes through all five seeds; every row is proved, and every test of the seeds is in it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PAGE = ROOT / "docs" / "proof" / "seeds.md"
NAME = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
DIFFERS = "[differs](#where-we-differ-and-why)"
NO_PROMISE = "no promise: "
LISTED = [*sorted(FOLDER.glob("test_seed_*.py")), ROOT / "tests" / "api" / "test_seed_004.py"]
"""Files whose tests must all be on the page."""

PARTS = {
    "000": ["Overview", "Lifecycle", "Concurrency and consistency", "Abandoned events", "Operational notes"],
    "001": [
        *["Overview", "EventQueue: lifecycle", "Abandoned events", "Operational notes"],
        *["EventManager: responsibilities", "Handler registration", "Processing logic", "Event log projections"],
    ],
    "002": [
        *["Scope", "Hard requirements", "Architecture summary", "Unified store interface", "Claim model"],
        *["Resource keys", "Lifecycle semantics", "Broker mapping", "PostgreSQL backend", "Redis backend"],
        *["SQLite backend", "NATS backend", "Kafka backend", "Scale strategy", "Migration plan"],
        *["Conformance test matrix", "Open questions", "Deliverables"],
    ],
    "003": [
        *["Non-goals, architecture, modules", "North star", "Publish", "Subscribe", "Store"],
        *["Performance, future work, decisions", "Retry", "Timeouts", "Dead letters", "Graceful shutdown"],
        *["Crash recovery", "Circuit breaker", "Beyond the seed: several nodes, and scripts without a loop"],
    ],
    "004": [
        *["Overview and event states", "Worker tracking", "Retry strategy", "1. POST /events"],
        *["2. GET /events/subscribe", "3. POST /events/{id}/complete", "4. POST /events/{id}/fail"],
        *["5. GET /events/{id}", "6. GET /events", "Event log lifecycle example", "Implementation notes"],
        *["Example", "Error handling"],
    ],
}
"""The headings of the five documents; each of them has a table."""


def file_of(name: str) -> Path:
    """Return the path of a test file. A name without a folder is a file beside this one."""
    if name.startswith("durabus/"):
        return ROOT / "src" / name
    return ROOT / name if "/" in name else FOLDER / name


def functions_of(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def tables(text: str) -> Iterator[tuple[str, str, list[list[str]]]]:
    """Return the number of the seed, the heading and the rows of each table."""
    seed = heading = ""
    rows: list[list[str]] = []
    for line in [*text.splitlines(), "## end"]:
        if line.startswith("#") and rows:
            yield seed, heading, rows
            rows = []
        if line.startswith("## "):
            seed, heading = (line[8:11] if line.startswith("## Seed ") else ""), ""
        elif line.startswith("### "):
            heading = line[4:]
        elif line.startswith("|") and not line.startswith(("|---", "| the seed says")):
            rows.append(cells(line))


TABLES = list(tables(PAGE.read_text()))


def test_every_test_named_in_the_table_exists() -> None:
    named = {(match[1], match[2]) for match in NAME.finditer(PAGE.read_text())}
    known = {name: functions_of(file_of(name)) for name in {file for file, _ in named}}
    assert sorted(f"{file}::{test}" for file, test in named if test not in known[file]) == []


@pytest.mark.parametrize("path", LISTED, ids=lambda path: path.name)
def test_every_test_is_in_the_table(path: Path) -> None:
    named = {match[2] for match in NAME.finditer(PAGE.read_text()) if file_of(match[1]) == path}
    assert sorted(test for test in functions_of(path) - named if test.startswith("test_")) == []


@pytest.mark.parametrize("seed", PARTS)
def test_every_part_of_the_document_has_its_table(seed: str) -> None:
    assert [heading for number, heading, _ in TABLES if number == seed] == PARTS[seed]


def test_every_sentence_has_a_proof_or_a_difference_or_says_that_it_promises_nothing() -> None:
    for seed, heading, rows in TABLES:
        for row in rows if seed else []:
            assert len(row) == 2, f"{seed}, {heading}: {row}"
            sentence, proof = row
            assert sentence, f"{seed}, {heading}: a row without a sentence"
            assert NAME.search(proof) or DIFFERS in proof or proof.startswith(NO_PROMISE), f"{heading}: {sentence}"


def test_every_difference_names_its_seed_and_its_reason() -> None:
    rows = [row for seed, _, rows in TABLES for row in rows if not seed]
    assert [row for row in rows if len(row) != 3 or not all(row) or not re.match(r"00[0-4]", row[0])] == []
    assert {row[0][:3] for row in rows} == set(PARTS)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("test_seed_*.py")), ids=lambda path: path.name)
def test_no_test_hides_in_a_class_where_the_table_does_not_see_it(path: Path) -> None:
    assert [
        node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef) if "Test" in node.name
    ] == []

"""docs/proof/runtime.md names every test in this folder, and no other."""

import ast
import re
from pathlib import Path

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "proof" / "runtime.md"
NAME = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def written() -> set[tuple[str, str]]:
    return {
        (path.name, node.name)
        for path in FOLDER.glob("test_*.py")
        if path != Path(__file__)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def named() -> set[tuple[str, str]]:
    return {(match[1], match[2]) for match in NAME.finditer(PAGE.read_text())}


def test_every_test_named_in_the_table_exists() -> None:
    assert sorted(named() - written()) == []


def test_every_test_is_in_the_table() -> None:
    assert sorted(written() - named()) == []

"""docs/seeds.md names every test in this folder, and no other."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "seeds.md"
NAME = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def written() -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for path in sorted(FOLDER.glob("test_seed_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found.add((path.name, node.name))
    return found


def named() -> Counter[tuple[str, str]]:
    return Counter((match[1], match[2]) for match in NAME.finditer(PAGE.read_text()))


def test_every_test_named_in_the_table_exists() -> None:
    assert sorted(set(named()) - written()) == []


def test_every_test_is_in_the_table() -> None:
    assert sorted(written() - set(named())) == []


@pytest.mark.parametrize("path", sorted(FOLDER.glob("test_seed_*.py")), ids=lambda path: path.name)
def test_no_test_hides_in_a_class_where_the_table_does_not_see_it(path: Path) -> None:
    assert [
        node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef) if "Test" in node.name
    ] == []

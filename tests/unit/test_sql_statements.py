"""The SQL files and the Python of a store name the same statements."""

import ast
import re
from collections.abc import Iterable, Iterator
from importlib.resources import files

import pytest

from durabus.stores.sql.statements import statements

STORES = ("durabus.stores.sqlite", "durabus.stores.postgresql")
LOOKUPS = {"_Insert", "_ask", "all", "one", "value"}
"""Functions that take the name of a statement."""
TEXTS = {"SQL", "sql", "_sql", "Statements"}
"""Objects that give the text of a statement by its name."""
NAME = re.compile(r"[a-z_]+")


def nodes(package: str) -> Iterator[ast.AST]:
    for module in files(package).iterdir():
        if module.name.endswith(".py"):
            yield from ast.walk(ast.parse(module.read_text(encoding="utf-8")))


def names(parts: Iterable[ast.AST]) -> set[str]:
    texts = {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    return {text for text in texts if NAME.fullmatch(text)}


def called(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return called(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def looked_up(package: str) -> set[str]:
    found: set[str] = set()
    for node in nodes(package):
        if isinstance(node, ast.Call) and called(node) in LOOKUPS:
            found |= names(node.args)
        elif isinstance(node, ast.Subscript) and called(node.value) in TEXTS:
            found |= names([node.slice])
    return found


@pytest.mark.parametrize("package", STORES)
def test_every_statement_is_used(package: str) -> None:
    assert statements(package).keys() - names(nodes(package)) == set()


@pytest.mark.parametrize("package", STORES)
def test_every_name_that_is_looked_up_is_a_statement(package: str) -> None:
    used = looked_up(package)
    assert used - statements(package).keys() == set()
    assert len(used) > len(statements(package)) / 2, "the test must recognise how this store looks statements up"

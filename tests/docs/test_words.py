"""Sentences name their actor: these words stand where a name belongs."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.test_repository_rules import files_to_publish, relative

NAMELESS_ACTOR = re.compile(r"\b(?:somebody|whoever|nobody|anybody|is\s+told|lately)\b", re.IGNORECASE)
QUOTED = re.compile(r"`[^`]*`")  # names of code and texts for users keep their own words
KEPT = ("**What nobody can promise:**",)
"""Sentences about all people, where a name would be wrong."""


def names_and_docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of each test name and of each docstring, also those of attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name.replace("_", " ")
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each paragraph of a page, and of each test name and docstring of a module."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        for paragraph in re.finditer(r"(?:.+\n?)+", text):
            yield text.count("\n", 0, paragraph.start()) + 1, paragraph[0]
    elif NAMELESS_ACTOR.search(text.replace("_", " ")):  # to parse all modules would take seconds
        yield from names_and_docstrings(ast.parse(text))


def nameless_actors(text: str) -> list[str]:
    for kept in KEPT:
        text = text.replace(kept, "")
    return NAMELESS_ACTOR.findall(QUOTED.sub("", text))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The store is\ntold of the end.", ["is\ntold"]),
        ("Somebody has to pay.", ["Somebody"]),
        ("The error `nobody is told` names the worker.", []),
        ("**What nobody can promise:** that handler code never overlaps.", []),
    ],
)
def test_a_sentence_without_an_actor_is_recognised(text: str, found: list[str]) -> None:
    assert nameless_actors(text) == found


def test_pages_docstrings_and_test_names_say_who_acts() -> None:
    offences = [
        f"{relative(path)}:{line}: {', '.join(words)}"
        for path in files_to_publish()
        if path.suffix in {".md", ".py"}
        for line, text in prose_of(path)
        if (words := nameless_actors(text))
    ]
    assert not offences, "name the actor in these sentences:\n" + "\n".join(offences)

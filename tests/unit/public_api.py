"""Writes down what `durabus` offers: every name of `durabus.__all__` with its members and their signatures.

The text comes from the source, so it is the same on every version of Python. `python -m tests.unit.public_api`
rewrites it; `tests/unit/test_public_api.py` compares it. A change of this file is a change for users: it belongs into
CHANGELOG.md.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import durabus
from durabus.model.event import PublishOptions

PINNED = Path(__file__).with_name("public_api.txt")


def public_api() -> str:
    # The options of `publish` are typed by a class that users do not import, but write as keywords.
    things = {name: getattr(durabus, name) for name in durabus.__all__} | {"PublishOptions": PublishOptions}
    return "\n".join(line for name, thing in things.items() for line in described(name, thing))


def described(name: str, thing: Any) -> Iterator[str]:
    definition = definition_of(thing)
    if not isinstance(definition, ast.ClassDef):
        yield from lines_of(definition)
        yield ""
        return
    yield f"class {name}({', '.join(ast.unparse(base) for base in (*definition.bases, *definition.keywords))}):"
    for owner, members in members_by_class(thing).items():
        if owner != name and members:
            yield f"    # from {owner}"
        yield from (f"    {member}" for member in members)
    yield ""


def members_by_class(thing: type) -> dict[str, list[str]]:
    """Return the members of a class and of bases that a user cannot import. An overridden member comes once."""
    found: dict[str, list[str]] = {}
    seen: set[str] = set()
    for owner in thing.__mro__:
        hidden = owner is thing or owner.__name__ not in durabus.__all__
        if not hidden or not owner.__module__.startswith("durabus."):
            continue
        definition = definition_of(owner)
        assert isinstance(definition, ast.ClassDef)
        own = [(name, node) for node in definition.body if (name := public_name(node)) and name not in seen]
        found[owner.__name__] = [line for _, node in own for line in lines_of(node)]
        seen |= {name for name, _ in own}
    return found


def definition_of(thing: Any) -> ast.stmt:
    return ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]


def public_name(node: ast.stmt) -> str | None:
    match node:
        case (
            ast.FunctionDef(name=name)
            | ast.AsyncFunctionDef(name=name)
            | ast.AnnAssign(target=ast.Name(id=name))
            | ast.Assign(targets=[ast.Name(id=name)])
        ):
            special = name.startswith("__") and name.endswith("__") and name != "__slots__"
            return name if special or not name.startswith("_") else None
    return None


def lines_of(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from (f"@{ast.unparse(decorator)}" for decorator in node.decorator_list)
            word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
            returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            yield f"{word} {node.name}({ast.unparse(node.args)}){returns}"
            if node.name == "__init__":
                yield from attributes_set_in(node)
        case _:
            yield ast.unparse(node)


def attributes_set_in(constructor: ast.AST) -> Iterator[str]:
    for node in ast.walk(constructor):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()) if not name.startswith("_"):
                yield f"self.{name}"


if __name__ == "__main__":
    PINNED.write_text(public_api(), encoding="utf-8")

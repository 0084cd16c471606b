"""docs/architecture.md and docs/glossary.md name files and functions that exist."""

import ast
import re
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from tests.docs.test_repository_rules import MODULES, PACKAGE, ROOT

MAP = ROOT / "docs" / "architecture.md"
GLOSSARY = ROOT / "docs" / "glossary.md"
LAYERS_CONTRACT = "Layers: a module imports only from below"
BEGIN, END = "<!-- packages: begin -->\n", "<!-- packages: end -->"
MOST_HOPS = 25
FEWEST_QUESTIONS = 20

NAMED = re.compile(r"\[[^\]]+\]\(\.\./(?P<file>src/[\w./]+)\)(?P<names>(?:,? `[\w.]+`)*)")
"""A link to a file of the source, and the names that are said to be in it."""
HOP = re.compile(r"^(\d+)\. \[(?P<shown>[\w./]+)\]\(\.\./src/durabus/(?P<file>[\w./]+)\) `[\w.]+` ", flags=re.MULTILINE)
IMPORT = re.compile(r"^ *(?:from|import) durabus\.(\w+)", flags=re.MULTILINE)
IMPORT_FROM = re.compile(r"^ *from (durabus[\w.]*) import (?:\(([^)]*)\)|(.*))", flags=re.MULTILINE)
PLAIN_IMPORT = re.compile(r"^ *import (durabus[\w.]*)", flags=re.MULTILINE)
ENTRY = re.compile(
    r"^- \*\*(?P<word>[^*]+)\*\*(?P<kind> \(the noun\))?: (?P<meaning>.+(?:\n  .+)*)", flags=re.MULTILINE
)
VERBS = ["publish", "claim", "renew", "release", "complete", "fail", "reclaim", "requeue", "purge", "trim"]
ARROW = re.compile(r'-->\|"(?P<file>[\w./]+): ')


def layers() -> list[list[str]]:
    """The packages of the import contract, from the top."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = [contract for contract in contracts if contract["name"] == LAYERS_CONTRACT]
    return [[name.strip(" ()") for name in layer.split("|")] for layer in contract["layers"]]


def imports() -> dict[str, set[str]]:
    """Which packages each package imports."""
    found: dict[str, set[str]] = {name: set() for layer in layers() for name in layer}
    for module in MODULES:
        package = module.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if package in found:
            found[package] |= set(IMPORT.findall(module.read_text(encoding="utf-8"))) - {package}
    return found


def imported_modules(sources: dict[str, str]) -> dict[str, set[str]]:
    """Which of these modules each module imports, also inside functions. To parse all of them would take seconds."""
    found: dict[str, set[str]] = {}
    for name, source in sources.items():
        wanted = set(PLAIN_IMPORT.findall(source))
        for home, several, one in IMPORT_FROM.findall(source):
            full = [f"{home}.{imported}" for imported in re.findall(r"(?<!as )\b(?!as\b)\w+", several or one)]
            wanted |= {module if module in sources else home for module in full}
        found[name] = wanted & sources.keys() - {name}
    return found


def cycle_in(sources: dict[str, str]) -> list[str]:
    """The modules of one cycle of imports, or none."""
    try:
        TopologicalSorter(imported_modules(sources)).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle[::-1]  # each imports the next
    return []


def package_diagram() -> str:
    """The packages in the order of the layers; no arrow where a longer way leads to the same package."""
    direct, arrows, reached = imports(), [], dict[str, set[str]]()
    for name in [name for layer in reversed(layers()) for name in layer]:
        beyond = {far for near in direct[name] for far in reached[near]}
        reached[name] = direct[name] | beyond
        arrows += [f"    {name} --> {near}" for near in sorted(direct[name] - beyond, reverse=True)]
    return "\n".join(["```mermaid", "flowchart TD", *reversed(arrows), "    store -. by URL .-> stores", "```", ""])


def between_marks(text: str) -> str:
    return text.partition(BEGIN)[2].partition(END)[0]


def section(text: str, title: str) -> str:
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@cache
def names_in(path: Path) -> frozenset[str]:
    """Functions, classes, methods and constants of a module; statements and functions of SQL; functions of Lua."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".sql":
        return frozenset(re.findall(r"^(?:-- name:|CREATE FUNCTION) (\w+)", text, flags=re.MULTILINE))
    if path.suffix == ".lua":
        return frozenset(re.findall(r"(?:^function |^register\(')([\w.]+)", text, flags=re.MULTILINE))
    names: set[str] = set()
    for node in ast.parse(text).body:
        names |= defined_by(node)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner}" for child in node.body for inner in defined_by(child)}
    return frozenset(names)


def defined_by(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.Assign():
            return {target.id for target in node.targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
    return set()


@pytest.mark.parametrize("page", [MAP, GLOSSARY], ids=lambda page: page.name)
def test_every_file_and_every_name_in_it_exists(page: Path) -> None:
    found = [
        (ROOT / link["file"], re.findall(r"[\w.]+", link["names"])) for link in NAMED.finditer(page.read_text("utf-8"))
    ]
    assert len(found) > FEWEST_QUESTIONS
    missing = [str(path.relative_to(ROOT)) for path, _ in found if not path.exists()]
    assert not missing
    unknown = [
        f"{path.relative_to(ROOT)}: {name}" for path, names in found for name in names if name not in names_in(path)
    ]
    assert not unknown, "\n".join(unknown)


def test_the_diagram_of_packages_shows_their_imports() -> None:
    diagram = package_diagram()
    assert between_marks(MAP.read_text("utf-8")) == diagram, f"put this between the marks:\n{diagram}"


def test_a_cycle_of_imports_is_recognised() -> None:
    late = {
        "durabus.a": "from durabus.b import (\n    C,\n)",
        "durabus.b": "def f():\n    from durabus import c as d",
        "durabus.c": "import durabus.a",
    }
    assert len(cycle_in({"durabus": "from durabus.b import f", **late})) == 4
    assert cycle_in({"durabus": "from durabus.b import f", **late, "durabus.c": "import os"}) == []


def test_no_module_imports_itself_through_others() -> None:
    names = {module: ".".join(module.relative_to(PACKAGE.parent).with_suffix("").parts) for module in MODULES}
    sources = {name.removesuffix(".__init__"): module.read_text("utf-8") for module, name in names.items()}
    cycle = cycle_in(sources)
    assert not cycle, "move what both need to a module below them: " + " -> ".join(cycle)


def test_every_package_has_its_row_in_the_order_of_the_layers() -> None:
    table = section(MAP.read_text("utf-8"), "The packages")
    rows = re.findall(r"^\| \[(\w+)\]\(\.\./src/durabus/([\w.]+)\) \| ", table, flags=re.MULTILINE)
    assert [name for name, _ in rows] == [name for layer in layers() for name in layer]
    assert {target.removesuffix(".py") for _, target in rows} == {
        path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    } - {"__init__"}


def test_the_way_of_an_event_has_few_hops_and_each_names_a_file_and_a_function() -> None:
    way = section(MAP.read_text("utf-8"), "The way of an event")
    hops = list(HOP.finditer(way))
    assert [int(hop[1]) for hop in hops] == list(range(1, len(re.findall(r"^\d+\. ", way, flags=re.MULTILINE)) + 1))
    assert len(hops) <= MOST_HOPS
    assert [hop["shown"] for hop in hops] == [hop["file"] for hop in hops]


def test_every_arrow_of_the_way_names_a_file() -> None:
    arrows = ARROW.findall(MAP.read_text("utf-8"))
    assert arrows
    assert [file for file in arrows if not (PACKAGE / file).is_file()] == []


def test_the_page_answers_many_questions_of_newcomers() -> None:
    table = section(MAP.read_text("utf-8"), "Where do I find…")
    assert len(re.findall(r"^\| .+\? \| ", table, flags=re.MULTILINE)) >= FEWEST_QUESTIONS


def test_every_word_of_the_glossary_is_explained_once_in_a_few_lines() -> None:
    text = GLOSSARY.read_text("utf-8")
    entries = list(ENTRY.finditer(text))
    assert len(entries) == text.count("\n- "), "an entry is: - **word**: what it means. [module](link)"
    words = [entry["word"] + (entry["kind"] or "") for entry in entries]
    assert sorted(words) == sorted(set(words))
    assert [entry["word"] for entry in entries if entry["meaning"].count("\n") > 2] == []
    assert [entry["word"] for entry in entries if not NAMED.search(entry[0])] == ["process"]


def test_the_glossary_has_the_ten_verbs() -> None:
    verbs = section(GLOSSARY.read_text("utf-8"), "The verbs").partition("\nSix more")[0]
    assert [entry["word"] for entry in ENTRY.finditer(verbs)] == VERBS

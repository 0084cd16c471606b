"""Every link of the pages leads somewhere, and the index names every page of docs/."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.test_repository_rules import ROOT, files_to_publish, relative

DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
ROOMS = {"tutorial", "howto", "reference", "explanation", "proof"}
SOURCES = {".css", ".html", ".js", ".lua", ".md", ".py", ".sh", ".sql", ".toml"}

CODE = re.compile(r"^```.*?^```", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<markdown>[^)\s]+)\)|(?:src|srcset|href)=\"(?P<html>[^\"]+)\"")
MENTION = re.compile(r"(?<![\w/.])docs/[\w/-]+\.md\b")
HEADING = re.compile(r"^#+ +(.+)$", flags=re.MULTILINE)


def links_of(text: str) -> Iterator[str]:
    for match in LINK.finditer(CODE.sub("", text)):
        link = match["markdown"] or match["html"]
        if "://" not in link:
            yield link


def anchors_of(text: str) -> set[str]:
    """The anchors that GitHub makes of the headings."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(CODE.sub("", text))}


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_link_leads_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    offences = []
    for link in links_of(page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors_of(target.read_text(encoding="utf-8"))):
            offences.append(link)
    assert not offences, offences


def test_every_page_that_a_source_file_names_exists() -> None:
    offences = [
        f"{relative(path)}: {name}"
        for path in files_to_publish()
        if path.suffix in SOURCES
        for name in MENTION.findall(path.read_text(encoding="utf-8"))
        if not (ROOT / name).is_file()
    ]
    assert not offences, "\n".join(offences)


def test_every_page_stands_in_a_room() -> None:
    assert {path.name for path in DOCS.glob("*.md")} == {"index.md", "architecture.md", "glossary.md"}
    assert {page.parent.name for page in DOCS.glob("*/*.md")} == ROOMS


def test_the_index_names_every_page_once() -> None:
    index = DOCS / "index.md"
    named = [DOCS / link for link in links_of(index.read_text(encoding="utf-8")) if link.endswith(".md")]
    pages = set(DOCS.rglob("*.md")) - {index}
    assert sorted(named) == sorted(pages)

"""Every link of the pages leads somewhere, and the index names every page of docs/.

The package index shows the README without the repository. So its links are absolute, and only its links: a clone or a
fork must not lead its reader away.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.test_repository_rules import ROOT, files_to_publish, relative

DOCS = ROOT / "docs"
README = ROOT / "README.md"
URLS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
REPOSITORY = URLS["Source"]
FILES = f"{REPOSITORY}/blob/main/"
IMAGES = REPOSITORY.replace("://github.com/", "://raw.githubusercontent.com/") + "/main/"
"""Where a browser gets the bytes of a picture: ``FILES`` leads to a page around it."""
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("examples/*/*.md")), *sorted(DOCS.rglob("*.md"))]
ROOMS = {"tutorial", "howto", "reference", "explanation", "proof"}
SOURCES = {".css", ".html", ".js", ".lua", ".md", ".py", ".sh", ".sql", ".toml"}

CODE = re.compile(r"^```.*?^```", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<markdown>[^)\s]+)\)|(?:src|srcset|href)=\"(?P<html>[^\"]+)\"")
IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"")
MENTION = re.compile(r"(?<![\w/.])docs/[\w/-]+\.md\b")
HEADING = re.compile(r"^#+ +(.+)$", flags=re.MULTILINE)


def all_links_of(text: str) -> Iterator[str]:
    for match in LINK.finditer(CODE.sub("", text)):
        yield match["markdown"] or match["html"]


def links_of(text: str) -> Iterator[str]:
    """The links that lead into this repository, with or without its address."""
    return (link for link in all_links_of(text) if "://" not in link or link.startswith((REPOSITORY, IMAGES)))


def target_of(link: str, page: Path) -> Path:
    """The file that a link on the page leads to; one that does not exist, if the link has another form."""
    for prefix in (FILES, IMAGES):
        if link.startswith(prefix):
            return ROOT / link.removeprefix(prefix)
    return (page.parent / link).resolve() if link else page


def anchors_of(text: str) -> set[str]:
    """The anchors that GitHub makes of the headings."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(CODE.sub("", text))}


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_link_leads_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    offences = []
    for link in links_of(page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = target_of(name, page)
        if not target.exists() or (anchor and anchor not in anchors_of(target.read_text(encoding="utf-8"))):
            offences.append(link)
    assert not offences, offences


def test_the_links_of_the_readme_work_on_the_package_index() -> None:
    text = README.read_text(encoding="utf-8")
    images = {match[1] or match[2] for match in IMAGE.finditer(CODE.sub("", text))}
    links = set(all_links_of(text))
    assert images <= links
    assert [link for link in sorted(links) if "://" not in link and not link.startswith("#")] == []
    assert [link for link in sorted(images) if link.startswith(REPOSITORY)] == []
    assert [link for link in sorted(links - images) if link.startswith(IMAGES)] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != README], ids=relative)
def test_the_links_of_other_pages_stay_in_the_clone(page: Path) -> None:
    links = all_links_of(page.read_text(encoding="utf-8"))
    assert [link for link in links if link.startswith((REPOSITORY, IMAGES))] == []


def test_the_addresses_of_the_project_lead_to_files_that_exist() -> None:
    assert set(URLS) == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    assert {url for url in URLS.values() if not url.startswith(FILES)} == {REPOSITORY, f"{REPOSITORY}/issues"}
    assert [url for url in URLS.values() if url.startswith(FILES) and not target_of(url, README).is_file()] == []


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

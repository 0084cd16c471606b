"""The counts of README.md are those of docs/proof/reliability.md, and that page names what the simulation knows.

README also says what its commands leave out.
"""

import re
from pathlib import Path

import pytest
from tests.simulation.judge import PLACES
from tests.simulation.mutants import ALL

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RELIABILITY = (ROOT / "docs" / "proof" / "reliability.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\|(.+)\|$", flags=re.MULTILINE)


def table(first_column: str, section: str) -> list[dict[str, str]]:
    """The first table of a section of the reliability page whose first column has this title."""
    _, _, below = RELIABILITY.partition(f"\n## {section}\n")
    rows = [[cell.strip() for cell in row.split("|")] for row in ROW.findall(below.partition("\n## ")[0])]
    begin = next(number for number, row in enumerate(rows) if row[0] == first_column)
    titles = rows[begin]
    return [dict(zip(titles, row, strict=True)) for row in rows[begin + 2 :] if len(row) == len(titles)]


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        ("kills", "killed workers {} times"),
        ("server kills", "servers\n{} times"),
        ("frozen", "froze {} workers"),
        ("connections cut", "cut {} connections"),
        ("events", "{} events were published"),
        ("takeovers", "{} claims were taken over"),
        ("stale writes refused", "{} stale writes refused"),
        ("promises broken", "{} promises broken"),
    ],
)
def test_the_readme_adds_up_the_counts_of_the_crash_lab(column: str, sentence: str) -> None:
    total = sum(int(row[column].replace(",", "") or 0) for row in table("store", "The crash lab"))
    words = " ".join(sentence.format(f"{total:,}").split())
    assert words in " ".join(README.split())


def test_the_readme_counts_the_planted_bugs() -> None:
    planted = len(table("planted bug", "Planted bugs"))
    assert f"each of {planted} bugs" in README


def test_the_page_offers_the_stores_of_the_simulation() -> None:
    offered = re.search(r"`--store ([^.]+) chooses one\.", RELIABILITY)
    assert offered is not None
    assert sorted(re.findall(r"\w+(?=`)", offered[0])) == sorted(PLACES)


def test_the_table_of_planted_bugs_names_their_stores() -> None:
    shown = {row["planted bug"]: row["store"] for row in table("planted bug", "Planted bugs")}
    assert shown == {bug.what: bug.store for bug in ALL}
    assert set(shown.values()) <= PLACES.keys()


def test_the_readme_says_which_command_runs_what_make_test_leaves_out() -> None:
    assert "`make long` runs what `make test` leaves out: " in README
    assert re.search(r"^long:", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)

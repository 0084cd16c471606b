"""The commands of docs/reference/cli.md and of the README's shell section do what they say, one after the other."""

import re
import shlex
from pathlib import Path

import pytest
from tests.cli.conftest import Durabus

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"docs/reference/cli.md": "# The command line", "README.md": "## From the shell"}


def commands(page: str, heading: str) -> list[list[str]]:
    """Return the commands of the first console block below a heading."""
    _, _, below = (ROOT / page).read_text(encoding="utf-8").partition(f"{heading}\n")
    block = re.search(r"```console\n(.*?)```", below, re.DOTALL)
    assert block is not None
    return [shlex.split(line.removeprefix("$ ")) for line in block[1].splitlines()]


@pytest.mark.parametrize(("page", "heading"), PAGES.items(), ids=PAGES)
def test_every_command_of_the_page_works(durabus: Durabus, page: str, heading: str) -> None:
    ran = 0
    for words in commands(page, heading):
        if words[0] == "export":
            continue
        done = durabus(*words[1:], store=None if "--store" in words else "sqlite:///shop.db")
        assert done.code == 0, (words, done.err)
        ran += 1
    assert ran >= 5

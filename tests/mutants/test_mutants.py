"""The mutation check is sound, and a test notices each of its fast mutants. `make mutants` plants all of them."""

import subprocess
import sys

import pytest
from tests.mutants.copies import ROOT, occurrences
from tests.mutants.mutant import Mutant
from tests.mutants.planted import MUTANTS

LEAST = 60
LEAST_FAST = 20


def test_there_are_enough_mutants_and_each_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= LEAST
    assert sum(mutant.fast for mutant in MUTANTS) >= LEAST_FAST


def test_the_text_of_every_mutant_stands_once_in_the_source() -> None:
    assert [(m.name, m.file, occurrences(m)) for m in MUTANTS if occurrences(m) != 1] == []
    assert [m.name for m in MUTANTS if m.old == m.new] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_test_that_must_kill_it_exists(mutant: Mutant) -> None:
    file, _, rest = mutant.killed_by.partition("::")
    *classes, name = rest.partition("[")[0].split("::")
    text = (ROOT / file).read_text()
    assert all(f"class {one}(" in text for one in classes)
    suite = (ROOT / "src/durabus/testing/conformance").glob("*.py") if classes else [ROOT / file]
    assert any(f"def {name}(" in path.read_text() for path in suite)


@pytest.mark.timeout(300)
def test_the_fast_mutants_are_killed() -> None:
    check = subprocess.run(
        [sys.executable, "-m", "tests.mutants", "--fast"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stdout + check.stderr

"""The mutation check: plants one change after the other, and expects the test that is named for it to fail.

::

    python -m tests.mutants                    all of them, two at a time
    python -m tests.mutants --fast             those of `make test`
    python -m tests.mutants 'default timeout'  some, by a part of their name

Ends with code 1 if a change went unnoticed, if a test fails without any, or if a text to change is gone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.mutants import runs
from tests.mutants.copies import copy_source, occurrences, planted
from tests.mutants.mutant import Mutant
from tests.mutants.planted import MUTANTS

AT_ONCE = 2
SHOWN_CHARS = 3000


class Trial:
    """A run of some tests, with a planted change or without one."""

    def __init__(self, tests: Sequence[str], mutant: Mutant | None = None) -> None:
        self.tests = tests
        self.mutant = mutant
        self.passed = False
        self._planted = ExitStack()
        self._run: runs.Run | None = None

    def begin(self, copy: Path) -> None:
        if self.mutant is not None:
            self._planted.enter_context(planted(self.mutant, copy))
        self._run = runs.begin(copy, self.tests, copy.parent, stop_early=self.mutant is not None)

    def ended(self) -> bool:
        """Return whether the trial is over. If it is, print its result."""
        if self._run is None or not runs.ended(self._run):
            return False
        report, seconds = runs.report_of(self._run), time.monotonic() - self._run.began
        wrong = report.trouble or (self._unsound(report) if self.mutant is None else self._survived(report))
        if self.mutant is not None:
            say(f"| {self.mutant.name} | {'SURVIVED ' if wrong else ''}{self.mutant.killed_by} | {seconds:.1f} |")
        if wrong:
            say(f"{wrong}\n{self._run.output.read_text()[-SHOWN_CHARS:]}")
        self.passed = not wrong
        self._end()
        return True

    def give_up(self) -> None:
        if self._run is not None:
            runs.stop(self._run)
            self._end()

    def _end(self) -> None:
        self._run = None
        self._planted.close()

    def _unsound(self, report: runs.Report) -> str:
        unsound = [test for test in self.tests if not report.held(test)]
        return f"do not pass without a mutant, so their failures prove nothing: {unsound}" if unsound else ""

    def _survived(self, report: runs.Report) -> str:
        mutant = self.mutant
        if mutant is None or report.killed(mutant.killed_by):
            return ""
        reason = "the test's fixtures broke" if report.broken else "the test passed"
        return f"{mutant.file}: {mutant.why}\n- {mutant.old}\n+ {mutant.new}\n{reason}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.mutants")
    parser.add_argument("names", nargs="*", help="parts of names; all mutants if none is given")
    parser.add_argument("--fast", action="store_true", help="only those of `make test`")
    asked = parser.parse_args(arguments)
    chosen = [m for m in MUTANTS if (m.fast or not asked.fast) and _is_named(m, asked.names)]
    if not chosen:
        parser.error(f"no mutant is named like {asked.names}")
    outdated = [mutant for mutant in chosen if occurrences(mutant) != 1]
    for mutant in outdated:
        say(f"{mutant.name}: its text stands {occurrences(mutant)} times in {mutant.file}, not once:\n{mutant.old}")
    began, survivors = time.monotonic(), []
    if not outdated:
        runs.preload()
        with tempfile.TemporaryDirectory(prefix="durabus-mutants-") as folder:
            copies = [copy_source(Path(folder) / str(n)) for n in range(AT_ONCE)]
            sound = all(trial.passed for trial in _try_all(_without_mutants(chosen), copies))
            if not sound:
                return 1
            say("| mutant | killed by | seconds |\n| --- | --- | --- |")
            trials = _try_all([Trial([mutant.killed_by], mutant) for mutant in chosen], copies)
            survivors = [trial for trial in trials if not trial.passed]
    say(f"{len(chosen)} mutants, {len(survivors)} survived, {time.monotonic() - began:.0f} s")
    return 1 if outdated or survivors else 0


def _is_named(mutant: Mutant, names: Sequence[str]) -> bool:
    return not names or any(name in mutant.name for name in names)


def _without_mutants(chosen: Sequence[Mutant]) -> list[Trial]:
    """Return trials of the named tests on the unchanged source: a test that fails there proves nothing."""
    by_file: dict[str, set[str]] = defaultdict(set)
    for mutant in chosen:
        by_file[mutant.killed_by.partition("::")[0]].add(mutant.killed_by)
    return [Trial(sorted(tests)) for tests in by_file.values()]


def _try_all(trials: Sequence[Trial], copies: Sequence[Path]) -> Sequence[Trial]:
    """Run the trials, one at a time in each copy."""
    waiting = list(reversed(trials))
    under_way: dict[Path, Trial] = {}
    try:
        while waiting or under_way:
            for copy in copies:
                if copy in under_way and under_way[copy].ended():
                    del under_way[copy]
                if copy not in under_way and waiting:
                    under_way[copy] = waiting.pop()
                    under_way[copy].begin(copy)
            time.sleep(0.01)
    finally:
        for trial in under_way.values():
            trial.give_up()
    return trials


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  (the table)


if __name__ == "__main__":
    sys.exit(main())

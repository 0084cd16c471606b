"""Every snippet and command in README.md, CONTRIBUTING.md and docs/ works.

```python            a script of its own, run in an empty folder
```python continue   goes on where the previous python block of the page ended
```console           `$ make x` needs a target x; `$ durabus x --y` a command x with an option --y
```sh                the same, and the `$ ` may be left out
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import dropwhile, groupby
from pathlib import Path

import pytest

from durabus.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
TIMEOUT_SECONDS = 50
SPARK_SECONDS = 300
"""The same for a script that starts Spark, as for the tests of the pipeline."""

FENCE = re.compile(r"(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>.*)")
PYTHON_MISSPELT = {"py", "pycon", "python3"}
SHELLS = {"console", "sh", "bash", "shell"}


@dataclass(frozen=True, kw_only=True)
class Block:
    page: str
    first_line: int
    """Number of the line after the opening fence."""
    info: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def language(self) -> str:
        return self.info[0].lower() if self.info else ""


@dataclass(frozen=True, kw_only=True)
class Script:
    """A python block and the blocks that continue it."""

    blocks: tuple[Block, ...]

    def source(self) -> str:
        """The code at the line numbers it has in the page, so a traceback points into the page."""
        lines: list[str] = []
        for block in self.blocks:
            lines += [""] * (block.first_line - 1 - len(lines))
            lines += block.lines
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, kw_only=True)
class Command:
    page: str
    line: int
    words: tuple[str, ...]


def blocks_of(page: str, text: str) -> Iterator[Block]:
    lines = enumerate(text.splitlines(), start=1)
    for number, line in lines:
        opening = FENCE.fullmatch(line)
        if opening is None:
            continue
        body: list[str] = []
        for _, inner in lines:
            closing = inner.strip()
            if closing.startswith(opening["fence"]) and not closing.strip(opening["fence"][0]):
                break
            body.append(without_indent(inner, len(opening["indent"])))
        info = tuple(opening["info"].split())
        yield Block(page=page, first_line=number + 1, info=info, lines=tuple(body))


def without_indent(line: str, width: int) -> str:
    return line[width:] if not line[:width].strip() else line


def scripts_of(blocks: Iterable[Block]) -> list[Script]:
    scripts: list[Script] = []
    for block in blocks:
        match block.info:
            case ("python",):
                scripts.append(Script(blocks=(block,)))
            case ("python", "continue") if scripts and scripts[-1].blocks[-1].page == block.page:
                scripts[-1] = Script(blocks=(*scripts[-1].blocks, block))
    return scripts


def fault_of(block: Block, *, runs: bool) -> str | None:
    if block.language in PYTHON_MISSPELT:
        return f"write ```python, not ```{block.info[0]}: only python blocks are run"
    if block.info == ("python", "continue") and not runs:
        return "there is no python block before this one to continue"
    if block.language == "python" and not runs:
        return f"```{' '.join(block.info)} is not allowed: write ```python or ```python continue, and it runs"
    return None


def commands_of(block: Block) -> Iterator[Command]:
    if block.language not in SHELLS:
        return
    for number, line in enumerate(block.lines, start=block.first_line):
        typed = line.startswith("$ ") or block.language != "console"
        if typed and ("make" in line or "durabus" in line):
            for words in simple_commands(line.removeprefix("$ ")):
                if words[0] in {"make", "durabus"}:
                    yield Command(page=block.page, line=number, words=words)


def simple_commands(text: str) -> Iterator[tuple[str, ...]]:
    """The words of each command of a line, without variables set in front, redirections and comments."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    for is_operator, group in groupby(lexer, lambda word: set(word) <= set("();<>|&")):
        words = tuple(dropwhile(lambda word: "=" in word, group))
        if words and not is_operator:
            yield (words[0].removeprefix(".venv/bin/"), *words[1:])


def make_targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][\w-]*):(?!=)", makefile, flags=re.MULTILINE))


BLOCKS = [
    block for page in PAGES for block in blocks_of(page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8"))
]
SCRIPTS = scripts_of(BLOCKS)
COMMANDS = [command for block in BLOCKS for command in commands_of(block)]
MAKE_COMMANDS = [command for command in COMMANDS if command.words[0] == "make"]
DURABUS_COMMANDS = [command for command in COMMANDS if command.words[0] == "durabus"]


def command_id(command: Command) -> str:
    return f"{command.page}:{command.line}"


def script_id(script: Script) -> str:
    return f"{script.blocks[0].page}:{script.blocks[0].first_line}"


def test_every_python_block_is_one_that_runs() -> None:
    scripted = {block for script in SCRIPTS for block in script.blocks}
    faults = [
        f"{block.page}:{block.first_line - 1}: {fault}"
        for block in BLOCKS
        if (fault := fault_of(block, runs=block in scripted))
    ]
    assert not faults, "\n".join(faults)


def seconds_for(script: Script) -> int:
    return SPARK_SECONDS if "durabus.testing.pipeline" in script.source() else TIMEOUT_SECONDS


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, id=script_id(script), marks=pytest.mark.timeout(seconds_for(script) + 10))
        for script in SCRIPTS
    ],
)
def test_python_snippet_runs(script: Script, tmp_path: Path) -> None:
    done = run_in_empty_folder(script, tmp_path)
    assert "Traceback" not in done.stdout + done.stderr, done.stderr


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("README.md", "charging 40"),
        (
            "docs/reference/python.md",
            "dead letter: piano COMPLETED_WITH_ERRORS ('UnrecoverableError: over the limit',)",
        ),
    ],
)
def test_the_first_example_prints_the_same_when_it_runs_again(page: str, printed: str, tmp_path: Path) -> None:
    first = next(script for script in SCRIPTS if script.blocks[0].page == page)
    outputs = {run_in_empty_folder(first, tmp_path).stdout for _ in range(2)}
    assert len(outputs) == 1, outputs
    (output,) = outputs
    assert printed in output


def run_in_empty_folder(script: Script, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    folder = tmp_path / "empty"
    folder.mkdir(exist_ok=True)
    program = tmp_path / f"{Path(script.blocks[0].page).stem}_page.py"  # http.py would hide the standard one
    program.write_text(script.source(), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=seconds_for(script),
        check=False,
        text=True,
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done


@pytest.mark.parametrize("command", [pytest.param(c, id=command_id(c)) for c in MAKE_COMMANDS])
def test_make_command_names_real_targets(command: Command) -> None:
    named = {word for word in command.words[1:] if not word.startswith("-") and "=" not in word}
    assert named <= make_targets()


@pytest.mark.parametrize("command", [pytest.param(c, id=command_id(c)) for c in DURABUS_COMMANDS])
def test_durabus_command_exists(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*command.words[1:], "--help"]) == 0
    described = capsys.readouterr().out
    options = {word.partition("=")[0] for word in command.words if word.startswith("--") and word != "--"}
    assert {option for option in options if option not in described} == set()

"""The suite quotes the law: every test says which sentence it proves, and every sentence of the contract is proved."""

import ast
import functools
import inspect
import re
from pathlib import Path

import pytest

import durabus
from durabus.testing.conformance import StoreConformance

PACKAGE = Path(durabus.__file__).parent
LAW = sorted([*PACKAGE.glob("store/*.py"), *PACKAGE.glob("lifecycle/*.py"), *PACKAGE.glob("model/*.py")])
CONTRACT = ["claims", "contract", "dead_letters", "events", "locks", "log", "processes", "registrations", "results"]
TESTS = [(name, test) for name, test in inspect.getmembers(StoreConformance) if name.startswith("test_")]
# What a suite that only calls cannot see; what proves it stands beside it.
NOT_SEEN_FROM_OUTSIDE = {
    "a repeat is harmless": "said once more in the sentence before it",
    "Everything a bus needs from a store": "a summary",
    "Which nodes have which handlers for which bus": "a summary",
    "The history of what was published": "a summary",
    "What each handler did": "a summary",
    "Every event, claim, result and retry": "a summary",
    "A result is stored only if it adds information": "a matter of cost",
    "Connect, install or upgrade the schema, verify it": "every test opens a store; the back end tests its upgrades",
    "Raises ``SchemaError``": "the back end tests how its own schema can be damaged",
    "Return the present time by the store's clock": "proved with the leases",
    "runs them one at a time, in their order": "the worker's part: tests/runtime/test_serial_batches.py",
    "Such entries are committed, but": "only PostgreSQL's: tests/postgresql/test_log_hold.py",
    "This happens only on PostgreSQL": "only PostgreSQL's: tests/postgresql/test_log_hold.py",
    "Processes that have ended, and when to look for more": "a summary",
    "Seconds until the next look is useful": "proved with ended_processes",
    "While the answer is False, no token may begin": "the worker's part: tests/worker/test_process_watch.py",
    "A process calls it before its first claim": "the worker's part: tests/worker/test_process_watch.py",
    "Return whether ``get_event`` would return an event": "proved with get_event",
}


def words(text: str) -> str:
    return re.sub(r"\W+", " ", text).strip().casefold()


def docstrings(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                found += [statement.value.value] if isinstance(statement.value.value, str) else []
    return found


@functools.cache
def law() -> str:
    return words(" ".join(text for path in LAW for text in docstrings(path)))


def sentences(docstring: str) -> list[str]:
    parts = re.split(r"\n\s*- |\n\n", docstring)
    return [one for part in parts for one in re.split(r"(?<=\.)\s+", " ".join(part.split())) if words(one)]


def quotes() -> list[str]:
    return [words(inspect.getdoc(test) or "") for _, test in TESTS]


@pytest.mark.parametrize(("name", "test"), TESTS, ids=[name for name, _ in TESTS])
def test_every_proof_quotes_a_sentence_of_the_law(name: str, test: object) -> None:
    quote = words(inspect.getdoc(test) or "")
    assert quote, "the docstring of a conformance test is the sentence that it proves"
    assert quote in law(), f"not in the law: {quote}"


@pytest.mark.parametrize("part", CONTRACT)
def test_every_sentence_of_the_contract_is_proved(part: str) -> None:
    proved = quotes()
    missing = [
        sentence
        for text in docstrings(PACKAGE / "store" / f"{part}.py")[1:]
        for sentence in sentences(text)
        if not any(words(sentence) in quote or quote in words(sentence) for quote in proved)
        and not any(words(known) in words(sentence) for known in NOT_SEEN_FROM_OUTSIDE)
    ]
    assert not missing, "\n".join(missing)

"""The guarantees of every store, and the page that shows them all.

Each store states its own guarantees in ``durabus/stores/<name>/guarantees.py``.
"""

from __future__ import annotations

from importlib import import_module

import msgspec

from durabus.store.connect import make_store
from durabus.store.features import Features

URLS = {
    "memory": "memory://",
    "sqlite": "sqlite:///bus.db",
    "postgresql": "postgresql://host/database",
    "redis": "redis://host",
    "nats": "nats://host",
    "kafka": "kafka://host",
    "sharded": "sharded://sqlite:///0.db|sqlite:///1.db",
}
"""The stores in the order of the page, each with a URL of its kind. The URL is parsed, never opened."""
CRASHES = "lab/test_rounds.py::test_no_fault_of_processes_servers_or_connections_breaks_a_promise"
"""The short round of the crash lab. The page about reliability describes the long one."""
NOT_TESTED = "not tested"
HEAD = """# Guarantees

Each store has a table of its guarantees. `durabus guarantees` prints this page from `durabus/stores/*/guarantees.py`.
One test compares the page with those modules, another checks that every test named here exists.
`durabus doctor --store URL` checks whether a server's settings keep these guarantees.

These promises hold on every store, as long as the store keeps its data (each table says what can be *lost at worst*):

- An acknowledged event stays until it has ended. It ends when every registered handler is done with it, as a dead
  letter, or when it is cancelled. A handler may run more than once for one event. If no registered handler matches the
  event's type, [`unhandled=`](runtime.md#events-without-a-handler) decides what happens to it.
- There are never two valid claims on one event, handler result or lock.
- Once another worker has claimed an event, everything that the former holder still writes is refused (`LeaseLost`).
- An exact repeat of a call takes effect once. A publish is one if it has the same `event_id` or `idempotency_key`.

One [conformance suite](../../src/durabus/testing/conformance) tests all of this on every store. The
[crash lab](reliability.md#the-crash-lab) also kills workers and servers, on SQLite, PostgreSQL, Redis, NATS and Kafka.
Promises without a test are marked *not tested*. No test cuts the power: where the table says that a store survives it,
the store acknowledges a write only after the disk has confirmed it.
"""


class Guarantees(msgspec.Struct, frozen=True, kw_only=True):
    """The promises of one store. Each is one or two sentences for the operator."""

    title: str
    durability: str
    """Where the store has kept a write before it acknowledges it."""
    lost: str
    """What the store can lose, and when, at worst."""
    order: str
    """The order of claims and of the log."""
    unknown_outcome: str
    """What the caller gets, and what it should do, if the reply to a write does not arrive."""
    clock: str
    """The clock that judges leases."""
    takeover: str
    """When other processes get the events of a process that was killed, and of one that only stands still."""
    wake_up: str
    """How an idle worker learns that there is work."""
    limits: str
    not_for: str
    in_short: dict[str, str] = {}
    """Texts for the overview table where "yes" or "no" would be wrong. The keys are those of ``QUESTIONS``."""
    shown_by: dict[str, tuple[str, ...]]
    """For each promise, the tests that prove it (paths below ``tests``) or a note that it is not tested."""


LABELS = {
    "durability": "An acknowledged write is",
    "lost": "Lost at worst",
    "order": "Order",
    "unknown_outcome": "No reply",
    "clock": "Clock",
    "takeover": "Takeover",
    "wake_up": "Wake-up",
    "limits": "Limits",
    "not_for": "Not for",
}
QUESTIONS = {
    "survives_process_kill": "survives kill -9",
    "survives_power_loss": "survives power loss",
    "shared_between_processes": "several processes",
    "caller_transactions": "your transactions",
}


def all_guarantees() -> dict[str, Guarantees]:
    """Return the guarantees of every store, by the name of the store."""
    return {name: import_module(f"durabus.stores.{name}.guarantees").GUARANTEES for name in URLS}


def page() -> str:
    """Return the text of ``docs/proof/guarantees.md``."""
    known = all_guarantees()
    features = {name: make_store(url).features for name, url in URLS.items()}
    parts = [HEAD, _table(known, features)]
    parts += [_section(name, promised) for name, promised in known.items()]
    return "\n".join(parts)


def _table(known: dict[str, Guarantees], features: dict[str, Features]) -> str:
    rows = [["store", *QUESTIONS.values(), "shortest lease"], ["---"] * (len(QUESTIONS) + 2)]
    for name, promised in known.items():
        plain = {question: "yes" if getattr(features[name], question) else "no" for question in QUESTIONS}
        answers = list((plain | promised.in_short).values())
        least = features[name].minimum_lease
        rows.append([promised.title, *answers, f"{least:g} s" if least else "any"])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _section(name: str, promised: Guarantees) -> str:
    rows = ["| | promise | shown by |", "| --- | --- | --- |"]
    for field, label in LABELS.items():
        tests = "; ".join(_link(test) for test in promised.shown_by[field])
        rows.append(f"| **{label}** | {getattr(promised, field)} | {tests} |")
    return f"## {promised.title}\n\n`{URLS[name]}`\n\n" + "\n".join(rows) + "\n"


def _link(test: str) -> str:
    """Return a link to a test. The text of the link is the name of the test as a sentence."""
    if test.startswith(NOT_TESTED):
        return f"*{test}*"
    file, _, name = test.partition("::")
    sentence = name.rpartition("::")[2].partition("[")[0].removeprefix("test_").replace("_", " ")
    return f"[{sentence}](../../tests/{file})"

"""What each store promises and what it does not: one card per back end, and the page that shows them all."""

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
"""The stores in the order of the page, and a URL that names one without opening it."""
CRASHES = "lab/test_rounds.py::test_whatever_is_done_to_processes_servers_and_wires_no_promise_is_broken"
"""A small round of the crash lab: the long one is on the page about reliability."""
NOT_TESTED = "not tested"
HEAD = """# Guarantees

One card per store. `durabus guarantees` prints this page from the cards in `durabus/stores/*/guarantees.py`. One
test compares the page with the cards, another checks that every test named here exists. `durabus doctor --store URL`
tells whether a server's settings keep what its card promises.

These promises hold on every store, as long as the store keeps its data (each card says what can be *lost at worst*):

- An acknowledged event stays until it has ended. It ends when every registered handler is done with it, or as a dead
  letter. A handler may run more than once for one event. If no registered handler matches the event's type,
  [`unhandled=`](runtime.md#events-that-nobody-handles) decides what happens to it.
- There are never two valid claims on one event, handler result or lock.
- Once another worker has claimed an event, everything that the former holder still writes is refused (`LeaseLost`).
- An exact repeat of a call takes effect once. A publish is one if it has the same `event_id` or `idempotency_key`.

One [conformance suite](../src/durabus/conformance) tests all of this on every store. The
[crash lab](reliability.md#the-crash-lab) also kills workers and servers, on SQLite, PostgreSQL, Redis, NATS and Kafka.
Promises without a test are marked *not tested*. No test cuts the power: where the table says that a store survives it,
the store acknowledges a write only after the disk has confirmed it.
"""


class Guarantees(msgspec.Struct, frozen=True, kw_only=True):
    """The promises of one back end, each one or two sentences for its operator."""

    title: str
    durability: str
    """Where an acknowledged write is."""
    lost: str
    """What is lost when, at worst."""
    order: str
    """Of claims and of the log."""
    unknown_outcome: str
    """What a caller is told, and does, when the reply to a write does not come."""
    clock: str
    """Which one judges leases."""
    wake_up: str
    """How an idle worker hears of work."""
    limits: str
    not_for: str
    in_short: dict[str, str] = {}
    """Where yes or no would be wrong: by the names of ``QUESTIONS``, what the table says instead."""
    shown_by: dict[str, tuple[str, ...]]
    """For each of these the tests that prove it, by their paths below ``tests``; or what is not tested."""


LABELS = {
    "durability": "An acknowledged write is",
    "lost": "Lost at worst",
    "order": "Order",
    "unknown_outcome": "No reply",
    "clock": "Clock",
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


def cards() -> dict[str, Guarantees]:
    """All cards by the name of their back end."""
    return {name: import_module(f"durabus.stores.{name}.guarantees").CARD for name in URLS}


def page() -> str:
    """``docs/guarantees.md``."""
    known = cards()
    features = {name: make_store(url).features for name, url in URLS.items()}
    parts = [HEAD, _table(known, features)]
    parts += [_card(name, card) for name, card in known.items()]
    return "\n".join(parts)


def _table(known: dict[str, Guarantees], features: dict[str, Features]) -> str:
    rows = [["store", *QUESTIONS.values(), "shortest lease"], ["---"] * (len(QUESTIONS) + 2)]
    for name, card in known.items():
        plain = {question: "yes" if getattr(features[name], question) else "no" for question in QUESTIONS}
        answers = list((plain | card.in_short).values())
        least = features[name].minimum_lease
        rows.append([card.title, *answers, f"{least:g} s" if least else "any"])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _card(name: str, card: Guarantees) -> str:
    rows = ["| | promise | shown by |", "| --- | --- | --- |"]
    for field, label in LABELS.items():
        tests = "; ".join(_link(test) for test in card.shown_by[field])
        rows.append(f"| **{label}** | {getattr(card, field)} | {tests} |")
    return f"## {card.title}\n\n`{URLS[name]}`\n\n" + "\n".join(rows) + "\n"


def _link(test: str) -> str:
    """A test is named by the sentence that it proves."""
    if test.startswith(NOT_TESTED):
        return f"*{test}*"
    file, _, name = test.partition("::")
    sentence = name.rpartition("::")[2].partition("[")[0].removeprefix("test_").replace("_", " ")
    return f"[{sentence}](../tests/{file})"

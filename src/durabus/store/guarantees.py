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
HEAD = """# Guarantees

One card per store. `durabus guarantees` prints this page from the cards in the code (`durabus/backends/*/card.py`), and
a test holds the two equal. `durabus doctor --store URL` tells whether a server's settings keep what its card promises.

On every store: an acknowledged publish is handled at least once; there are never two valid claims on one event, handler
result or lock; what a former holder writes is refused by its fence; an exact repeat of a call takes effect once.
"""


class Card(msgspec.Struct, frozen=True, kw_only=True):
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


def cards() -> dict[str, Card]:
    """All cards by the name of their back end."""
    return {name: import_module(f"durabus.backends.{name}.card").CARD for name in URLS}


def page() -> str:
    """``docs/guarantees.md``."""
    known = cards()
    features = {name: make_store(url).features for name, url in URLS.items()}
    parts = [HEAD, _table(known, features)]
    parts += [_card(name, card) for name, card in known.items()]
    return "\n".join(parts)


def _table(known: dict[str, Card], features: dict[str, Features]) -> str:
    rows = [["store", *QUESTIONS.values(), "shortest lease"], ["---"] * (len(QUESTIONS) + 2)]
    for name, card in known.items():
        answers = ["yes" if getattr(features[name], question) else "no" for question in QUESTIONS]
        least = features[name].minimum_lease
        rows.append([card.title, *answers, f"{least:g} s" if least else "any"])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _card(name: str, card: Card) -> str:
    lines = [f"- **{label}**: {getattr(card, field)}" for field, label in LABELS.items()]
    return f"## {card.title}\n\n`{URLS[name]}`\n\n" + "\n".join(lines) + "\n"

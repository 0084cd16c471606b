"""Locks: a fence for each holder, and one holder at a time."""

from __future__ import annotations

from collections.abc import Iterator

from durabus.testing.history.history import FOREVER, History, Violation
from durabus.testing.history.lines import Holding


def locks(history: History) -> Iterator[Violation]:
    """Who holds a lock is alone with it, unless a process is frozen; later holders have larger fences."""
    holders: dict[tuple[str, int], str] = {}
    spans: dict[str, list[tuple[float, Holding]]] = {}
    open_: dict[tuple[str, str, int], Holding] = {}
    for one in history.holdings:
        place = (one.host, one.key, one.fence)
        if one.what == "start":
            if holders.setdefault((one.key, one.fence), one.host) != one.host or place in open_:
                yield Violation("locks", f"{one.key!r} was held twice with fence {one.fence}")
            open_[place] = one
        elif place in open_:
            spans.setdefault(one.key, []).append((one.at, open_.pop(place)))
    for one in open_.values():
        spans.setdefault(one.key, []).append((history.crashes.get(one.host, FOREVER), one))
    for held in spans.values():
        yield from _overlaps(history, sorted(held, key=lambda span: span[1].fence))


def _overlaps(history: History, held: list[tuple[float, Holding]]) -> Iterator[Violation]:
    for place, (end, older) in enumerate(held):
        for _, newer in held[place + 1 :]:
            late = end > newer.at + history.settings.tolerance
            if late and not history.was_frozen(older.host, older.since, newer.at):
                yield Violation(
                    "locks",
                    f"{older.key!r}: fence {older.fence} on {older.host} until {end:.3f}, fence {newer.fence} on "
                    f"{newer.host} from {newer.at:.3f}, and nobody was frozen",
                )

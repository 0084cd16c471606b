"""Readers of the log get every entry, in order, and none twice."""

from __future__ import annotations

from collections.abc import Iterator

from durabus.testing.history.history import History, Violation


def cursor(history: History) -> Iterator[Violation]:
    """Every page holds exactly the entries that follow the position it was asked after."""
    places = {entry.position: place for place, entry in enumerate(history.log, start=1)}
    if len(places) != len(history.log):
        yield Violation("cursor", "two entries of the log have one position")
    positions = [entry.position for entry in history.log]
    for call in history.of("read_log"):
        if call.ok is None or call.ok.positions is None:
            continue
        after, read = call.invoke.after or "", list(call.ok.positions)
        if after and after not in places:
            yield Violation("cursor", f"{call.invoke.host} read on after {after!r}, which is no entry's position")
            continue
        first = places.get(after, 0)
        expected = positions[first : first + len(read)]
        if read != expected:
            yield Violation("cursor", f"{call.invoke.host} read {read} after {after!r}, the log has {expected} there")
        if call.ok.next != (read[-1] if read else after):
            yield Violation("cursor", f"{call.invoke.host} read {read} and was sent on to {call.ok.next!r}")
        if not read and _older(history, first, call.begins):
            yield Violation("cursor", f"{call.invoke.host} found nothing after {after!r}, where entries were already")


def _older(history: History, first: int, instant: float) -> bool:
    """Whether the next entry was there before ``instant``."""
    entries = history.log[first : first + 1]
    return any(history.at(entry.at_ts) < instant - history.settings.tolerance - 1e-6 for entry in entries)
